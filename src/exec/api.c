/* The part of the public interface that runs plans: programs bound to tensors. */
#include <string.h>

#include "base/options.h"
#include "exec/optimized.h"
#include "exec/program.h"

clv_status clv_program_create(const clv_plan *p, const clv_program_options *options, clv_program **out)
{
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_program_create: an argument is NULL");
	TRY(options_read(&o, sizeof o, options, "clv_program_options"));
	optimize_level level;
	TRY(optimize_level_read(o.optimize, &level));
	program_spec spec = {.first = o.first,
	                     .end = o.end ? o.end : p->nodes.n,
	                     .debug = o.debug,
	                     .inference = o.inference,
	                     .optimize = (uint8_t)level,
	                     .threads = o.threads};
	return program_new(p, &spec, out);
}

void clv_program_free(clv_program *g)
{
	program_free(g);
}

clv_status clv_program_bind(clv_program *g, const char *name, const clv_tensor *t)
{
	if (!g || !name || !t)
		return fail(CLV_E_INVALID, "clv_program_bind: an argument is NULL");
	for (uint32_t i = 0; i < g->v.externals.n; i++) {
		value_id v = g->v.externals.at[i];
		char *label;
		TRY(value_label_text(g->p, v, &label));
		bool same = !strcmp(label, name) || (label[0] == '@' && !strcmp(label + 1, name)) ||
		            !strcmp(plan_s(g->p, g->p->values.at[v].name), name);
		mem_free(label);
		if (!same)
			continue;
		br_tensor *own;
		TRY(br_of(t, &own));
		br_unref(g->bound[i]);
		g->bound[i] = br_ref(own);
		return CLV_OK;
	}
	return fail(CLV_E_NOT_FOUND, "the program reads nothing called %s", name);
}

uint32_t clv_program_input_count(const clv_program *g)
{
	return g ? g->v.inputs.n : 0;
}

uint32_t clv_program_output_count(const clv_program *g)
{
	return g ? g->outputs.n : 0;
}

clv_status clv_program_run(const clv_program *g, const clv_tensor *const *inputs, uint32_t ninputs,
                           clv_tensor **outputs, uint32_t noutputs)
{
	if (!g || (ninputs && !inputs) || (noutputs && !outputs))
		return fail(CLV_E_INVALID, "clv_program_run: an argument is NULL");
	if (ninputs != g->v.inputs.n || noutputs != g->outputs.n)
		return fail(CLV_E_INPUT, "the program takes %u inputs and gives %u outputs; the call has %u and %u",
		            g->v.inputs.n, g->outputs.n, ninputs, noutputs);
	br_tensor **room = mem_alloc((ninputs + noutputs + 1) * sizeof *room);
	clv_status st = room ? br_of_all(inputs, ninputs, room) : fail_nomem();
	if (st == CLV_OK)
		st = program_run(g, &(run_spec){.inputs = room, .externals = g->bound, .outputs = room + ninputs});
	if (st == CLV_OK)
		st = br_give_all(room + ninputs, noutputs, outputs);
	mem_free(room);
	return st;
}
