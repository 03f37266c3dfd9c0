/* Readable Python source of a view: a plain nn.Module that does what nodes first … end-1 of a plan do.
 *
 * python.c writes the class, declare.c its __init__, call.c one operator call, ident.c the names. What only torch knows
 * (the data of constants, which arguments an operator takes by name alone) comes through source_spec; without it every
 * constant is a buffer for the caller to load, and a helper in the source sorts the arguments when it runs. */
#ifndef EMIT_EMIT_H
#define EMIT_EMIT_H

#include "base/table.h"
#include "plan/view.h"

/* An argument of an operator's schema. */
typedef struct source_formal {
	const char *name; /* borrowed, while the operator is registered */
	bool named;       /* taken by name alone */
	bool none;        /* its default is None */
} source_formal;

typedef struct source_spec {
	node_id first, end;
	const char *class_name;
	bool del;            /* values are deleted after their last use */
	bool return_rebinds; /* tensors that module names are re-bound to come after the outputs; else they are assigned */
	void *ctx;           /* for the two functions; both may be NULL */
	/* Python text of a constant ("[1.0, 2.0]"), exact; *done false: it is too large, or has no exact text. */
	clv_status (*literal)(void *ctx, value_id v, strbuf *b, bool *done);
	/* Argument i of operator `op` ("aten::add.Tensor"); false: not known. */
	bool (*formal)(void *ctx, const char *op, uint32_t i, source_formal *out);
} source_spec;

/* CLV_E_UNSUPPORTED names the node that cannot be written as source. */
clv_status plan_source(const plan *p, const source_spec *s, strbuf *b);

/* Where a tensor from outside is kept in the generated module: "layer1.0.weight", "const_3". */
void source_place(const plan *p, value_id v, strbuf *b);

/* Symbols that the generated forward takes as keywords, because no input shows them. */
typedef struct source_keywords {
	const char **names; /* per symbol: its name in the source, NULL: it is no keyword */
	strbuf text;
} source_keywords;

clv_status source_keywords_new(const plan *p, node_id first, node_id end, source_keywords *out);
void source_keywords_free(source_keywords *k);

/* ---- shared by the files of this folder ------------------------------------------------------------------------- */

/* Python names of the values and symbols of a plan: the same whatever range is written. */
typedef struct idents {
	const plan *p;
	strbuf text;        /* all names, NUL between them */
	VEC(size_t) starts; /* per name */
	table by_text;
	uint32_t *of_value, *of_symbol; /* index into starts; NONE */
} idents;

clv_status idents_new(const plan *p, const node_names *names, idents *out);
void idents_free(idents *t);
const char *ident_value(const idents *t, value_id v);
const char *ident_symbol(const idents *t, symbol_id s);
bool ident_ok(const char *s, size_t n);   /* may stand after a dot */
bool ident_free(const char *s, size_t n); /* may also stand alone: nothing in the source is called so */

typedef struct writer {
	const plan *p;
	const source_spec *s;
	view v;
	node_names *names;
	idents ids;
	bool *symbol_used;            /* per symbol */
	node_id *last;                /* per value: last node of the view that uses it; p->nodes.n: an output; NONE */
	bool part, call, flag, guard; /* helpers that the source needs */
	bool root_part;               /* the class itself is a Part: it has members like self[0] */
	bool torchvision;
	strbuf body; /* of forward */
} writer;

enum { INDENT = 4, BODY = 8 }; /* columns of a block, of the statements of a method */

/* declare.c */
clv_status write_init(writer *w, strbuf *b);
void write_place(writer *w, value_id v, strbuf *b);                             /* self.layer1[0].weight */
clv_status write_store(writer *w, value_id target, const arg *what, strbuf *b); /* self.state = what */

/* call.c */
clv_status write_call(writer *w, node_id n, unsigned indent, strbuf *b); /* an expression */
clv_status write_arg(writer *w, const arg *a, strbuf *b);
void write_dims(writer *w, uint32_t first, uint32_t n, strbuf *b); /* 2, 3*B */
void write_float(double v, strbuf *b);
const char *torch_dtype(uint8_t d); /* "float32" */

#endif
