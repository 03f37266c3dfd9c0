/* The seam of engines: one that adds and multiplies f32 tensors of one shape runs files, without torch. It has the place in the
 * list of engines that the tape has in libcleave. */
#include "artifacts.h"

#include "runtime/engine.h"

/* ---- an engine --------------------------------------------------------------------------------------------------- */

typedef struct calculator {
	const plan *p;
	view v;
	value_ids outputs;
	clv_tensor *const *externals;
	uint32_t binds;
} calculator;

static int released, refuses_options;

static const char *takes(const plan *p, node_id n)
{
	const char *op = plan_s(p, p->nodes.at[n].op);
	return strcmp(op, "aten::add.Tensor") == 0 || strcmp(op, "aten::mul.Tensor") == 0 ? NULL : "it adds and multiplies";
}

static void release(void *program)
{
	calculator *c = program;
	if (!c)
		return;
	view_free(&c->v);
	vec_free(&c->outputs);
	mem_free(c);
	released++;
}

static clv_status lower(const engine_order *o, void **out)
{
	calculator *c = mem_alloc(sizeof *c);
	if (!c)
		return fails_with(CLV_E_NOMEM, "out of memory");
	c->p = o->of->p;
	clv_status st = view_range(c->p, o->first, o->end, &c->v);
	if (st == CLV_OK)
		st = view_gives(&c->v, o->of->whole, &c->outputs);
	if (st == CLV_OK)
		*out = c;
	else
		release(c);
	return st;
}

static clv_status bind(void *program, clv_tensor *const *externals)
{
	calculator *c = program;
	c->externals = externals;
	c->binds++;
	return CLV_OK;
}

static clv_status compute(const plan *p, node_id n, clv_tensor **values)
{
	const node *x = &p->nodes.at[n];
	const clv_tensor *a = values[p->args.at[x->args].u.v], *b = values[p->args.at[x->args + 1].u.v];
	bool add_them = strstr(plan_s(p, x->op), "add") != NULL;
	clv_tensor *y;
	TRY(tensor_new(&(tensor_form){.dtype = DT_F32, .ndim = a->m.ndim, .sizes = a->m.sizes}, &y));
	for (int64_t i = 0; i < tensor_numel(a); i++) {
		float l = ((const float *)a->data)[i], r = ((const float *)b->data)[i];
		((float *)y->data)[i] = add_them ? l + r : l * r;
	}
	values[p->args.at[x->results].u.v] = y;
	return CLV_OK;
}

static clv_status run_all(calculator *c, const run_call *call, clv_tensor **values, clv_tensor **outputs)
{
	TRY(inputs_check(&c->v, call->inputs, call->symbols));
	for (uint32_t i = 0; i < c->v.inputs.n; i++)
		values[c->v.inputs.at[i]] = tensor_ref(call->inputs[i]);
	for (uint32_t i = 0; i < c->v.externals.n; i++)
		values[c->v.externals.at[i]] = tensor_ref(c->externals[i]);
	for (uint32_t i = 0; i < c->v.nodes.n; i++)
		TRY(compute(c->p, c->v.nodes.at[i], values));
	for (uint32_t i = 0; i < c->outputs.n; i++)
		outputs[i] = tensor_ref(values[c->outputs.at[i]]);
	return CLV_OK;
}

static clv_status run(void *program, const run_call *call, clv_tensor **outputs)
{
	calculator *c = program;
	clv_tensor **values = mem_alloc((c->p->values.n + 1) * sizeof *values);
	clv_status st = values ? run_all(c, call, values, outputs) : fails_with(CLV_E_NOMEM, "out of memory");
	for (value_id v = 0; values && v < c->p->values.n; v++)
		clv_tensor_free(values[v]);
	mem_free(values);
	return st;
}

static clv_status accepts(const clv_runtime_options *o)
{
	(void)o;
	return refuses_options ? fails_with(CLV_E_UNSUPPORTED, "not today") : CLV_OK;
}

