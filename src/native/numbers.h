/* Arithmetic on single elements of any type, for operators that are rare: scatter with a reduction, index_add. */
#ifndef NATIVE_NUMBERS_H
#define NATIVE_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum number_how { NUMBER_SET, NUMBER_ADD, NUMBER_MUL, NUMBER_MAX, NUMBER_MIN, NUMBER_MEAN } number_how;

bool number_known(uint8_t type);
void number_join(uint8_t type, number_how how, void *to, const void *from); /* to = to how from; MEAN adds */
void number_first(uint8_t type, number_how how, void *to); /* what leaves `from` as it is when joined */
void number_divide(uint8_t type, void *to, int64_t by);    /* integers round down */
void number_subtract(uint8_t type, void *to, const void *a, const void *b); /* a - b; bool: whether they differ */
static inline void number_add(uint8_t type, void *to, const void *from)
{
	number_join(type, NUMBER_ADD, to, from);
}

#endif
