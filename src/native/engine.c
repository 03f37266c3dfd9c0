/* The native engine as the runtime sees it. */
#include "native/program.h"
#include "native/team.h"

static clv_status lower(const engine_order *o, void **program)
{
	native_program *g;
	TRY(native_lower(o, &g));
	*program = g;
	return CLV_OK;
}

static clv_status bind(void *program, clv_tensor *const *externals)
{
	return native_bind(program, externals);
}

static clv_status run(void *program, const run_call *c, clv_tensor **outputs)
{
	return native_run(program, c, outputs);
}

static void release(void *program)
{
	native_program_free(program);
}

static clv_status accepts(const clv_runtime_options *o)
{
	if (o->threads < 0 || o->threads > TEAM_MOST)
		return fail(CLV_E_INVALID, "threads is 1 to %d, or 0 for as many as processors; not %d", TEAM_MOST, o->threads);
	return CLV_OK;
}

static void changed(void *program, value_id external, const char *why)
{
	(void)why;
	native_changed(program, external);
}

static uint32_t steps(const void *program)
{
	const native_program *g = program;
	return g->part[PARTS] - g->part[0];
}

/* Of the plan that was captured: the node that made the value, or the next one that did. */
static node_id step_node(const void *program, uint32_t i)
{
	return native_node_of(program, ((const native_program *)program)->part[0] + i);
}

static void count_packing(const void *program, clv_packing_state *out)
{
	native_packing(program, out);
}

static const engine_sandbox sandbox = {.program = "cleave", .variable = "CLEAVE_PROGRAM"};

const engine engine_native = {.name = "native",
                              .takes = native_takes,
                              .lower = lower,
                              .bind = bind,
                              .run = run,
                              .release = release,
                              .accepts = accepts,
                              .steps = steps,
                              .step = step_node,
                              .changed = changed,
                              .packing = count_packing,
                              .sandbox = &sandbox};
