/* Runs chains tile by tile. A tile is a part of one row, or several rows; operands that lie in memory as the tile does are used
 * there, others are gathered into buffers first, and scattered after. */
#include "native/chain.h"

#include <string.h>

#include "native/rows.h"

typedef struct run_state {
	const chain *c;
	char *const *data;
	const chain_block *block;     /* NULL: none */
	char *at[CHAIN_REGS];         /* per register: its elements of this tile */
	int64_t pitch[CHAIN_REGS];    /* from one of its rows to the next */
	int64_t filled[CHAIN_REGS];   /* rows of those that are the same in every row; 0: none */
	int64_t row, rows, col, cols; /* the tile */
	int bad;
	char *memory;
} run_state;

/* ---- geometry --------------------------------------------------------------------------------------------------------------- */

static bool in_memory(const chain_reg *r)
{
	return r->kind == REG_INPUT || r->kind == REG_OUTPUT;
}

static void drop_dimension(chain *c, unsigned d)
{
	c->ndim--;
	for (unsigned i = d; i < c->ndim; i++) {
		c->size[i] = c->size[i + 1];
		for (unsigned r = 0; r < c->nregs; r++)
			c->regs[r].stride[i] = c->regs[r].stride[i + 1];
	}
}

void chain_swap(chain *c, unsigned d, unsigned e)
{
	int64_t size = c->size[d];
	c->size[d] = c->size[e];
	c->size[e] = size;
	for (unsigned r = 0; r < c->nregs; r++) {
		int64_t stride = c->regs[r].stride[d];
		c->regs[r].stride[d] = c->regs[r].stride[e];
		c->regs[r].stride[e] = stride;
	}
}

static bool can_merge(const chain *c, unsigned d)
{
	for (unsigned r = 0; r < c->nregs; r++)
		if (in_memory(&c->regs[r]) && c->regs[r].stride[d] != c->regs[r].stride[d + 1] * c->size[d + 1])
			return false;
	return true;
}

static void merge(chain *c, unsigned d)
{
	int64_t size = c->size[d] * c->size[d + 1];
	drop_dimension(c, d);
	c->size[d] = size;
}

static void collapse(chain *c, unsigned like, bool keep_last)
{
	const chain_reg *out = &c->regs[like];
	unsigned fixed = keep_last ? 1 : 0;
	for (unsigned d = c->ndim; d-- > 0;)
		if (c->size[d] == 1 && d + fixed < c->ndim)
			drop_dimension(c, d);
	for (unsigned i = 1; i + fixed < c->ndim; i++)
		for (unsigned d = i; d > 0 && out->stride[d - 1] < out->stride[d]; d--)
			chain_swap(c, d - 1, d);
	for (unsigned d = c->ndim; d-- > 0;)
		while (d + 1 + fixed < c->ndim && can_merge(c, d))
			merge(c, d);
	if (c->ndim == 0) {
		c->ndim = 1;
		c->size[0] = 1;
		for (unsigned r = 0; r < c->nregs; r++)
			c->regs[r].stride[0] = 1;
	}
}

