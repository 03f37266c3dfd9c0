/* Mixed pipes: more stages than devices, so that a device with time left over takes a second stage. */
#pragma once

#include "pipe/chain.h"

/* Looks for partitions with more stages than devices, the fewest first, until the bottleneck is within `gap` of
   `least`; what it finds is offered to the keeper. `order` is the topological order that it begins with. */
clv_status mixed_search(const pipe_problem *pr, const uint32_t *order, double least, double gap, keeper *kept);
