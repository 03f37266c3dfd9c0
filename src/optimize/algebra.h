/* Functions of one number x in a normal form: a quotient of sums. The terms of a sum are a number, times a power of x, times
 * e to a polynomial of x, times powers of erf(root x) and of log(inside), of which there is one each. Two spellings that are
 * the same by the rules of algebra have forms that are the same when they are multiplied out.
 *
 * A form holds in a piece of the number line. A clamp is one thing or another in a piece, or says where the piece is to be
 * split. Whatever has no form is false: it is not known, and not the same as anything. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MOST_TERMS = 24, MOST_DEGREE = 4 };

typedef struct term {
	double factor;
	int x, erf, log;              /* powers */
	double exponent[MOST_DEGREE]; /* of e: factors of x, x², … */
} term;

typedef struct sum {
	term at[MOST_TERMS];
	uint32_t n; /* 0: it is 0 */
} sum;

/* The bottom is greater than 0, whatever x is. */
typedef struct form {
	sum top, bottom;
} form;

/* Where forms of one function hold, and what they have in common. */
typedef struct piece {
	double low, high;
	double split;    /* NAN, or a clamp changes there */
	double root;     /* NAN: there is no erf yet */
	bool has_inside; /* there is a log */
	sum inside;
} piece;

form form_number(double k);
form form_x(void);
bool form_add(const form *a, const form *b, double factor, form *out); /* a + factor * b */
bool form_mul(const form *a, const form *b, form *out);
bool form_div(const form *a, const form *b, form *out);
bool form_pow(const form *a, double power, form *out); /* of whole numbers from 0 on */
bool form_exp(const piece *p, const form *a, form *out);
bool form_log(piece *p, const form *a, form *out);
bool form_erf(piece *p, const form *a, form *out);
bool form_sigmoid(const piece *p, const form *a, form *out);
bool form_clamp(piece *p, const form *a, double low, double high, form *out); /* of a straight line */
/* The same in the pieces that they were made for, but for rounding of the numbers in them. */
bool form_same(const piece *p, const form *a, const piece *q, const form *b);
