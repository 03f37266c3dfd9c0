/* Readable Python source of a view (a plain nn.Module that does what nodes first … end-1 of a plan do) and of a pipeline
 * (a file with one such module per stage).
 *
 * python.c writes the class, declare.c its __init__, call.c one operator call, ident.c the names, layout.c breaks lines.
 * stages.c writes the file of a pipeline, config.c its description of the stages, output.c how the model's output is built
 * again; a stage calls whole layers of torch.nn instead of their operators (layer.c), and modules that were recorded as
 * one node (block.c). Facts that only torch knows (the data of constants, which arguments an operator takes by keyword
 * only) come through source_spec; without it every constant is a buffer for the caller to load, and a helper in the source
 * sorts the arguments when it runs. */
#pragma once

#include "base/arena.h"
#include "base/table.h"
#include "plan/ops.h"
#include "plan/twins.h"
#include "plan/view.h"
#include "plan/words.h"

/* An argument of an operator's schema. */
typedef struct source_formal {
	const char *name; /* borrowed, while the operator is registered */
	bool named;       /* taken by name alone */
	bool none;        /* its default is None */
} source_formal;

/* What the forward asked of its inputs, which code that begins with them asks again. */
typedef struct source_asked {
	const uint32_t *same; /* per input: the first input that is the same tensor; NULL: it did not ask */
	const int8_t *grads;  /* per input: whether it required grad; -1: it did not ask; NULL: of none */
	uint32_t nsame, ngrads;
} source_asked;

typedef struct source_spec {
	node_id first, end;
	const char *class_name;
	bool del;            /* values are deleted after their last use */
	bool solve;          /* sizes like 4*B show a symbol too: fewer of them are keywords */
	bool return_rebinds; /* tensors that module names are re-bound to come after the outputs; else they are assigned */
	source_asked asked;
	void *ctx; /* for the two functions; both may be NULL */
	/* Python text of a constant ("[1.0, 2.0]"), exact; *done false: it is too large, or has no exact text. */
	clv_status (*literal)(void *ctx, value_id v, strbuf *b, bool *done);
	/* Argument i of operator `op` ("aten::add.Tensor"); false: not known. */
	bool (*formal)(void *ctx, const char *op, uint32_t i, source_formal *out);
} source_spec;

/* CLV_E_UNSUPPORTED names the node that cannot be written as source. */
clv_status plan_source(const plan *p, const source_spec *s, strbuf *b);

/* Where a tensor from outside is kept in the generated module: "layer1.0.weight", "const_3". `marks` is how many underscores tell
   such a name from those of the model. */
uint32_t source_marks(const plan *p);
void source_place(const plan *p, uint32_t marks, value_id v, strbuf *b);

/* Symbols that the generated forward takes as keywords, because no input shows them. */
typedef struct source_keywords {
	const char **names; /* per symbol: its name in the source, NULL: it is no keyword */
	strbuf text;
} source_keywords;

clv_status source_keywords_new(const plan *p, node_id first, node_id end, source_keywords *out);
void source_keywords_free(source_keywords *k);

/* How a module that is run as a whole is called (block.c): texts with {0}, {1}, … for its tensors, and {{ for a brace. */
typedef struct block_call {
	const char *arguments; /* "{0}, mask={1}" */
	const char *results;   /* "{0}, ({1}, _)"; NULL: a structure that cannot be assigned to */
	uint32_t count;        /* of the tensors among the arguments; those after them are the module's own */
	const char *reason;    /* why it cannot be written; NULL: it can */
} block_call;

/* A pipeline as a file: stage i is nodes ends[i-1] … ends[i]-1, the last one ends with the plan. */
typedef struct stages_spec {
	const node_id *ends;
	uint32_t nstages;
	const char *const *devices; /* per stage: "cuda:1"; NULL, or one that is: where the model was */
	clv_sizes sizes;            /* that the configuration shows */
	const char *batch_symbol;   /* the symbol that is the batch; NULL: there is none */
	uint32_t batch_dim;
	uint32_t depth;                  /* how deep modules were looked into; only said */
	const char *const *basic_blocks; /* classes that were kept whole; only said */
	uint32_t nbasic_blocks;
	const char *const *not_saved; /* buffers that no state_dict has (persistent=False) */
	uint32_t nnot_saved;
	const block_call *calls; /* of the cleave::python nodes, in order; only those of modules are looked at */
	uint32_t ncalls;
	source_asked asked;
	bool del; /* values are deleted after their last use */
	/* What train() and eval() do: the plan of the model in its other mode (in ctx of `same`: which data they share), or
	   why there is none, and the file refuses that mode. Neither: layers switch, all else is as it was captured. */
	const plan *other;
	const char *only;
	const node_id
		*captured; /* the model was captured in the mode of `other`, whose stages end there; NULL: it was not */
	same_data same;
	void *ctx;
	clv_status (*literal)(void *ctx, value_id v, strbuf *b, bool *done); /* as in source_spec */
	bool (*formal)(void *ctx, const char *op, uint32_t i, source_formal *out);
} stages_spec;

