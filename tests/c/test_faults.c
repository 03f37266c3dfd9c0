/* The fault sweep: every allocation of parsing, verifying, printing, viewing, inspecting and writing source fails once.
 * Each time the answer is CLV_E_NOMEM and nothing is left behind (run it under the leak sanitizer). */
#include "support.h"

#include "emit/emit.h"

static const char *const whole =
	"cleave-plan 1\n"
	"model \"m\\x00\" training=yes grad=no\n"
	"symbol B 1..64\n"
	"scope \"\" \"Net\"\n"
	"scope layer1 \"Sequential\"\n"
	"input %x f32[B,3] name=\"x\" strides(3,1) device=cuda:0\n"
	"input %mask bool[B]\n"
	"param @w f32[B//2,3] trainable grad tied=@v tied=@\"odd name\"\n"
	"buffer @h f32[3] view-of @w\n"
	"const #c i64[1,16] persistent\n"
	"object #g \"torch.Generator\"\n"
	"%a = aten::add_.Tensor(%x, @w, num(2.5), [1, [B%3, -inf], \"s\"]) -> f32[B,3] view-of %x writes %x in layer1\n"
	"[%b, _], %c = aten::f(%a, #c, #g, min(B, 4), complex(1.0, nan)) -> [f32[(B+1)*2], none], int = 4*B "
	"{nograd, autocast=cpu:bf16:cache, flags=sdp_math:on, random, host} at \"f.py:3\"\n"
	"%n = aten::nonzero(%b) -> i64[3,2] guard\n"
	"aten::check(%c, dtype:f32, layout:strided, memory:preserve, device:\"cuda:1\") {impure}\n"
	"rebind @h = %n\n"
	"inputs ((%x), {\"mask\": %mask})\n"
	"output object \"m:C\" {\"a\": (%a, [%b, bytes:\"\\xff\"]), \"b\": {1: int((B+1)//2), none: opaque \"o\"}}\n";

static clv_status look(const plan *p)
{
	clv_status st;
	node_names *names;
	liveness live;
	TRY(node_names_new(p, &names));
	st = node_find(names, "check") == 3 ? CLV_OK : CLV_E_INVALID;
	node_names_free(names);
	TRY(st);
	TRY(liveness_new(p, &live));
	liveness_free(&live);
	for (node_id at = 0; at <= p->nodes.n; at++) {
		view v;
		TRY(view_range(p, 0, at, &v));
		view_free(&v);
		TRY(view_range(p, at, p->nodes.n, &v));
		view_free(&v);
	}
	return CLV_OK;
}

