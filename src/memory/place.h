/* Places for blocks of memory whose lives are known: blocks that live at the same time lie apart, others may share.
 *
 * The least that is needed is the largest sum of sizes that live at once. Reaching it is as hard as packing boxes;
 * a few greedy orders are tried, the best one stays, and for what models do it is mostly the bound itself. */
#pragma once

#include "base/mem.h"

#define PLACE_NONE UINT64_MAX

typedef struct place_block {
	uint64_t size;
	uint32_t born, died; /* lives from event `born` up to event `died`, which is later */
	uint64_t offset;     /* result; PLACE_NONE: there were too many blocks to place any */
} place_block;

/* Fills offsets; *bytes: where the last block ends; *bound: the most that lives at once. */
clv_status place_blocks(place_block *at, uint32_t n, uint64_t *bytes, uint64_t *bound);
