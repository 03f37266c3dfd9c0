/* Finds numbers that a forward reads from its data, and makes symbols of them.
 * Numbers that a forward reads from its data, seen in records on several data: each that moves becomes a symbol of its
 * own, unless those before explain it. Then all other numbers of the streams can be fitted over sizes and data alike,
 * and replay reads the symbols live. Numbers that it reads from its own state (counters) are recorded as tensors
 * instead: see stream_number. */
#include "capture/capture.h"

#include <stdio.h>
#include <string.h>

#include "plan/fit.h"

enum { ENOUGH_VALUES = 4, SYMBOLS_MAX = 16 };

typedef struct search {
	const stream *const *streams;
	uint32_t n;        /* streams */
	plan *p;           /* scratch: has the symbols found so far */
	VEC(int64_t) rows; /* n rows of p->symbols.n */
	int64_t *y;        /* scratch: one number per stream */
} search;

/* ---- what follows the inputs --------------------------------------------------------------------------------------- */

/* Per tensor; what is on the memory of one that moves does so too. */
typedef struct motion {
	const stream *s;
	bool *tensors, *storages;
	uint32_t nstorages;
} motion;

static void set_moving(motion *m, uint32_t t)
{
	uint32_t storage = m->s->tensors.at[t].storage;
	m->tensors[t] = true;
	if (storage != NONE)
		m->storages[storage] = true;
}

static bool any_moves(const motion *m, const br_arg *args, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_LIST && any_moves(m, args[i].u.list.at, args[i].u.list.n))
			return true;
		if (args[i].kind != BR_TENSOR)
			continue;
		uint32_t storage = m->s->tensors.at[args[i].u.id].storage;
		if (m->tensors[args[i].u.id] || (storage != NONE && m->storages[storage]))
			return true;
	}
	return false;
}

static void move_results(motion *m, const br_arg *args, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (args[i].kind == BR_LIST)
			move_results(m, args[i].u.list.at, args[i].u.list.n);
		else if (args[i].kind == BR_TENSOR)
			set_moving(m, args[i].u.id);
}

static bool reads_number(const stream_op *o)
{
	for (uint32_t k = 0; k < o->nresults; k++)
		if (o->results[k].kind == BR_INT || o->results[k].kind == BR_FLOAT)
			return true;
	return false;
}

/* It gives a number, or a tensor whose shape it finds in the data. */
static bool reads_data(const stream_op *o)
{
	for (uint32_t k = 0; k < o->nresults; k++)
		if (o->flags & BR_DYNAMIC && (o->results[k].kind == BR_TENSOR || o->results[k].kind == BR_LIST))
			return true;
	return reads_number(o);
}

/* Something that follows what is marked is read. */
static bool find_read(motion *m)
{
	const stream *s = m->s;
	bool host = false;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		bool follows = host || o->label || (o->flags & BR_RANDOM) || any_moves(m, o->args, o->nargs);
		if (follows && reads_data(o))
			return true;
		if (!follows)
			continue;
		host |= o->op_id == OP_cleave_guard_equal; /* Python has the data: anything may be made of it */
		move_results(m, o->results, o->nresults);
		for (uint32_t k = 0; k < o->nwrites; k++)
			set_moving(m, o->writes[k]);
	}
	return false;
}

static void motion_free(motion *m)
{
	mem_free(m->tensors);
	mem_free(m->storages);
}

static clv_status motion_new(const stream *s, motion *m)
{
	*m = (motion){.s = s, .tensors = mem_alloc((s->tensors.n + 1) * sizeof *m->tensors)};
	m->nstorages = stream_storages(s);
	m->storages = mem_alloc((m->nstorages + 1) * sizeof *m->storages);
	if (m->tensors && m->storages)
		return CLV_OK;
	motion_free(m);
	return fail_nomem();
}

clv_status stream_reads_data(const stream *s, bool *out)
{
	motion m;
	TRY(motion_new(s, &m));
	for (uint32_t i = 0; i < s->inputs.n; i++)
		set_moving(&m, s->inputs.at[i]);
	*out = find_read(&m);
	motion_free(&m);
	return CLV_OK;
}

/* ---- what follows the model's own state ------------------------------------------------------------------------------ */