static clv_status reprint(const plan *p)
{
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	plan *q = NULL;
	plan_print(p, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = plan_parse(text, strlen(text), &q);
	if (st == CLV_OK && !plan_equal(p, q))
		st = CLV_E_INVALID;
	plan_free(q);
	mem_free(text);
	return st;
}

static clv_status inspect(const plan *p)
{
	char *text;
	clv_frontiers *f;
	TRY(clv_frontiers_create(p, NULL, &f));
	for (int json = 0; json < 2; json++) {
		clv_status st = clv_frontiers_inspect(f, json, &text);
		if (st == CLV_OK) {
			clv_free(text);
			continue;
		}
		clv_frontiers_free(f);
		return st;
	}
	clv_frontiers_free(f);
	return CLV_OK;
}

static clv_status brief(const plan *p)
{
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	clv_status st = plan_brief(p, &b);
	if (st == CLV_OK)
		st = strbuf_take(&b, &text);
	strbuf_free(&b);
	mem_free(text);
	return st;
}

/* All that source can say: modules, odd names, contexts, guards, slices, lists, a store, a symbol that no input shows. */
static const char *const written =
	"cleave-plan 1\n"
	"model \"m\"\n"
	"symbol B 1..64\n"
	"symbol S 1..64\n"
	"scope \"\" \"Net\"\n"
	"scope layer1 \"Sequential\"\n"
	"input %x f32[B,3] name=\"x\"\n"
	"param @layer1.0.w f32[4,3] trainable\n"
	"param @\"odd name\" f32[3]\n"
	"buffer @h f32[3]\n"
	"const #c i64[2]\n"
	"%a = aten::linear(%x, @layer1.0.w, none) -> f32[B,4] in layer1 {nograd, autocast=cpu:bf16, flags=sdp_math:on}\n"
	"%s = aten::slice.Tensor(%a, 1, 0, 2, 1) -> f32[B,2] view-of %a in layer1\n"
	"%r = aten::relu_(%s) -> f32[B,2] view-of %a writes %s\n"
	"[%p, %q] = aten::chunk(%r, 2, 1) -> [f32[B,1] view-of %a, f32[B,1] view-of %a]\n"
	"%k = my::op.x(%p, #c, @\"odd name\", [S*2, 1], \"s\", complex(1.0, nan), dtype:f32) -> f32[S]\n"
	"%n = aten::nonzero(%k) -> i64[3,1] guard\n"
	"%i = aten::item(%n) -> float = nan {host}\n"
	"cleave::guard_equal(%n, #c, \"tolist\")\n"
	"%z = aten::add.Tensor(%q, @h, 1) -> f32[B,3]\n"
	"rebind @h = %k\n"
	"output (%z, %n)\n";

static clv_status some_literal(void *ctx, value_id v, strbuf *b, bool *done)
{
	(void)ctx;
	(void)v;
	strbuf_puts(b, "[1, 2]");
	*done = true;
	return CLV_OK;
}

static bool some_formal(void *ctx, const char *op, uint32_t i, source_formal *out)
{
	(void)ctx;
	*out = (source_formal){.name = "arg", .named = i > 4, .none = false};
	return strncmp(op, "my::", 4) == 0;
}

static clv_status source_of_range(const plan *p, node_id first, node_id end, bool known)
{
	source_spec s = {.first = first, .end = end, .del = true, .return_rebinds = known};
	source_keywords k;
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	s.literal = known ? some_literal : NULL;
	s.formal = known ? some_formal : NULL;
	clv_status st = plan_source(p, &s, &b);
	if (st == CLV_OK)
		st = strbuf_take(&b, &text);
	strbuf_free(&b);
	mem_free(text);
	TRY(st);
	TRY(source_keywords_new(p, first, end, &k));
	source_keywords_free(&k);
	return CLV_OK;
}

static clv_status all_sources(const void *ctx)
{
	const char *text = ctx;
	clv_plan *p = NULL;
	TRY(clv_plan_parse(text, strlen(text), &p));
	clv_status st = CLV_OK;
	for (uint32_t cut = 0; st == CLV_OK && cut <= p->nodes.n; cut += 3) {
		st = source_of_range(p, 0, cut, true);
		if (st == CLV_OK)
			st = source_of_range(p, cut, p->nodes.n, false);
	}
	clv_plan_free(p);
	return st;
}

static void every_allocation_may_fail_while_source_is_written(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(all_sources, written, CLV_OK), 500, 20000);
	sweep_faults(all_sources, whole, CLV_E_UNSUPPORTED); /* an object has no source text */
}

static clv_status everything(const void *ctx)
{
	const char *text = ctx;
	clv_plan *p = NULL;
	TRY(clv_plan_parse(text, strlen(text), &p));
	clv_status st = look(p);
	if (st == CLV_OK)
		st = reprint(p);
	if (st == CLV_OK)
		st = inspect(p);
	if (st == CLV_OK)
		st = brief(p);
	clv_plan_free(p);
	return st;
}

static clv_status everything_with_fault(const char *text, uint64_t n)
{
	mem_fail_after(n);
	clv_status st = everything(text);
	mem_fail_after(0);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(everything, whole, CLV_OK), 100, 5000);
}

static void every_allocation_may_fail_while_an_error_is_reported(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		clv_status status;
	} cases[] = {
		{"cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\noutput (%0, [%1])\n", CLV_E_PARSE},
		{"cleave-plan 1\nmodel \"m\"\n[%a, %b] = a::b() -> [f32[2], f32[1/2]]\noutput none\n", CLV_E_PARSE},
		{"cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\n%1 = a::b(%0) -> f32[0-1]\noutput %1\n", CLV_E_VERIFY},
		{"cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\ninput %1 f32[2]\na::b(%0) writes %1\noutput %1\n", CLV_E_VERIFY},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		for (uint64_t n = 1; n < 300; n++) {
			clv_status st = everything_with_fault(cases[i].text, n);
			assert_true(st == cases[i].status || st == CLV_E_NOMEM);
			assert_true(strlen(clv_last_error()) > 0);
		}
		assert_int_equal(everything(cases[i].text), cases[i].status);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(every_allocation_may_fail_while_source_is_written),
		cmocka_unit_test(every_allocation_may_fail_while_an_error_is_reported),
	};
	return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