extern const engine engine_tape;
const engine engine_tape = {.name = "calculator",
                            .takes = takes,
                            .lower = lower,
                            .bind = bind,
                            .run = run,
                            .release = release,
                            .accepts = accepts};

/* ---- files ------------------------------------------------------------------------------------------------------- */

static artifact *file_of(const char *text)
{
	artifact *a = new_artifact(text);
	OK(artifact_ready(a));
	return a;
}

#define SQUARES                                                                                                        \
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\nsymbol B 1..8\ninput %0 f32[B,2] name=\"x\"\n"                  \
	"%1 = aten::mul.Tensor(%0, %0) -> f32[B,2]\n%2 = aten::add.Tensor(%1, %0) -> f32[B,2]\noutput {\"y\": %2}\n"
#define SINES                                                                                                          \
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\ninput %0 f32[2] name=\"x\"\n"                                   \
	"%1 = aten::fft_fft(%0) -> f32[2]\noutput %1\n"

static void an_engine_runs_what_it_takes(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	clv_tensor *x, *y = NULL;
	clv_port port = {.size = sizeof port};
	artifact *a = file_of(SQUARES);
	(void)state;
	assert_ptr_equal(engine_at(0), &engine_tape);
	assert_string_equal(engine_at(1)->name, "native");
	assert_null(engine_at(2));
	o.unproven = true;
	OK(clv_runtime_create(a, &o, &r));
	artifact_free(a);
	assert_string_equal(clv_runtime_engine(r), "calculator");
	OK(clv_runtime_output(r, 0, &port));
	assert_string_equal(port.name, "y");
	OK(clv_tensor_from_data((float[]){1, 2, 3, 4}, "f32", 2, (int64_t[]){2, 2}, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1));
	clv_tensor_free(x);
	clv_runtime_free(r);
	assert_int_equal(released, 1);
	assert_memory_equal(clv_tensor_data(y), ((float[]){2, 6, 12, 20}), 16); /* outlives runtime and file */
	clv_tensor_free(y);
}

static void inputs_are_checked_in_the_core(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	clv_tensor *x, *y = NULL;
	artifact *a = file_of(SQUARES);
	(void)state;
	o.unproven = true;
	OK(clv_runtime_create(a, &o, &r));
	OK(clv_tensor_from_data((float[6]){0}, "f32", 2, (int64_t[]){2, 3}, &x));
	FAILS(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1), CLV_E_INPUT, "input x: dimension 1 is 3");
	clv_tensor_free(x);
	OK(clv_tensor_from_data((float[20]){0}, "f32", 2, (int64_t[]){9, 2}, &x));
	FAILS(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1), CLV_E_INPUT, "B is 9");
	FAILS(clv_runtime_run(r, NULL, 0, &y, 1), CLV_E_INPUT, "takes 1 inputs");
	clv_tensor_free(x);
	clv_runtime_free(r);
	artifact_free(a);
}

#define PAIR                                                                                                           \
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\ninput %0 f32[2] name=\"q\"\ninput %1 f32[2] name=\"k\"\n"       \
	"%2 = aten::add.Tensor(%0, %1) -> f32[2]\noutput %2\n"
#define ALONE                                                                                                          \
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\ninput %0 f32[2] name=\"q\"\ninput %1 f32[2] name=\"k\"\n"       \
	"%2 = aten::mul.Tensor(%0, %0) -> f32[2]\noutput %2\n"

