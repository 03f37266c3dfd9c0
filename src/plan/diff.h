/* The list of differences between two plans, written for people or as JSON.
 *
 * An item is one thing that was added, removed or changed; what changed about it are its facts, each with the text before
 * and after. Items stand in sections (inputs, nodes, …), sections in parts (one for each plan of a file). Everything is
 * counted; of each section the first `limit` items are kept. */
#pragma once

#include "base/arena.h"
#include "plan/plan.h"

#define DIFF_SECTIONS(X)                                                                                               \
	X(FILE, "file")                                                                                                    \
	X(ABOUT, "about")                                                                                                  \
	X(PLANS, "plans")                                                                                                  \
	X(MODEL, "model")                                                                                                  \
	X(SYMBOLS, "symbols")                                                                                              \
	X(INPUTS, "inputs")                                                                                                \
	X(OUTPUTS, "outputs")                                                                                              \
	X(MODULES, "modules")                                                                                              \
	X(PARAMETERS, "parameters")                                                                                        \
	X(BUFFERS, "buffers")                                                                                              \
	X(ATTRIBUTES, "attributes")                                                                                        \
	X(CONSTANTS, "constants")                                                                                          \
	X(OBJECTS, "objects")                                                                                              \
	X(NODES, "nodes")                                                                                                  \
	X(GUARDS, "guards")                                                                                                \
	X(REBINDS, "rebinds")                                                                                              \
	X(LINES, "source lines")                                                                                           \
	X(ORDER, "order")                                                                                                  \
	X(WEIGHTS, "weights")

typedef enum diff_section {
#define X(id, text) DIFF_##id,
	DIFF_SECTIONS(X)
#undef X
		DIFF_SECTION_COUNT
} diff_section;

typedef enum diff_change { DIFF_ADDED, DIFF_REMOVED, DIFF_CHANGED, DIFF_SAME, DIFF_CHANGE_COUNT } diff_change;

/* Elements of two tensors of the same shape. */
typedef struct diff_data {
	uint64_t elements, differ;
	uint64_t nans;     /* that are nan on one side alone */
	double largest;    /* |before - after| of the others; infinite where one of them is */
	bool has_numbers;  /* false: of a type that is only compared bit by bit */
	bool has_elements; /* false: only digests were compared */
} diff_data;

typedef struct diff_fact {
	const char *what, *before, *after; /* before or after NULL: it is not there */
	const diff_data *data;             /* of the fact "data", else NULL */
} diff_fact;

typedef struct diff_item {
	uint32_t part;
	uint8_t section, change;
	const char *name;
	uint32_t first, n; /* facts */
} diff_item;

typedef struct diff_part {
	const char *name;
	uint64_t count[DIFF_SECTION_COUNT][DIFF_CHANGE_COUNT];
} diff_part;

/* Starts as all zero bytes but for the limit; diff_free releases it. */
typedef struct diff {
	uint32_t limit; /* 0: none */
	arena arena;
	VEC(diff_item) items;
	VEC(diff_fact) facts;
	VEC(diff_part) parts;
	diff_section section; /* of the item that is open */
	uint32_t first;       /* its facts */
	bool changed;         /* it has one, perhaps not kept */
	strbuf before, after, name;
} diff;

/* diff_list.c. An item: diff_open, facts, diff_close; or diff_one for what is on one side alone. */
clv_status diff_part_add(diff *d, const char *name); /* what follows belongs to it */
void diff_open(diff *d, diff_section s);
/* Two texts of one thing are written into d->before and d->after, then compared: a fact if they differ. Both are empty
   after. `prefix` goes before `what` ("result 1 "). */
void diff_start(diff *d);
clv_status diff_compare(diff *d, const char *prefix, const char *what);
clv_status diff_fact_add(diff *d, const char *what, const char *before, const char *after, const diff_data *data);
bool diff_pending(const diff *d);                            /* the open item has a fact, and a name will be needed */
clv_status diff_close(diff *d);                              /* d->name is its name, where one is needed */
clv_status diff_one(diff *d, diff_section s, diff_change c); /* d->name and the text in d->after */
bool diff_any(const diff *d);
void diff_free(diff *d);

/* Empty where nothing differs. */
void diff_print(const diff *d, strbuf *b);
void diff_print_json(const diff *d, strbuf *b);

/* diff_match.c. Which node of b does what a node of a does. */
typedef enum pairs_kind {
	PAIRS_SURE, /* the same operator of the same module */
	PAIRS_NEAR, /* also what a person would call the same, where a model was changed */
} pairs_kind;

typedef struct node_pairs {
	node_id *to_b, *to_a; /* NONE: there is none */
	bool *moved;          /* per node of a: it goes with one that stands elsewhere */
} node_pairs;

clv_status node_pairs_new(const plan *a, const plan *b, pairs_kind kind, node_pairs *out);
void node_pairs_free(node_pairs *m);

/* Arguments as text, with values written by f. */
typedef void (*value_text)(const void *ctx, value_id v, strbuf *b);
void args_text(const plan *p, uint32_t first, uint32_t n, value_text f, const void *ctx, strbuf *b);

/* diff.c. Compares two plans that verify, into the last part. Where data goes with the plans, `constant` adds what
   differs in that of two constants to the open item. */
typedef struct diff_hooks {
	clv_status (*constant)(void *ctx, diff *d, value_id a, value_id b);
	void *ctx;
} diff_hooks;

clv_status plan_diff(diff *d, const plan *a, const plan *b, const diff_hooks *hooks /* or NULL */);