/* CLV_E_UNSUPPORTED names the node or the tensor that stands against it. */
clv_status plan_stages_source(const plan *p, const stages_spec *s, strbuf *b);

/* ---- shared by the files of this folder ------------------------------------------------------------------------- */

/* Python names of the values and symbols of a plan: the same whatever range is written. */
typedef struct idents {
	const plan *p;
	strbuf text;        /* all names, NUL between them */
	VEC(size_t) starts; /* per name */
	table by_text;
	arena arena;
	uint32_t *of_value, *of_symbol; /* index into starts; NONE */
} idents;

clv_status idents_new(const plan *p, const node_names *names, idents *out);
void idents_free(idents *t);
const char *ident_value(const idents *t, value_id v);
const char *ident_symbol(const idents *t, symbol_id s);
bool ident_ok(const char *s, size_t n);   /* may stand after a dot */
bool ident_free(const char *s, size_t n); /* may also stand alone: nothing in the source is called so */

/* A tensor of a layer: "weight". */
typedef struct layer_slot {
	value_id v;
	const char *name;
} layer_slot;

/* A module of which a stage calls all. */
typedef struct layer {
	scope_id scope;
	uint32_t first, nslots; /* slice of layers->slots */
	const char *init;       /* nn.Linear(3, 4) */
	bool block;             /* it is given to the stage, with its tensors */
} layer;

typedef struct layers {
	VEC(layer) at;
	VEC(layer_slot) slots;
	arena arena;       /* of names and arrays */
	uint32_t *of_node; /* per node: the layer that it is a call of; NONE */
	bool *hidden;      /* per node: it is part of the call of a later one */
	uint32_t *holder;  /* per value: the slot that holds it; NONE */
	const char **path; /* per value: of that slot's module */
} layers;

/* What a writer knows when it writes a stage. */
typedef struct stage_state {
	const stages_spec *spec;
	uint32_t number;
	layers layers;
	str_id device; /* the plan's own; NONE */
	const char *device_name;
	const int64_t *sizes; /* per symbol; borrowed */
	const twins *twins;   /* borrowed; NULL: the other mode is not known */
	bool *used;           /* per value: a node of the stage reads it */
	bool failed;          /* memory ran out while layers were looked for */
	bool blocks;          /* it calls modules that are given to it */
	bool tensors;         /* of which some give a structure that is taken apart by a helper */
	VEC(value_id) given;  /* tensors to be set that no state_dict has */
} stage_state;

typedef struct writer {
	const plan *p;
	const source_spec *s;
	view v;
	node_names *names;
	idents ids;
	uint32_t marks; /* of source_place */
	arena arena;
	bool *symbol_used;            /* per symbol */
	node_id *last;                /* per value: last node of the view that uses it; p->nodes.n: an output; NONE */
	bool part, call, flag, guard; /* helpers that the source needs */
	bool root_part;               /* the class itself is a Part: it has members like self[0] */
	bool torchvision, math, copy;
	stage_state *stage; /* NULL: a view by itself */
	strbuf body;        /* of forward */
} writer;

enum { INDENT = 4, BODY = 8 }; /* columns of a block, of the statements of a method */

