/* Kernels: loops over plain memory. They know nothing of plans; src/native/op_*.c calls them. One table per instruction set.
 *
 * Rules for all of them:
 * - The order of sums follows from the shape of one row (image, sequence), never from the number of rows, the place of a row
 *   or the number of threads: a row has the same bits in every batch.
 * - They read and write only inside the sizes and strides they are given, and allocate nothing.
 * - nan and inf behave as in torch. */
#ifndef NATIVE_KERNELS_H
#define NATIVE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "native/conv.h"
#include "native/window.h"

/* ---- threads: team.c ---------------------------------------------------------------------------------------------- */

/* Threads that share the work of one call. Several runtimes use one team; a call that finds it busy runs on its own thread. */
typedef struct team team;

/* Items first … end-1; thread is 0 … team_threads()-1, for scratch memory of its own. */
typedef void (*team_fn)(void *ctx, int64_t first, int64_t end, int thread);
/* Calls fn for all of 0 … items-1, each item once, at least `grain` items a call. team NULL: on this thread, as thread 0. So
   does a team that is busy, also with the very job that asks. */
void team_run(team *t, int64_t items, int64_t grain, team_fn fn, void *ctx);
int team_threads(const team *t); /* 1 for NULL */

/* ---- steps of chains: loops.c, simd/loops.c ---------------------------------------------------------------------------- */

typedef enum map_fn {
#define FN(name, ...) MAP_##name,
#include "native/functions.def"
	MAP_COUNT
} map_fn;
/* ---- moves: move.c, simd/move.c ------------------------------------------------------------------------------------- */

enum { MOVE_DIMS = 16 };

/* Elements of 1, 2, 4 or 8 bytes copied from one memory to another, which do not overlap. Strides are in bytes; those of `from`
   may be 0 or negative. move_ready() puts dimensions in the best order and says how many items threads may share. */
typedef struct move_dim {
	int64_t size, from, to;
} move_dim;
typedef enum move_kind { MOVE_ROWS, MOVE_SPREAD, MOVE_TURN, MOVE_EACH } move_kind;
typedef struct move {
	uint32_t ndim, bytes; /* bytes: of an element */
	int64_t from, to;     /* the first element on either side, in bytes */
	move_dim d[MOVE_DIMS];
	/* Set by move_ready: the last two dimensions are a plane, of which an item is `cut` rows, or `cut` elements of its one row.
	   TURN: rows of the plane lie behind one another in `from`, its columns in `to`. */
	move_kind kind;
	int64_t items, cuts, cut;
	int64_t grain; /* items that are worth a thread */
} move;
void move_ready(move *m);

enum chain_ops {
	CHAIN_BEFORE = MAP_COUNT - 1, /* functions of one number are steps, too */
#define OP1(name, ...) CHAIN_##name,
#define OP2(name, ...) CHAIN_##name,
#define OP3(name, ...) CHAIN_##name,
#define TEST1(name, ...) CHAIN_##name,
#define TEST2(name, ...) CHAIN_##name,
#include "native/chain.def"
	CHAIN_WHERE, /* of flags and two others */
	CHAIN_CAST,
	CHAIN_OPS
};

/* to[i] = op(a[i], b[i], c[i]); `to` may be one of them. *bad is set by an integer division by zero. */
typedef void (*chain_loop)(void *to, const void *a, const void *b, const void *c, int64_t n, int *bad);

/* ---- matrix products: simd/gemm.c; with threads and batches: product.h -------------------------------------------- */

/* C = A·B + bias for a block of C. Strides in elements.
   B is panels of gemm_cols columns. A packed one has rows without gaps: b_k = gemm_cols, b_panel = K * gemm_cols; if the last
   panel has no more columns than half of that, its rows are gemm_cols / 2 long (b_k_half). Columns that are not there are 0.
   Rows of a plain matrix serve as panels too (b_panel = gemm_cols, b_k = b_k_half = stride of rows) where n is a multiple of
   gemm_cols / 2. */
