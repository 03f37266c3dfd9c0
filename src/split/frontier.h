/* Shared by this folder: the record of all frontiers of a plan. */
#pragma once

#include <pthread.h>

#include "file/narrow.h"
#include "plan/plan.h"

enum side { PREFIX, SUFFIX, SIDES };

typedef struct frontier {
	uint32_t tensors, passthrough;
	int64_t bytes;
	int64_t sent[ENC_COUNT]; /* bytes in a payload, by how its floats are compressed */
	double cost;             /* share of the work in the prefix */
	double flops[SIDES];     /* work */
	int64_t params[SIDES], param_bytes[SIDES], memory[SIDES];
	bool trainable;     /* the suffix reads a trainable parameter */
	const char *unsafe; /* static text or in `reasons` */
} frontier;

/* Which values cross at a position: every value lies at the few nodes of a binary tree over the positions that
   together are its interval, so that the answer costs what it is long. */
typedef struct crossing_entry {
	value_id v;
	uint32_t next; /* NONE: the last */
} crossing_entry;

typedef struct crossings {
	uint32_t n;     /* positions */
	uint32_t *head; /* per tree node, 2n of them */
	VEC(crossing_entry) entries;
} crossings;

/* Formulas of all positions, made when a second one is asked for: a caller that asks for two asks for all. */
typedef struct formula_table {
	pthread_mutex_t lock;
	bool asked;
	char **at; /* owned texts, NULL where frontiers_formulas gives none; NULL: not made yet */
} formula_table;

struct clv_frontiers {
	const plan *p;
	node_names *names;
	frontier *at; /* by position, p->nodes.n - 1 of them */
	uint32_t n;
	liveness live;
	double flops; /* of the whole plan */
	int64_t params, param_bytes, memory;
	int64_t input_bytes; /* of the inputs that are read */
	uint32_t inputs;     /* tensors among them */
	int64_t *syms;       /* size of every symbol */
	int64_t *sizes;      /* value of every expression */
	bool *defined;
	crossings cross;
	VEC(char *) reasons; /* owned texts */
	formula_table *formulas;
};

static inline node_id earlier(node_id a, node_id b)
{
	return a < b ? a : b;
}

/* frontier.c */
bool moves(const plan *p, value_id v);                    /* comes in or is made by a node: not the model's own */
bool can_cross(const plan *p, value_id v);                /* a tensor that moves */
bool can_be_sent(const value *x);                         /* a tensor that a payload can hold */
node_id value_born(const plan *p, value_id v);            /* first position after which it exists */
int64_t value_bytes_at(const clv_frontiers *f, value_id); /* INT64_MAX: too many, or not defined at these sizes */
clv_status choose_sizes(const plan *p, const clv_sizes *sizes, int64_t *syms); /* those of o; else the smallest */
void last_writers(const plan *p, node_id *writer /* per root, NONE before: last node that writes the storage */);

/* The formula of clv_frontiers_bytes_text for every frontier, in one walk and in order. NULL: it cannot be written down,
   or has more than FORMULA_TERMS terms. The text is gone after the call. */
enum { FORMULA_TERMS = 64 };
typedef clv_status (*formula_fn)(void *ctx, uint32_t i, const char *text);
clv_status frontiers_formulas(const clv_frontiers *f, formula_fn put, void *ctx);

/* reach.c: nodes that read the memory of an argument beyond its elements, where the memory may come over a cut */
typedef struct reach {
	node_id node;
	value_id v;    /* the argument */
	value_id from; /* first born of what can cross on its memory */
} reach;

typedef VEC(reach) reach_list;
clv_status find_reaches(const plan *p, reach_list *out /* empty; caller frees with vec_free, also on failure */);

/* match.c */
/* Per scope: on which sides of a cut before node `end` its nodes are, as bits 1 << PREFIX and 1 << SUFFIX. */
clv_status scope_sides(const plan *p, node_id end, uint8_t **out /* caller frees */);
/* The node of `to` after which it is cut where `from` is cut after node `at`. NONE: it has no such place. */
clv_status place_match(const plan *from, node_id at, const plan *to, node_id *out);
/* Marks the nodes of `to` that are before or after the same cut in `from`. */
clv_status sides_match(const plan *from, node_id at, const plan *to, bool *const must[SIDES] /* by node */);

/* exact.c: the exact cut that leaves each node on the side it has in `from`, which is cut after node `at` */
clv_status frontiers_exact_like(const clv_frontiers *f, const plan *from, node_id at, plan **plan_out,
                                uint32_t *position_out);

/* judge.c: sets `unsafe` of all frontiers */
clv_status frontiers_judge(clv_frontiers *f);

/* choose.c: marks the nodes that a module path or node name means; CLV_E_NOT_FOUND comes with the nearest names */
clv_status nodes_named(const clv_frontiers *f, const char *name, bool *marks /* by node */);

/* objective.c */
clv_status objective_read(const clv_objective *given, clv_objective *out); /* checked, defaults filled in */
double objective_value(const frontier *c, const clv_objective *o);         /* what minimize names */
bool objective_allows(const frontier *c, const clv_objective *o);          /* safe, and meets the constraints */
clv_status objective_explain(const clv_frontiers *f, uint32_t i, const clv_objective *o); /* what frontier i misses */
clv_status objective_unmet(const clv_frontiers *f, const clv_objective *o); /* why no frontier is allowed */
