/* Profiles: measured times and memory of blocks, and files of them. exec/profile_blocks.c measures.
 *
 * A profile has a key: texts that say what was measured (plan, device, version of torch, …). It serves where the key is
 * the same. Times are milliseconds, sizes are MB of 10^6 bytes. */
#pragma once

#include "base/strbuf.h"

/* Of several runs: the middle one, the quartiles around it, the ends. */
typedef struct spread {
	double median, low, high, least, most;
} spread;

/* The samples are sorted. n > 0 */
spread spread_of(double *samples, uint32_t n);

typedef struct block_profile {
	spread forward, backward; /* backward is all 0 where no gradients flow */
	double forward_memory;    /* most that was allocated at once, above what was there before */
	double backward_memory;   /* likewise, above what was there when the backward began */
	double held;              /* left behind by the forward: outputs, and what the backward needs */
	double size;              /* parameters, buffers and attributes that it reads */
	double input_size, output_size;
} block_profile;

typedef struct profile_row {
	char *name, *module; /* module: path of the smallest module that holds all of the block; owned */
	uint32_t end;        /* node after the last one of the block */
	block_profile at;
} profile_row;

typedef struct profile_text {
	char *name, *text; /* owned */
} profile_text;

typedef struct profile {
	VEC(profile_text) key; /* in the order of the file; no name twice */
	VEC(profile_row) rows; /* ends ascend */
	bool has_whole;
	block_profile whole; /* all blocks in one run */
} profile;

void profile_free(profile *f);

/* profile_read.c: hostile JSON; errors say where ("blocks[3].forward_time is negative"). profile_free after CLV_OK. */
clv_status profile_parse(const char *text, size_t n, profile *out);
clv_status profile_read(const char *path, profile *out);

/* profile_write.c: one line of JSON. The file is there whole or not at all. */
clv_status profile_print(const profile *f, strbuf *b);
clv_status profile_write(const profile *f, const char *path);
