/* Private tables of a plan: interned strings, names and numbers; and limits that its functions share.
 *
 * Only files of this folder include it. Nothing here is part of what a plan means: it can all be derived from the
 * arrays, and makes building and printing linear. */
#pragma once

#include "base/arena.h"
#include "base/table.h"
#include "plan/plan.h"

/* Lists, trees and module paths nest this deep at most, expressions have this many terms at most: what recursion
   over them can cost is bounded, and every printed plan can be parsed again. */
#define NEST_LIMIT 100
#define EXPR_LIMIT 256

typedef struct named {
	scope_id scope;   /* with this path */
	value_id value;   /* PARAM, BUFFER, ATTR with this name */
	symbol_id symbol; /* with this name */
} named;

struct plan_intern {
	uint64_t seed;
	table strs, exprs, reals, contexts;
	arena bytes;              /* of strings, which never move */
	VEC(named) named;         /* per string: what has it as its name */
	VEC(uint32_t) expr_terms; /* per expression */
	VEC(uint32_t) real_terms; /* per real */
	VEC(uint32_t) ordinal;    /* per value: which input, result or #constant it is; NONE: it has a name */
	uint32_t nresults, nconsts;
};

/* The string, scope, value or symbol with these bytes as its (path or) name; NONE if there is none. */
str_id str_find(const plan *p, const char *s, size_t n);
scope_id scope_find(const plan *p, str_id path);
value_id external_find(const plan *p, str_id name);
symbol_id symbol_find(const plan *p, str_id name);

/* Nearest ancestor of `path` by its dots among scopes 0 … before-1; NONE for the root path or without ancestor. */
scope_id scope_ancestor(const plan *p, const char *path, size_t n, scope_id before);

/* A module path of more than NEST_LIMIT parts is refused. */
bool path_too_deep(const char *path, size_t n);

/* Letters, digits and _, not starting with a digit, no word of the plan text. */
bool symbol_name_ok(const char *s, size_t n);

/* Whether its text starts with "(". */
bool expr_starts_with_paren(const plan *p, expr_id e);

/* Which number %n or #n has in text; NONE if the value has a name instead, or was never defined. */
uint32_t value_number(const plan *p, value_id v);

/* Of real_op: its name as a function ("sqrt"), or NULL; how many operands it has. */
const char *real_function(real_op op);
unsigned real_operands(real_op op);
/* One operation. False where Python raises: a pole, the root of a negative number, a finite result that overflows. */
bool real_apply(real_op op, double x, double y, double *out);

/* print.c. A name as it is where all its characters are `bare`, quoted otherwise; what a node's braces hold, with a space
   before them: " {nograd, random}". */
void word_print(strbuf *b, const str *s, bool (*bare)(char));
void node_print_modes(const plan *p, const node *n, strbuf *b);

/* literal.c. A leaf of a tree as an argument that holds the same; false: it is a container, bytes or opaque. */
bool leaf_as_arg(const tree *t, arg *out);

/* build.c. Numbers all results in the order of their nodes; a result of no node has no number. */
void number_results(plan *p);

bool ties_sorted(const plan *p); /* print.c: by value */

static inline const str *str_at(const plan *p, str_id s)
{
	static const str empty = {"", 0};
	return s < p->strs.n ? &p->strs.at[s] : &empty;
}

static inline bool is_module_tensor(uint8_t kind)
{
	return kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR;
}

static inline bool is_external(uint8_t kind)
{
	return kind != VALUE_INPUT && kind != VALUE_RESULT;
}

/* first … first+n-1 lies in an array of `size`. */
static inline bool in_range(uint32_t first, uint32_t n, uint32_t size)
{
	return first <= size && n <= size - first;
}

/* inspect.c */
void print_plain(const plan *p, str_id id, strbuf *b); /* a name as it is, or quoted where it would upset a terminal */
void print_mode(const plan *p, strbuf *b);             /* "eval, equal to eager without grad" */
