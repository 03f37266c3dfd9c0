/* How many micro-batches a stage holds at once, by the rule of the schedule.
 *
 * timeline_new never has more in flight than this says: memory is reckoned with these numbers. */
#include "pipe/pipe.h"

const char *const pipe_schedule_names[SCHEDULE_COUNT] = {"gpipe", "1f1b", "interleaved"};

bool placement_loops(const uint32_t *device_of, uint32_t nstages, uint32_t k)
{
	for (uint32_t s = 0; s < nstages; s++)
		if (device_of[s] != s % k)
			return false;
	return nstages % k == 0;
}

bool rounds_of(uint32_t microbatches, uint32_t k, uint32_t *per_round)
{
	uint32_t rounds = microbatches / k ? microbatches / k : 1;
	*per_round = microbatches / rounds;
	return microbatches % rounds == 0;
}

static uint32_t least(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

uint32_t interleaved_warmup(uint32_t k, uint32_t chunks, uint32_t per_round, uint32_t microbatches, uint32_t device)
{
	return least((uint64_t)(chunks - 1) * per_round + 2 * (uint64_t)(k - 1 - device), (uint64_t)microbatches * chunks);
}

/* Of the first `steps` steps, those of the chunk: steps take `per_round` micro-batches of each chunk in turn. */
static uint64_t steps_of_chunk(uint64_t steps, uint32_t chunk, uint32_t chunks, uint32_t per_round)
{
	uint64_t period = (uint64_t)chunks * per_round, rest = steps % period, before = (uint64_t)chunk * per_round;
	return steps / period * per_round + (rest <= before ? 0 : least(rest - before, per_round));
}

/* A device forwards its warm-up, and then step w + j before backward step j. What a chunk holds grows while steps of its
   forward come and shrinks with those of its backward, in periods: the most is where the first backward begins, or where
   a round of forwards ends. */
static uint32_t interleaved_in_flight(const pipe_problem *pr, uint32_t chunks, uint32_t per_round, uint32_t stage)
{
	uint32_t k = pr->k, device = stage % k, chunk = stage / k, back = chunks - 1 - chunk;
	uint64_t warmup = interleaved_warmup(k, chunks, per_round, pr->microbatches, device);
	uint64_t period = (uint64_t)chunks * per_round, end = (uint64_t)(chunk + 1) * per_round, most = 0;
	uint64_t round_end = (end + period - (warmup + 1) % period) % period; /* j so that w + j + 1 ends a round */
	const uint64_t at[2] = {(uint64_t)back * per_round, round_end};
	for (int i = 0; i < 2; i++) {
		uint64_t held = steps_of_chunk(warmup + at[i] + 1, chunk, chunks, per_round) -
		                steps_of_chunk(at[i], back, chunks, per_round);
		most = held > most ? held : most;
	}
	return least(most, pr->microbatches);
}

void schedule_in_flight(const pipe_problem *pr, const uint32_t *device_of, uint32_t nstages, uint32_t *out)
{
	uint32_t per_round, m = pr->microbatches;
	bool loops = pr->schedule == SCHEDULE_INTERLEAVED && rounds_of(m, pr->k, &per_round) &&
	             placement_loops(device_of, nstages, pr->k);
	for (uint32_t s = 0; s < nstages; s++) {
		if (!pr->training)
			out[s] = 1;
		else if (pr->schedule == SCHEDULE_GPIPE)
			out[s] = m;
		else
			out[s] = loops ? interleaved_in_flight(pr, nstages / pr->k, per_round, s) : least(m, nstages - s);
	}
}
