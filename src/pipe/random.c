/* Random numbers of methods: splitmix64, the same on every machine. */
#include "pipe/pipe.h"

uint64_t random_next(pipe_random *r)
{
	uint64_t z = r->s += 0x9E3779B97F4A7C15u;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

uint32_t pipe_random_below(pipe_random *r, uint32_t n)
{
	return (uint32_t)((random_next(r) >> 32) * n >> 32);
}
