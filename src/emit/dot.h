/* A picture of a plan in the DOT language: written by dot.c, folded by dot_fold.c, labelled by dot_label.c.
 *
 * What is drawn are *vertices*: the inputs of the plan, then its units, then the output. A *unit* is one operation, or
 * neighbouring operations of one module. Units are ranges of the plan's order, so that edges between them never form a
 * circle, and none reaches over the cut. */
#pragma once

#include "base/arena.h"
#include "split/frontier.h"

typedef struct unit {
	node_id first, end;
	scope_id module; /* that is drawn; NONE: one operation */
	scope_id home;   /* its cluster; NONE: none */
	uint32_t next;   /* unit in the same cluster; NONE: the last */
} unit;

/* A module that is drawn as a frame around what it holds. */
typedef struct cluster {
	uint32_t first_unit, last_unit;
	scope_id first_child, last_child, next; /* clusters inside it, in order of appearance; the next in its parent */
	bool shown;
	bool side[SIDES]; /* holds units before, behind the cut */
} cluster;

typedef struct edge {
	uint32_t from, to; /* vertices */
} edge;

typedef struct drawing {
	const plan *p;
	clv_frontiers *f;
	clv_dot_options o;
	arena arena;      /* of the arrays below */
	bool operations;  /* detail: each operation is a unit */
	uint32_t *own;    /* per module: its own operations */
	uint32_t *inside; /* per module: operations of modules in it; 0: it is a leaf */
	scope_id *fold;   /* per module: the one that its operations are drawn as; NONE: each is a unit */
	scope_id *home;   /* per module: the cluster of what is directly in it; NONE: no cluster */
	uint32_t *level;  /* per module that is a cluster: clusters around it, and itself */
	VEC(unit) units;
	cluster *clusters; /* per module, and one more: the picture itself */
	VEC(edge) edges;
	uint32_t *noted; /* per value: the unit that noted it last (labels) */
} drawing;

static inline uint32_t vertex_of_unit(const drawing *d, uint32_t u)
{
	return d->p->inputs.n + u;
}

static inline uint32_t output_vertex(const drawing *d)
{
	return d->p->inputs.n + d->units.n;
}

static inline bool is_cut(const drawing *d)
{
	return d->o.frontier != CLV_NONE;
}

static inline enum side unit_side(const drawing *d, const unit *u)
{
	return u->first <= d->o.frontier ? PREFIX : SUFFIX;
}

/* Whether the value goes over the cut. */
static inline bool crosses_cut(const drawing *d, value_id v)
{
	node_id last = d->f->live.last[v];
	return is_cut(d) && can_cross(d->p, v) && last != NONE && value_born(d->p, v) <= d->o.frontier &&
	       d->o.frontier < last;
}

/* dot_fold.c: all but p, f and o; what it made is released by drawing_free, also on failure */
clv_status drawing_make(drawing *d);
void drawing_free(drawing *d);
bool unit_is_boundary(const drawing *d, const unit *u);

/* dot_label.c: text inside a DOT string "…" or an HTML-like label <…> */
void label_text(strbuf *b, const char *s);
void label_unit(drawing *d, uint32_t u, strbuf *b);
void label_input(const drawing *d, uint32_t i, strbuf *b);
void label_output(const drawing *d, strbuf *b);
void label_cluster(const drawing *d, scope_id s, strbuf *b);
void tooltip_unit(const drawing *d, const unit *u, strbuf *b);
clv_status label_title(const drawing *d, strbuf *b);

/* Colours: of a fill, of the line around it. */
typedef struct colours {
	const char *fill, *line;
} colours;

extern const colours prefix_colours, suffix_colours, boundary_colours, passthrough_colours;
