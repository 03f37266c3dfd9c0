/* The operator cleave::segment, which TorchScript programs call for the compiled segments of a traced model: a segment's
 * bytes become a runtime, and runs of it. The operator is there as soon as this library is loaded.
 *
 * A segment in a program from elsewhere is code of whoever made it: it runs where the user allows it, and where the user,
 * or this process, made it itself. The switch is a variable of the environment, since a process can hold two copies of this code
 * (Python's module and libcleave), of which one has the operator. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bridge/bridge.h"

static const char SWITCH[] = "CLEAVE_ALLOW_COMPILED";

static bool allowed(void)
{
	const char *text = getenv(SWITCH);
	return text && strcmp(text, "1") == 0;
}

static clv_status make_runtime(const void *data, size_t n, bool may_run, clv_runtime **out)
{
	clv_open_options open = CLV_OPEN_OPTIONS_INIT;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *a;
	open.check_data = true;
	o.unproven = true; /* which sizes are good is for the program around it to know */
	o.allow_compiled = may_run;
	o.sandbox = CLV_SANDBOX_OFF; /* the program around it runs here too, and can call all operators */
	TRY(clv_artifact_parse(data, n, &open, &a));
	clv_status st = clv_runtime_create(a, &o, out);
	clv_artifact_free(a);
	return st;
}

static clv_status open_segment(const void *data, size_t n, bool may_run, void **out, const char **reason)
{
	clv_segment_state s = {.size = sizeof s};
	clv_runtime *r;
	TRY(make_runtime(data, n, may_run, &r));
	*out = r;
	*reason = NULL;
	if (clv_runtime_segment_count(r) == 0)
		return CLV_OK;
	clv_status st = clv_runtime_segment(r, 0, &s);
	*reason = s.reason;
	if (st == CLV_OK && s.barred)
		*reason =
			"it is code of whoever made it, which runs where it is allowed: cleave.allow_compiled(True) in Python, "
			"CLEAVE_ALLOW_COMPILED=1 in the environment";
	if (st != CLV_OK)
		clv_runtime_free(r);
	return st;
}

static uint32_t noutputs(const void *opened)
{
	return clv_runtime_output_count(opened);
}

/* On room for tensors of the core. */
static clv_status run_core(const void *opened, br_tensor *const *inputs, uint32_t n, clv_tensor **room,
                           br_tensor **outputs)
{
	uint32_t nout = noutputs(opened);
	clv_tensor **out = room + n;
	for (uint32_t i = 0; i < n; i++)
		TRY(br_give(br_ref(inputs[i]), &room[i]));
	TRY(clv_runtime_run(opened, (const clv_tensor *const *)room, n, out, nout));
	for (uint32_t i = 0; i < nout; i++)
		TRY(br_of(out[i], &outputs[i]));
	for (uint32_t i = 0; i < nout; i++)
		outputs[i] = br_ref(outputs[i]);
	return CLV_OK;
}

static clv_status run_segment(const void *opened, br_tensor *const *inputs, uint32_t n, br_tensor **outputs)
{
	uint32_t all = n + noutputs(opened);
	clv_tensor **room = mem_alloc((all + 1) * sizeof *room);
	clv_status st = room ? run_core(opened, inputs, n, room, outputs) : fail_nomem();
	for (uint32_t i = 0; room && i < all; i++)
		clv_tensor_free(room[i]);
	mem_free(room);
	return st;
}

static void close_segment(void *opened)
{
	clv_runtime_free(opened);
}

static const br_segment_fns operator_fns = {allowed, open_segment, noutputs, run_segment, close_segment};

/* A failure shows where the operator is used: it is not there. */
__attribute__((constructor)) static void register_operator(void)
{
	br_segment_register(&operator_fns);
}
