/* Fuzz target: a text as a graph. The first byte chooses devices, links, schedule; what is read is partitioned. Nodes are
 * in an order, stages too, every device has a stage, no device is below the bound, and each text about it is what its
 * reader takes. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "pipe/pipe.h"
#include "must.h"

/* Methods are for graphs of people's models: what is larger only makes the fuzzer slow. */
enum { MOST_NODES = 64, MOST_K = 3 };

static void check_stages(const pipe_problem *pr, const pipe_partition *p)
{
	uint32_t used[MOST_K] = {0};
	for (uint32_t n = 0; n < pr->g->nodes.n; n++)
		for (uint32_t i = pr->g->succ_first[n]; i < pr->g->succ_first[n + 1]; i++) {
			MUST(pr->g->succ[i] > n);
			MUST(p->stage_of[n] <= p->stage_of[pr->g->succ[i]]);
		}
	for (uint32_t s = 0; s < p->nstages; s++)
		used[p->device_of[s]]++;
	for (uint32_t d = 0; d < pr->k; d++)
		MUST(used[d] > 0);
}

static void check_texts(const pipe_problem *pr, const pipe_partition *p, const pipe_score *score)
{
	strbuf page = STRBUF_INIT, line = STRBUF_INIT;
	MUST(partition_table(pr, p, score, &page) == CLV_OK);
	for (size_t i = 0; i < page.n; i++)
		MUST(page.at[i] == '\n' || ((unsigned char)page.at[i] >= 0x20 && page.at[i] != 0x7F));
	MUST(partition_json(pr, p, score, 0, &line) == CLV_OK);
	json_t *root = json_loadb(line.at, line.n, JSON_REJECT_DUPLICATES, NULL);
	MUST(root && json_array_size(json_object_get(root, "stages")) == p->nstages);
	json_decref(root);
	strbuf_free(&page);
	strbuf_free(&line);
}

static void partition_by(const pipe_problem *pr, const char *method)
{
	pipe_partition p;
	pipe_score score;
	if (pipe_partition_run(pr, method, &p, &score) != CLV_OK)
		return;
	check_stages(pr, &p);
	MUST(score.bottleneck_us >= score.lower_bound_us * (1 - 1e-9));
	check_texts(pr, &p, &score);
	score_free(&score);
	partition_free(&p);
}

static void partition_graph(const pipe_graph *g, uint8_t choice)
{
	const pipe_device devices[MOST_K] = {{1, choice & 0x80 ? 1 << 20 : 0}, {2, 0}, {1, choice & 0x80 ? 1000 : 0}};
	const double bandwidth[MOST_K * MOST_K] = {0, 1e9, 1e6, 1e8, 0, 1e9, 1, 1e3, 0};
	pipe_problem pr = {.g = g,
	                   .devices = devices,
	                   .k = 1 + (choice & 0xFu) % MOST_K,
	                   .bandwidth = choice & 0x40 ? bandwidth : NULL,
	                   .schedule = (pipe_schedule)((choice >> 4) % SCHEDULE_COUNT),
	                   .microbatches = 1 + choice % 5u,
	                   .recompute = choice & 1,
	                   .training = choice & 2,
	                   .param_copies = 2,
	                   .seed = choice};
	for (size_t i = 0; method_name(i); i++)
		partition_by(&pr, method_name(i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	pipe_graph g;
	if (size == 0 || graph_read((const char *)data + 1, size - 1, &g) != CLV_OK)
		return 0;
	if (g.nodes.n <= MOST_NODES)
		partition_graph(&g, data[0]);
	graph_free(&g);
	return 0;
}