/* Plan 0 is for two tensors, plan 1 for one that is given twice. */
static void which_inputs_are_one_tensor_chooses_the_plan(void **state)
{
	clv_runtime *r = NULL;
	clv_tensor *q, *k, *y = NULL;
	artifact *a = new_artifact(PAIR);
	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		OK(vec_push(&a->plans.at[0].same, i));
	OK(clv_tensor_from_data((float[]){3, 4}, "f32", 1, (int64_t[]){2}, &q));
	OK(clv_tensor_from_data((float[]){3, 4}, "f32", 1, (int64_t[]){2}, &k));
	OK(artifact_ready(a));
	OK(clv_runtime_create(a, NULL, &r));
	FAILS(clv_runtime_run(r, (const clv_tensor *const[]){q, q}, 2, &y, 1), CLV_E_LAYOUT,
	      "inputs q and k are one and the same tensor");
	clv_runtime_free(r);
	artifact_free(a);
	a = new_artifact(PAIR);
	OK(artifact_add_plan(a, load_ok(ALONE), "alone"));
	for (uint32_t i = 0; i < 2; i++) {
		OK(vec_push(&a->plans.at[0].same, i));
		OK(vec_push(&a->plans.at[1].same, 0u));
	}
	OK(artifact_ready(a));
	OK(clv_runtime_create(a, NULL, &r));
	artifact_free(a);
	OK(clv_runtime_run(r, (const clv_tensor *const[]){q, k}, 2, &y, 1));
	assert_memory_equal(clv_tensor_data(y), ((float[]){6, 8}), 8);
	clv_tensor_free(y);
	OK(clv_runtime_run(r, (const clv_tensor *const[]){q, q}, 2, &y, 1));
	assert_memory_equal(clv_tensor_data(y), ((float[]){9, 16}), 8);
	clv_tensor_free(y);
	clv_tensor_free(q);
	clv_tensor_free(k);
	clv_runtime_free(r);
}

static void an_engine_says_what_it_does_not_take(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	artifact *sines = file_of(SINES), *squares = file_of(SQUARES);
	(void)state;
	FAILS(clv_runtime_create(sines, NULL, &r), CLV_E_UNSUPPORTED, "aten::fft_fft");
	FAILS(clv_runtime_create(sines, NULL, &r), CLV_E_UNSUPPORTED, "calculator does not take");
	o.engine = "calculator";
	FAILS(clv_runtime_create(sines, &o, &r), CLV_E_UNSUPPORTED, "it adds and multiplies");
	o.engine = "abacus";
	FAILS(clv_runtime_create(squares, &o, &r), CLV_E_NOT_FOUND, "there are auto, calculator, native");
	o.engine = "auto";
	o.sandbox = CLV_SANDBOX_ON;
	FAILS(clv_runtime_create(squares, &o, &r), CLV_E_UNSUPPORTED, "sandbox");
	o.sandbox = CLV_SANDBOX_AUTO;
	o.device = "cuda:0";
	FAILS(clv_runtime_create(squares, &o, &r), CLV_E_INVALID, "runs on cpu");
	o.device = NULL;
	refuses_options = true;
	FAILS(clv_runtime_create(squares, &o, &r), CLV_E_UNSUPPORTED, "not today");
	refuses_options = false;
	assert_null(r);
	artifact_free(sines);
	artifact_free(squares);
}

/* Until somebody says that he trusts it. */
static void an_engine_without_a_sandbox_runs_no_file_that_nobody_vouches_for(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	image i = written(new_artifact(SQUARES));
	artifact *a = opened(i);
	(void)state;
	assert_false(clv_artifact_vouched(a, NULL)); /* tests have no key for seals */
	o.unproven = true;
	FAILS(clv_runtime_create(a, &o, &r), CLV_E_UNSUPPORTED, "there can be none: the engine calculator runs nothing");
	o.sandbox = CLV_SANDBOX_OFF;
	OK(clv_runtime_create(a, &o, &r));
	assert_false(clv_runtime_sandboxed(r));
	clv_runtime_free(r);
	o.sandbox = CLV_SANDBOX_ON;
	FAILS(clv_runtime_create(a, &o, &r), CLV_E_UNSUPPORTED, "runs nothing in a sandbox");
	o.sandbox = 3;
	FAILS(clv_runtime_create(a, &o, &r), CLV_E_INVALID, "sandbox is 3");
	artifact_free(a);
	image_free(&i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_engine_runs_what_it_takes),
		cmocka_unit_test(inputs_are_checked_in_the_core),
		cmocka_unit_test(which_inputs_are_one_tensor_chooses_the_plan),
		cmocka_unit_test(an_engine_says_what_it_does_not_take),
		cmocka_unit_test(an_engine_without_a_sandbox_runs_no_file_that_nobody_vouches_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