/* python.c */
clv_status writer_init(writer *w);
void writer_free(writer *w);
clv_status write_body(writer *w);               /* after it the needs of the forward are known */
void write_forward(writer *w, strbuf *b);       /* the method, with the body */
void write_helpers(const writer *w, strbuf *b); /* what the class needs above it */
void write_harmless(const char *s, strbuf *b);  /* text that somebody else chose, for a comment */
clv_status check_symbols(const plan *p);
bool is_used(const writer *w, value_id v);                       /* the source needs a name for it */
void write_target(writer *w, const arg *result, strbuf *b);      /* its name; _ where nothing uses it */
clv_status fail_node(const writer *w, node_id n, clv_status st); /* the failure, with the node that it is about */
/* An input of the view, and which of its sizes, that has symbol s; false: no input shows it. */
bool symbol_shown(const writer *w, symbol_id s, value_id *input, uint32_t *dim);
/* "x.shape[0] // 2": symbol s from that size, of the value called `name`. */
void put_symbol_from(const plan *p, symbol_id s, const char *name, value_id v, uint32_t dim, strbuf *b);

/* layout.c: the line is taken. An empty one is nothing. */
void layout_line(strbuf *b, unsigned indent, strbuf *line);
bool layout_fits(unsigned indent, const strbuf *line);

/* declare.c */
clv_status write_init(writer *w, strbuf *b);
bool source_path_ok(const char *path);
void write_path(writer *w, const char *path, strbuf *b);                        /* self.layer1[0] */
void write_place(writer *w, value_id v, strbuf *b);                             /* self.layer1[0].weight */
clv_status write_store(writer *w, value_id target, const arg *what, strbuf *b); /* self.state = what */
void place_path(const writer *w, value_id v, strbuf *b);                        /* layer1.0.weight */

/* call.c */
symbol_id symbol_named(const plan *p, const char *s, size_t n); /* NONE: none */
typedef void (*symbol_fn)(void *ctx, symbol_id s, strbuf *b);
clv_status write_call(writer *w, node_id n, unsigned indent, strbuf *b); /* an expression */
clv_status write_arg(writer *w, const arg *a, strbuf *b);
void write_int(writer *w, expr_id e, strbuf *b);
void write_real(writer *w, real_id r, strbuf *b);
void put_expr(const plan *p, expr_id e, symbol_fn name, void *ctx, strbuf *b);
void write_dims(writer *w, uint32_t first, uint32_t n, strbuf *b); /* 2, 3 * B */
void write_float(double v, strbuf *b);
void write_complex(double re, double im, strbuf *b);
void write_string(const char *s, size_t n, strbuf *b);
void write_string_of(strbuf *text /* taken */, strbuf *b);

/* layer.c */
clv_status layers_find(writer *w, layers *out); /* *out is to be freed in any case */
void layers_free(layers *all);
clv_status write_layer_call(writer *w, node_id n, strbuf *b); /* a statement */
const char *path_inside(const char *name, const char *path);  /* the text behind "path."; NULL: it is not inside */
bool is_in_block(const plan *p, const layers *all, const char *path); /* it has the modules and tensors inside it */
uint32_t layer_of_scope(const layers *all, scope_id s);               /* NONE */
clv_status layer_slot_add(layers *all, value_id v, const char *name, size_t n);
/* A layer with the slots from `first` on; the text of its constructor is taken. */
clv_status layer_add(layers *all, scope_id s, uint32_t first, strbuf *text, uint32_t *out);

/* block.c */
bool block_is(const plan *p, node_id n);                      /* it calls a module as a whole */
clv_status blocks_find(writer *w, layers *all);               /* they are layers too */
clv_status write_block_call(writer *w, node_id n, strbuf *b); /* a statement */

/* stages.c */
bool stage_trains(const writer *w);             /* the model was captured in train mode */
const char *stage_device(const writer *w);      /* where it stands unless it is told otherwise */
bool is_elsewhere(const writer *w, value_id v); /* it was on another device than the model, and stays there */

/* config.c: def create_pipeline_configuration; w: of the stages, in order */
clv_status write_config(const writer *w, strbuf *b);
bool any_shared(const plan *p, const writer *stages, uint32_t n); /* several stages hold the same parameter */

/* output.c: def pack_outputs, from what the last stage returns. *object: a class of the model's is stood for; *whole:
   the output can be built. Symbols that it takes as arguments are marked in sizes (per symbol). */
clv_status write_pack(writer *last, bool *sizes, bool *object, bool *whole, strbuf *b);
void write_output_name(const writer *w, value_id v, strbuf *b);

/* Distinct values of the output tree, in its order. Caller frees with vec_free(&out->at). */
typedef struct value_list {
	VEC(value_id) at;
} value_list;
clv_status output_values(const plan *p, value_list *out);
