/* Shared by the two halves of the parser: parse.c reads statements, literal.c the literals in them. */
#pragma once

#include "plan/intern.h"
#include "plan/lex.h"
#include "plan/words.h"

typedef struct label {
	slice name; /* borrowed from the text */
	value_id v;
} label;

/* One step of the left side of a node: a name (or _), or a bracket of a list. */
typedef struct result {
	enum { RESULT_NAME, RESULT_OPEN, RESULT_CLOSE } kind;
	slice name;
} result;

typedef struct parser {
	lexer l;
	plan *p;
	VEC(label) labels;   /* %x and #x, the sign included */
	table by_label;      /* ids are labels */
	VEC(arg) args;       /* of the lists and calls being read */
	VEC(expr_id) dims;   /* of the type being read */
	VEC(result) results; /* of the node being read, likewise the rest */
	VEC(value_id) writes;
	VEC(autocast) autocasts;
	bool grouping; /* inside of a group: the last one of the plan */
} parser;

/* literal.c */
clv_status parse_expr(parser *ps, expr_id *out);
clv_status parse_arg(parser *ps, unsigned depth, arg *out);
clv_status parse_args(parser *ps, char close, unsigned depth); /* a, b, close: left on ps->args */
clv_status parse_value(parser *ps, value_id *out);             /* %x @x #x, defined before */
clv_status parse_tree(parser *ps, unsigned depth, trees *out);
clv_status parse_module_name(parser *ps, str_id *out); /* after "@" */

clv_status parse_dtype_name(parser *ps, arg *out); /* f32: into out->u.code */

/* parse.c */
value_id label_find(const parser *ps, slice name);
