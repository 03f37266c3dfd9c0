/* Words and characters of the plan text that the printer and the parser share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "plan/plan.h"

#define LAYOUT_COUNT 8
#define MEMFMT_COUNT 4

extern const char *const host_type_names[7]; /* by value_type; none for TYPE_TENSOR */
extern const char *const external_words[7];  /* by value_kind: "param", …; NULL for inputs and results */
extern const char *const grad_mode_names[4]; /* by plan->grad_modes */

/* As torch calls a dtype: "float32". */
const char *torch_dtype(uint8_t d);
/* The dtype that a caller names, by plan text (f32) or as torch does (float32); the error lists the names. */
clv_status dtype_read(const char *name, dtype *out);

bool char_in_word(char c);                /* letters digits _        of symbols, keywords                      */
bool char_in_label(char c);               /* and .                   of %x #x                                  */
bool char_in_path(char c);                /* and . - < >             of module paths, @names; others are quoted */
bool char_in_op(char c);                  /* and . :                 of operators                              */
bool op_name_ok(const char *s, size_t n); /* space::name or space::name.overload */
bool char_in_device(char c);              /* and :                   of devices; others are quoted             */