/* Whether rows are evenly apart: all dimensions but the last are like one. */
static void find_rows(const chain *c, chain_reg *r)
{
	unsigned outer = c->ndim - 1u;
	r->uniform = true;
	r->row_stride = outer ? r->stride[outer - 1] : 0;
	for (unsigned d = 0; d + 1 < outer; d++)
		r->uniform &= r->stride[d] == r->stride[d + 1] * c->size[d + 1];
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------ */

static bool step_reads(const chain_step *s, unsigned r)
{
	return s->a == r || s->b == r || s->c == r;
}

static unsigned last_read(const chain *c, unsigned r, unsigned from)
{
	unsigned last = from;
	for (unsigned i = from; i < c->nsteps; i++)
		if (step_reads(&c->steps[i], r))
			last = i;
	return last;
}

/* Temporary results share buffers; what is loaded before the first step or stored after the last has its own. */
static bool place(chain *c)
{
	unsigned until[CHAIN_REGS], n = 0;
	for (unsigned r = 0; r < c->nregs; r++) {
		if (c->regs[r].kind == REG_TEMP)
			continue;
		until[n] = c->nsteps;
		c->regs[r].buffer = (uint8_t)n++;
	}
	for (unsigned i = 0; i < c->nsteps; i++) {
		chain_reg *out = &c->regs[c->steps[i].out];
		if (out->kind != REG_TEMP)
			continue;
		unsigned b = 0;
		while (b < n && until[b] > i)
			b++;
		if (b == n && n++ == CHAIN_REGS)
			return false;
		until[b] = last_read(c, c->steps[i].out, i) + 1;
		out->buffer = (uint8_t)b;
	}
	c->nbuffers = (uint8_t)n;
	return true;
}

/* Tiles of as many elements as buffers have room for on the stack; or rows as long as they are. */
static bool size_tiles(chain *c, size_t widest)
{
	size_t room = CHAIN_MEMORY / (c->nbuffers * widest) / 64 * 64;
	if (!c->whole) {
		c->tile = room > CHAIN_TILE ? CHAIN_TILE : (int32_t)room;
		c->per = c->inner && c->inner < c->tile ? c->tile / c->inner : 1;
		c->each = (size_t)CHAIN_MEMORY / c->nbuffers / 64 * 64;
		return true;
	}
	if (c->inner < 1 || c->inner > CHAIN_ROOM)
		return false;
	c->per = c->inner < CHAIN_TILE ? CHAIN_TILE / c->inner : 1;
	c->tile = (int32_t)(c->per * c->inner);
	c->each = ((size_t)c->tile * widest + 63) / 64 * 64;
	c->room = c->nbuffers * c->each > CHAIN_MEMORY ? c->nbuffers * c->each : 0;
	return c->room <= CHAIN_ROOM;
}

bool chain_finish(chain *c, const native_kernels *k, unsigned like, bool keep_last)
{
	size_t widest = 1;
	c->k = k;
	collapse(c, like, keep_last || c->whole);
	c->inner = c->size[c->ndim - 1];
	c->rows = 1;
	for (unsigned d = 0; d + 1u < c->ndim; d++)
		c->rows *= c->size[d];
	for (unsigned r = 0; r < c->nregs; r++) {
		find_rows(c, &c->regs[r]);
		if (number_bytes((number_type)c->regs[r].type) > widest)
			widest = number_bytes((number_type)c->regs[r].type);
	}
	if (!place(c))
		return false;
	for (unsigned i = 0; i < c->nsteps; i++) {
		chain_step *s = &c->steps[i];
		if (s->op >= CHAIN_OPS)
			continue;
		s->run = chain_find(k, s->op, (number_type)s->type, (number_type)s->to);
		if (!s->run)
			return false;
	}
	return size_tiles(c, widest);
}

/* ---- loading and storing ------------------------------------------------------------------------------------------------------- */

#define STRIDED(type)                                                                                                  \
	for (int64_t i = 0; i < n; i++)                                                                                    \
	((type *)to)[i * to_stride] = ((const type *)from)[i * stride]

static void copy_strided(char *to, int64_t to_stride, const char *from, int64_t stride, int64_t n, size_t bytes)
{
	if (to_stride == 1 && stride == 1) {
		memcpy(to, from, (size_t)n * bytes);
		return;
	}
	switch (bytes) {
	case 1: STRIDED(uint8_t); break;
	case 2: STRIDED(uint16_t); break;
	case 4: STRIDED(uint32_t); break;
	default: STRIDED(uint64_t);
	}
}

/* Elements from the first of the tensor to the first of a row. */
static int64_t row_offset(const chain *c, const chain_reg *r, int64_t row)
{
	int64_t at = 0;
	if (r->uniform)
		return row * r->row_stride;
	for (unsigned d = c->ndim - 1u; d-- > 0; row /= c->size[d])
		at += row % c->size[d] * r->stride[d];
	return at;
}

/* Rows in memory: a tensor's, or those of the block. */
typedef struct row_place {
	char *first; /* of the first row of the tile, at its first column */
	int64_t pitch, stride;
	bool even; /* rows are `pitch` apart */
} row_place;

static int64_t columns(const run_state *s, unsigned r)
{
	return s->c->regs[r].narrow ? 1 : s->cols;
}

static row_place place_of(const run_state *s, unsigned r)
{
	const chain_reg *g = &s->c->regs[r];
	size_t bytes = number_bytes((number_type)g->type);
	const chain_block *b = s->block;
	if (b && (r == b->reg || r == b->out))
		return (row_place){(char *)(b->at + (s->row - b->row) * b->pitch + (s->col - b->col)), b->pitch, 1, true};
	int64_t stride = g->narrow ? 1 : g->stride[s->c->ndim - 1];
	int64_t at = row_offset(s->c, g, s->row) + s->col * stride;
	return (row_place){s->data[r] + at * (int64_t)bytes, g->row_stride, stride, g->uniform || s->rows == 1};
}

static char *row_at(const run_state *s, unsigned r, const row_place *p, int64_t i)
{
	const chain_reg *g = &s->c->regs[r];
	int64_t bytes = (int64_t)number_bytes((number_type)g->type);
	if (p->even)
		return p->first + i * p->pitch * bytes;
	return s->data[r] + (row_offset(s->c, g, s->row + i) + s->col * p->stride) * bytes;
}

enum { LONG_ROWS = 32 }; /* from so many columns on steps go row by row rather than rows into a buffer */

/* Steps work on it where it is. */
static bool stays(const run_state *s, unsigned r, const row_place *p)
{
	int64_t cols = columns(s, r);
	return (p->stride == 1 || cols == 1) && (s->rows == 1 || (p->even && (p->pitch == cols || cols >= LONG_ROWS)));
}

/* Few columns and many rows: column by column is faster. */
static void move_rows(run_state *s, unsigned r, const row_place *p, bool load)
{
	size_t bytes = number_bytes((number_type)s->c->regs[r].type);
	char *tile = s->at[r];
	int64_t cols = columns(s, r);
	bool by_columns = p->even && cols < 16 && s->rows > cols;
	int64_t n = by_columns ? cols : s->rows, step = by_columns ? cols : 1;
	for (int64_t i = 0; i < n; i++) {
		char *in_tile = tile + (by_columns ? i : i * cols) * (int64_t)bytes;
		char *in_tensor = by_columns ? p->first + i * p->stride * (int64_t)bytes : row_at(s, r, p, i);
		int64_t count = by_columns ? s->rows : cols, stride = by_columns ? p->pitch : p->stride;
		if (load)
			copy_strided(in_tile, step, in_tensor, stride, count, bytes);
		else
			copy_strided(in_tensor, stride, in_tile, step, count, bytes);
	}
}

static char *buffer(run_state *s, unsigned r)
{
	return s->memory + (size_t)s->c->regs[r].buffer * s->c->each;
}

/* The same in every row: loaded once for all tiles of these columns. */
static bool is_there(run_state *s, unsigned r)
{
	const chain_reg *g = &s->c->regs[r];
	if (!g->uniform || g->row_stride || (s->block && r == s->block->reg))
		return false;
	if (s->filled[r] >= s->rows)
		return true;
	s->filled[r] = s->rows;
	return false;
}

/* Finds its rows, or brings them into its buffer. */
static void load(run_state *s, unsigned r)
{
	const chain_reg *g = &s->c->regs[r];
	s->at[r] = buffer(s, r);
	s->pitch[r] = columns(s, r);
	if (!in_memory(g))
		return;
	row_place p = place_of(s, r);
	if (stays(s, r, &p)) {
		s->at[r] = p.first;
		s->pitch[r] = s->rows == 1 ? s->pitch[r] : p.pitch;
	} else if (g->kind == REG_INPUT && !is_there(s, r)) {
		move_rows(s, r, &p, true);
	}
}

static void store(run_state *s, unsigned r)
{
	if (s->c->regs[r].kind != REG_OUTPUT || s->at[r] != buffer(s, r))
		return;
	row_place p = place_of(s, r);
	move_rows(s, r, &p, false);
}

static bool is_dense(const run_state *s, unsigned r)
{
	return s->pitch[r] == columns(s, r);
}

static char *step_row(const run_state *s, unsigned r, int64_t i)
{
	return s->at[r] + i * s->pitch[r] * (int64_t)number_bytes((number_type)s->c->regs[r].type);
}

/* All rows at once where they have no gaps. Weights of norms are those of the first row. */
static void run_step(run_state *s, const chain_step *t)
{
	bool along = t->op >= CHAIN_OPS,
		 once = is_dense(s, t->out) && is_dense(s, t->a) && (along || (is_dense(s, t->b) && is_dense(s, t->c)));
	int64_t rows = once ? s->rows : 1, n = rows * columns(s, t->out);
	for (int64_t i = 0; i < s->rows; i += rows) {
		char *out = step_row(s, t->out, i), *a = step_row(s, t->a, i);
		if (along)
			row_step_run(s->c->k, t, out, a, s->at[t->b], s->at[t->c], rows, s->cols);
		else
			t->run(out, a, step_row(s, t->b, i), step_row(s, t->c, i), n, &s->bad);
	}
}

static void run_tile(run_state *s)
{
	const chain *c = s->c;
	for (unsigned r = 0; r < c->nregs; r++)
		load(s, r);
	for (unsigned i = 0; i < c->nsteps; i++)
		run_step(s, &c->steps[i]);
	for (unsigned r = 0; r < c->nregs; r++)
		store(s, r);
}

/* ---- runs ------------------------------------------------------------------------------------------------------------------------ */

static void fill_number(const chain_reg *g, char *at, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		switch ((number_type)g->type) {
		case NUM_F32: ((float *)at)[i] = (float)g->number.f; break;
		case NUM_F64: ((double *)at)[i] = g->number.f; break;
		case NUM_I64: ((int64_t *)at)[i] = g->number.i; break;
		case NUM_I32: ((int32_t *)at)[i] = (int32_t)g->number.i; break;
		case NUM_I16: ((int16_t *)at)[i] = (int16_t)g->number.i; break;
		case NUM_I8: ((int8_t *)at)[i] = (int8_t)g->number.i; break;
		case NUM_U8: ((uint8_t *)at)[i] = (uint8_t)g->number.i; break;
		default: ((uint8_t *)at)[i] = g->number.i != 0;
		}
	}
}

