/* A program outside of Cleave that reads a plan, walks it and lists where it can be cut. Written in what C11 and C++17 share. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "cleave-plan 1\n"
						   "model \"Outside\"\n"
						   "symbol B 1..8\n"
						   "input %0 f32[B,3] name=\"x\"\n"
						   "param @w f32[4,3]\n"
						   "%1 = aten::linear(%0, @w, none) -> f32[B,4]\n"
						   "%2 = aten::relu(%1) -> f32[B,4]\n"
						   "%3 = aten::sum(%2) -> f32[]\n"
						   "%4 = aten::neg(%3) -> f32[]\n"
						   "output %4\n";

static void must(clv_status status)
{
	if (status == CLV_OK)
		return;
	fprintf(stderr, "%s: %s\n", clv_status_name(status), clv_last_error());
	exit(1);
}

static void list(const clv_frontiers *frontiers)
{
	for (uint32_t i = 0; i < clv_frontiers_count(frontiers); i++) {
		clv_frontier f;
		char *bytes = NULL;
		f.size = sizeof f;
		must(clv_frontiers_get(frontiers, i, &f));
		must(clv_frontiers_bytes_text(frontiers, i, &bytes));
		printf("after %s: %s bytes, at the size asked for %lld\n", f.name, bytes, (long long)f.boundary_bytes);
		clv_free(bytes);
	}
}

static void walk(const clv_plan *plan)
{
	clv_graph *graph = NULL;
	must(clv_graph_create(plan, &graph));
	for (uint32_t i = 0; i < clv_plan_node_count(plan); i++) {
		clv_node node;
		clv_value result;
		node.size = sizeof node;
		result.size = sizeof result;
		must(clv_graph_node(graph, i, &node));
		must(clv_graph_value(graph, node.results[0], &result));
		printf("%s takes %u and gives %s, %s of %u dimensions\n", node.name, node.ninputs, result.label, result.dtype,
		       result.ndim);
	}
	clv_graph_free(graph);
}

int main(void)
{
	clv_sizes at_two;
	clv_objective objective = CLV_OBJECTIVE_INIT;
	const char *const names[] = {"B"};
	const int64_t sizes[] = {2};
	clv_plan *plan = NULL;
	clv_frontiers *frontiers = NULL;
	uint32_t at = 0;

	printf("%s\n", strcmp(clv_version(), CLV_VERSION) == 0 ? "library and header agree" : "library and header differ");
	must(clv_plan_parse(text, strlen(text), &plan));
	walk(plan);
	at_two.symbols = names;
	at_two.values = sizes;
	at_two.n = 1;
	must(clv_frontiers_create(plan, &at_two, &frontiers));
	list(frontiers);
	objective.minimize = "boundary_bytes";
	must(clv_frontiers_choose(frontiers, "auto", &objective, &at));
	printf("the fewest bytes: frontier %u\n", at);
	printf("no such place: %s\n", clv_status_name(clv_frontiers_choose(frontiers, "after:nowhere", NULL, &at)));
	clv_frontiers_free(frontiers);
	clv_plan_free(plan);
	return 0;
}
