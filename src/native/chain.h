/* Chains: small programs of elementwise steps over tensors with strides, evaluated tile by tile in the first cache.
 *
 * Registers are operands in memory (broadcast where a stride is 0), numbers, and temporary results; a step makes one of up to
 * three. chain_finish collapses dimensions and places what needs a buffer; then the chain is run over all elements, or over
 * blocks of rows and columns as the epilogue of a product. A chain of whole rows may have steps along them (rows.h): its last
 * dimension stays alone, a tile is a row or several, and registers may hold a number per row. */
#ifndef NATIVE_CHAIN_H
#define NATIVE_CHAIN_H

#include "native/kernels.h"

typedef enum number_type {
	NUM_F32,
	NUM_F64,
	NUM_I64,
	NUM_I32,
	NUM_I16,
	NUM_I8,
	NUM_U8,
	NUM_BOOL,
	NUM_COUNT
} number_type;

static inline size_t number_bytes(number_type t)
{
	static const uint8_t bytes[NUM_COUNT] = {4, 8, 8, 4, 2, 1, 1, 1};
	return bytes[t];
}

enum { CHAIN_DIMS = 8, CHAIN_REGS = 64, CHAIN_TILE = 512, CHAIN_MEMORY = 64 << 10, CHAIN_ROOM = 1 << 20 };

typedef enum chain_kind { REG_INPUT, REG_OUTPUT, REG_NUMBER, REG_TEMP } chain_kind;

typedef struct chain_reg {
	uint8_t kind, type;
	uint8_t buffer;             /* chain_finish */
	bool narrow;                /* of a chain of whole rows: one element per row */
	bool uniform;               /* chain_finish: row r is at r * row_stride */
	int64_t row_stride;         /* likewise */
	int64_t stride[CHAIN_DIMS]; /* INPUT, OUTPUT: in elements */
	union {
		double f;
		int64_t i; /* of integers and flags */
	} number;
} chain_reg;

typedef struct chain_step {
	uint8_t op, type, to; /* `to`: what CAST makes */
	uint8_t out, a, b, c; /* registers */
	uint8_t given;        /* of a norm: bit 0: b is there; 1: c */
	double number;        /* of steps along rows */
	chain_loop run;       /* chain_finish */
} chain_step;

typedef struct chain {
	uint8_t ndim, nregs, nsteps, nbuffers;
	bool whole;   /* tiles are whole rows */
	int32_t tile; /* elements */
	int64_t size[CHAIN_DIMS];
	int64_t inner, rows, per; /* chain_finish: of the last dimension; of the others; rows in a tile */
	size_t each, room;        /* likewise: bytes of a buffer; of all, if they are no longer on the stack, else 0 */
	const native_kernels *k;
	chain_reg *regs; /* at most CHAIN_REGS */
	chain_step *steps;
} chain;

/* The loop of a step; NULL: there is none. */
chain_loop chain_find(const native_kernels *k, unsigned op, number_type type, number_type to);

void chain_swap(chain *c, unsigned d, unsigned e); /* dimensions, before chain_finish */
/* Collapses dimensions, in the order in which register `like` lies in memory (keep_last: the last one stays alone and last),
   and places buffers. False: there are too many. */
bool chain_finish(chain *c, const native_kernels *k, unsigned like, bool keep_last);
/* Tiles of the whole chain: items for team_run. */
int64_t chain_items(const chain *c);
/* data: per register, of inputs and outputs; memory: `room` bytes. False: an integer was divided by zero. */
bool chain_run(const chain *c, char *const *data, char *memory, int64_t first, int64_t end);

/* A part of the rows and columns, with one register in a block of its own: its element (row, col) is at `at`, rows are `pitch`
   elements apart. */
typedef struct chain_block {
	int64_t row, rows, col, cols, pitch;
	float *at;
	unsigned reg, out; /* that is read there, and that is written there */
} chain_block;
bool chain_run_block(const chain *c, char *const *data, const chain_block *b);

#endif