typedef struct gemm_block {
	int64_t m, n, k;
	panel_type type; /* of B; a plain matrix is f32 */
	bool fetch;      /* panels are read one after the other, from memory: those behind these are fetched meanwhile */
	const void *b;
	const float *a, *bias; /* bias: per column, or NULL */
	float *c;
	int64_t a_row, a_k, b_k, b_k_half, b_panel, c_row;
} gemm_block;

/* ---- rows and columns: simd/reduce.c, simd/norm.c --------------------------------------------------------------------- */

typedef enum reduce_op { REDUCE_SUM, REDUCE_SQUARES, REDUCE_MAGNITUDES, REDUCE_MAX, REDUCE_MIN } reduce_op;

/* ---- attention: simd/attention.c; whole: attention.h ------------------------------------------------------------------ */

typedef enum mask_kind {
	MASK_NONE,
	MASK_FLOATS,
	MASK_FLAGS
} mask_kind; /* floats are added; flags that are false hide */

typedef struct attention_rows {
	int64_t rows, n, pitch; /* scores of a row, floats from one row to the next */
	int64_t sees, more;     /* scores from `sees` on are hidden; of every further row, from so many more */
	float scale;
	mask_kind kind;
	const void *mask;
	int64_t mask_row, mask_col; /* strides */
} attention_rows;

/* ---- the table ------------------------------------------------------------------------------------------------------ */

typedef struct native_kernels {
	int vector; /* floats in a vector */
	/* y = fn(x), fn of functions.def; x and y may be the same. */
	void (*map)(map_fn fn, const float *x, float *y, int64_t n);
	chain_loop (*loop)(unsigned op); /* on floats */

	/* Rows of n floats one behind the other, n > 0 for the largest and smallest; n rows of `cols` floats, `pitch` apart. */
	void (*reduce_rows)(reduce_op op, const float *x, int64_t rows, int64_t n, float *out);
	void (*reduce_columns)(reduce_op op, const float *x, int64_t n, int64_t pitch, int64_t cols, float *out);
	/* x and y may be the same. n > 0. */
	void (*softmax_rows)(const float *x, float *y, int64_t rows, int64_t n, bool log);
	void (*softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t cols, bool log);
	/* The mean of a row (0 for rms) and 1 / sqrt(mean square of what deviates from it + eps). */
	void (*row_statistics)(const float *x, int64_t n, bool rms, float eps, float *mean, float *scale);
	/* (x - mean) * scale, times weight and plus bias where they are not NULL. */
	void (*normalize)(const float *x, float *y, int64_t n, float mean, float scale, const float *weight,
	                  const float *bias);
	/* (x - mean) * scale + shift */
	void (*scale_shift)(const float *x, float *y, int64_t n, float mean, float scale, float shift);
	void (*conv)(team *t, const conv_call *call); /* by call->c->way */
	void (*pool)(team *t, const pool *p, const float *in, float *out);
	void (*resize)(team *t, const resize *r, const float *in, float *out);
	int gemm_rows, gemm_cols;
	void (*gemm)(const gemm_block *g);
	/* Packs K×N elements into panels of `cols` columns, whatever the set's own are. */
	void (*gemm_pack)(int cols, int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_n, float *out);
	/* Scores become exp(score - the largest one of the row); scales: what makes the sum of each row 1, or 0 if all are hidden.
	   Rows have memory for a multiple of 16 scores. */
	void (*attention_rows)(float *scores, const attention_rows *r, float *scales);
	/* Items first … end-1. */
	void (*move)(const move *m, const char *from, char *to, int64_t first, int64_t end);
} native_kernels;

/* isa.c. The table for this machine: the best set that it has. CLEAVE_ISA (base, avx2, avx512, neon) asks for a lesser one. */
const native_kernels *native_kernels_here(void);
/* CLEAVE_ISA names none, or a set of this machine. Checked where a program is made: nothing falls back silently. */
clv_status native_isa_check(void);
/* Packing for another machine: gives the table the layouts of that set, and *name its name. CLV_E_INVALID: there is none. */
clv_status native_lay_for(const char *isa, const char **name, native_kernels *k);
/* By name, for tests; NULL: not compiled in, or this machine cannot run it. */
const native_kernels *native_kernels_named(const char *isa);
const char *native_isa_name(const native_kernels *k);

#endif
