/* Single elements of tensors, by the name of their dtype. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum element_kind {
	ELEMENT_FLOAT,
	ELEMENT_INT,
	ELEMENT_UINT,
	ELEMENT_BOOL,
	ELEMENT_COMPLEX,
	ELEMENT_OTHER
} element_kind;

typedef struct element {
	const char *dtype; /* "f32" */
	element_kind kind;
	uint32_t bytes;
	double lo, hi; /* of an integer: what it can be */
} element;

const element *element_of(const char *dtype); /* never NULL: one of kind OTHER for what is not known */
/* A number into an element, and back; of a complex one the real part. For kinds but OTHER. */
void element_put(const element *e, void *to, double v);
double element_get(const element *e, const void *from);
/* As a person reads it, all digits that count; into `out`, which it returns. */
enum { ELEMENT_TEXT = 72 };
const char *element_text(const element *e, const void *from, char out[ELEMENT_TEXT]);