static void start(run_state *s, const chain *c, char *const *data, const chain_block *b, char *memory, int64_t most)
{
	s->c = c;
	s->memory = memory;
	s->data = data;
	s->block = b;
	s->bad = 0;
	for (unsigned r = 0; r < c->nregs; r++) {
		s->filled[r] = 0;
		s->at[r] = buffer(s, r);
		if (c->regs[r].kind == REG_NUMBER)
			fill_number(&c->regs[r], s->at[r], most < c->tile ? most : c->tile);
	}
}

static void set_columns(run_state *s, int64_t col, int64_t cols)
{
	if (s->col != col || s->cols != cols)
		memset(s->filled, 0, sizeof s->filled);
	s->col = col;
	s->cols = cols;
}

static int64_t chunks(const chain *c)
{
	return (c->inner + c->tile - 1) / c->tile;
}

int64_t chain_items(const chain *c)
{
	return c->inner && c->rows ? chunks(c) * ((c->rows + c->per - 1) / c->per) : 0;
}

bool chain_run(const chain *c, char *const *data, char *memory, int64_t first, int64_t end)
{
	run_state s;
	_Alignas(64) char own[CHAIN_MEMORY];
	int64_t across = chunks(c);
	s.col = s.cols = 0;
	start(&s, c, data, NULL, c->room ? memory : own, (end - first) * c->tile);
	for (int64_t i = first; i < end; i++) {
		int64_t col = i % across * c->tile;
		s.row = i / across * c->per;
		s.rows = c->rows - s.row < c->per ? c->rows - s.row : c->per;
		set_columns(&s, col, c->inner - col < c->tile ? c->inner - col : c->tile);
		run_tile(&s);
	}
	return !s.bad;
}

bool chain_run_block(const chain *c, char *const *data, const chain_block *b)
{
	run_state s;
	_Alignas(64) char own[CHAIN_MEMORY];
	s.col = s.cols = 0;
	start(&s, c, data, b, own, b->rows * b->cols);
	for (int64_t col = b->col; col < b->col + b->cols; col += s.cols) {
		int64_t left = b->col + b->cols - col;
		set_columns(&s, col, left < c->tile ? left : c->tile);
		int64_t per = c->tile / s.cols;
		for (s.row = b->row; s.row < b->row + b->rows; s.row += s.rows) {
			left = b->row + b->rows - s.row;
			s.rows = left < per ? left : per;
			run_tile(&s);
		}
	}
	return !s.bad;
}