/* Marks the module tensors that the forward writes or re-binds: the next call finds others. */
static bool mark_changed(motion *m, bool *changed)
{
	const stream *s = m->s;
	bool any = false;
	for (uint32_t i = 0; i < s->ops.n; i++)
		for (uint32_t k = 0; k < s->ops.at[i].nwrites; k++) {
			uint32_t storage = s->tensors.at[s->ops.at[i].writes[k]].storage;
			if (storage != NONE)
				m->storages[storage] = true;
		}
	for (uint32_t i = 0; i < s->states.n; i++) {
		uint32_t storage = s->tensors.at[s->states.at[i].tensor].storage;
		changed[i] = storage != NONE && m->storages[storage];
	}
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		changed[s->rebinds.at[i].state] = true;
	memset(m->storages, 0, m->nstorages * sizeof *m->storages);
	for (uint32_t i = 0; i < s->states.n; i++) {
		any |= changed[i];
		if (changed[i])
			set_moving(m, s->states.at[i].tensor);
	}
	return any;
}

static bool number_follows(motion *m)
{
	const stream *s = m->s;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		if (!any_moves(m, o->args, o->nargs))
			continue;
		if (reads_number(o))
			return true;
		move_results(m, o->results, o->nresults);
		for (uint32_t k = 0; k < o->nwrites; k++)
			set_moving(m, o->writes[k]);
	}
	return false;
}

clv_status stream_counters(const stream *s, bool *counters)
{
	motion m;
	TRY(motion_new(s, &m));
	if (!mark_changed(&m, counters) || !number_follows(&m))
		memset(counters, 0, s->states.n * sizeof *counters);
	motion_free(&m);
	return CLV_OK;
}

/* ---- numbers as tensors ------------------------------------------------------------------------------------------------ */

static bool any_number(const stream *s, const br_arg *args, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if ((args[i].kind == BR_TENSOR && s->tensors.at[args[i].u.id].number) ||
		    (args[i].kind == BR_LIST && any_number(s, args[i].u.list.at, args[i].u.list.n)))
			return true;
	return false;
}

bool stream_reads_number(const stream *s, const stream_op *o)
{
	return any_number(s, o->args, o->nargs);
}

/* Takes part in computing a number, or reads one. */
static bool is_about_numbers(const stream *s, const stream_op *o)
{
	return any_number(s, o->args, o->nargs) || any_number(s, o->results, o->nresults) ||
	       (op_rows[o->op_id].host && reads_number(o));
}

static const stream_op *next_call(const stream *s, uint32_t *at)
{
	while (*at < s->ops.n && is_about_numbers(s, &s->ops.at[*at]))
		++*at;
	return *at < s->ops.n ? &s->ops.at[(*at)++] : NULL;
}

/* Numbers too: computed by operators, they must be those that Python computes. */
static bool same_arg(const br_arg *x, const br_arg *y)
{
	if (x->kind != y->kind || x->kind == BR_TENSOR || x->kind == BR_OBJECT)
		return x->kind == y->kind;
	if (x->kind != BR_LIST)
		return br_arg_same(x, y);
	bool same = x->u.list.n == y->u.list.n;
	for (uint32_t i = 0; same && i < x->u.list.n; i++)
		same = same_arg(&x->u.list.at[i], &y->u.list.at[i]);
	return same;
}

bool stream_same_calls(const stream *a, const stream *b)
{
	for (uint32_t i = 0, k = 0;;) {
		const stream_op *x = next_call(a, &i), *y = next_call(b, &k);
		if (!x || !y)
			return x == y;
		if (strcmp(x->op, y->op) != 0 || x->nargs != y->nargs)
			return false;
		for (uint32_t j = 0; j < x->nargs; j++)
			if (!same_arg(&x->args[j], &y->args[j]))
				return false;
	}
}

/* ---- symbols ------------------------------------------------------------------------------------------------------- */

static uint32_t distinct(const int64_t *y, uint32_t n)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++) {
		bool seen = y[i] < 0; /* a symbol is never negative */
		for (uint32_t k = 0; k < i; k++)
			seen |= y[k] == y[i];
		count += !seen;
	}
	return count;
}

static clv_status add_column(search *q)
{
	uint32_t old = q->p->symbols.n, w = old + 1;
	char name[16];
	symbol_id s;
	VEC(int64_t) rows = {0};
	TRY(vec_reserve(&rows, (size_t)q->n * w));
	for (uint32_t i = 0; i < q->n; i++) {
		memcpy(rows.at + (size_t)i * w, vec_from(&q->rows, (size_t)i * old), old * sizeof *rows.at);
		rows.at[(size_t)i * w + old] = q->y[i];
	}
	rows.n = q->n * w;
	vec_free(&q->rows);
	q->rows.at = rows.at;
	q->rows.n = rows.n;
	q->rows.cap = rows.cap;
	snprintf(name, sizeof name, "s%u", old);
	return plan_symbol(q->p, name, 0, INT64_MAX, &s);
}

/* The number in q->y: known, explained, or a new symbol. */
static clv_status look_at(search *q)
{
	bool moves = false, negative = false;
	expr_id e;
	for (uint32_t i = 0; i < q->n; i++) {
		moves |= q->y[i] != q->y[0];
		negative |= q->y[i] < 0;
	}
	if (!moves)
		return CLV_OK;
	TRY(fit_int(q->p, &(fit_points){q->rows.at, q->n, q->p->symbols.n}, q->y, &e));
	if (e != NONE)
		return CLV_OK;
	if (negative || distinct(q->y, q->n) < ENOUGH_VALUES || q->p->symbols.n >= SYMBOLS_MAX)
		return fail(CLV_E_UNSUPPORTED, "a number read from data took too few values to tell which sizes depend on it");
	return add_column(q);
}

static clv_status look_at_sizes(search *q, uint32_t t)
{
	for (uint32_t d = 0; d < q->streams[0]->tensors.at[t].ndim; d++) {
		for (uint32_t i = 0; i < q->n; i++)
			q->y[i] = q->streams[i]->tensors.at[t].sizes[d];
		TRY(look_at(q));
	}
	return CLV_OK;
}

static clv_status look_at_op(search *q, uint32_t op)
{
	const stream_op *o = &q->streams[0]->ops.at[op];
	for (uint32_t k = 0; k < o->nresults; k++) {
		const br_arg *r = &o->results[k];
		if (r->kind == BR_TENSOR && o->flags & BR_DYNAMIC)
			TRY(look_at_sizes(q, r->u.id));
		for (uint32_t e = 0; r->kind == BR_LIST && o->flags & BR_DYNAMIC && e < r->u.list.n; e++)
			if (r->u.list.at[e].kind == BR_TENSOR)
				TRY(look_at_sizes(q, r->u.list.at[e].u.id));
		if (r->kind != BR_INT || stream_reads_number(q->streams[0], o))
			continue;
		for (uint32_t i = 0; i < q->n; i++)
			q->y[i] = q->streams[i]->ops.at[op].results[k].u.i;
		TRY(look_at(q));
	}
	return CLV_OK;
}

static clv_status start_search(search *q, const int64_t *points, uint32_t nsymbols)
{
	symbol_id s;
	char name[16];
	TRY(plan_new(&q->p));
	for (uint32_t i = 0; i < nsymbols; i++) {
		snprintf(name, sizeof name, "s%u", i);
		TRY(plan_symbol(q->p, name, 0, INT64_MAX, &s));
	}
	TRY(vec_reserve(&q->rows, (size_t)q->n * nsymbols));
	for (uint32_t i = 0; i < q->n * nsymbols; i++)
		TRY(vec_push(&q->rows, points[i]));
	q->y = mem_alloc(q->n * sizeof *q->y);
	return q->y ? CLV_OK : fail_nomem();
}

clv_status stream_data_points(const stream *const *streams, uint32_t n, const int64_t *points, uint32_t nsymbols,
                              int64_t **out, uint32_t *nall)
{
	search q = {.streams = streams, .n = n};
	clv_status st = start_search(&q, points, nsymbols);
	for (uint32_t i = 0; st == CLV_OK && i < streams[0]->ops.n; i++)
		st = look_at_op(&q, i);
	if (st == CLV_OK) {
		*nall = q.p->symbols.n;
		*out = q.rows.at;
	} else {
		vec_free(&q.rows);
	}
	mem_free(q.y);
	plan_free(q.p);
	return st;
}
