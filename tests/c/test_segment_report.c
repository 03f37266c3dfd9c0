/* Reports of segments: counts, rows, text and JSON. And what no back end takes. */
#include "segments.h"

static const char *const mixed = HEAD "scope \"\" \"Net\"\nscope body \"Body\"\n"
									  "input %x f32[2,8]\nparam @w f32[8,8]\n"
									  "%1 = aten::mm(%x, @w) -> f32[2,8] in body at \"net.py:3\"\n"
									  "%2 = aten::relu(%1) -> f32[2,8] in body at \"net.py:4\"\n"
									  "%3 = no::sort(%2) -> f32[2,8] in body at \"net.py:5\"\n"
									  "%4 = aten::mm(%3, @w) -> f32[2,8] in body at \"net.py:6\"\n"
									  "%5 = no::sort(%4) -> f32[2,8] in body at \"net.py:7\"\n"
									  "%6 = aten::sin(%5) -> f32[2,8]\n"
									  "%7 = aten::bernoulli(%6) -> f32[2,8] {random} at \"net.py:9\"\n"
									  "%8 = aten::mm(%7, @w) -> f32[2,8]\n"
									  "%9 = aten::relu(%8) -> f32[2,8]\n"
									  "output %9\n";

typedef struct fixture {
	plan *p;
	const char **no;
	segments_spec spec;
	segments s;
	coverage c;
} fixture;

static fixture cover(const char *text, uint32_t minimum, bool what_if)
{
	fixture f = {.p = load_ok(text)};
	f.no = no_of(f.p);
	f.spec = (segments_spec){.no = f.no, .minimum = minimum};
	OK(segments_choose(f.p, &f.spec, &f.s));
	OK(coverage_of(&f.s, &f.spec, what_if, &f.c));
	return f;
}

static void release(fixture *f)
{
	coverage_free(&f->c);
	segments_free(&f->s);
	mem_free(f->no);
	plan_free(f->p);
}

static void coverage_counts_nodes_work_and_bytes(void **state)
{
	(void)state;
	fixture f = cover(mixed, 2, true);
	char *text = segments_text(&f.s);
	assert_string_equal(text, "[mm relu] sort mm_1 sort_1 sin bernoulli [mm_2 relu_1]");
	mem_free(text);
	assert_int_equal(f.c.nodes, 9);
	assert_int_equal(f.c.compiled, 4);
	assert_true(f.c.work == 3 * 2 * 2 * 8 * 8 + 6 * 16);
	assert_true(f.c.compiled_work == 2 * (2 * 2 * 8 * 8 + 16));
	assert_int_equal(f.c.bytes, 4 * 2 * 8 * 4);
	assert_int_equal(f.s.at.at[0].bytes_in, 64);
	assert_int_equal(f.s.at.at[0].bytes_out, 64);
	assert_int_equal(f.c.rows.n, 4);
	assert_string_equal(f.c.rows.at[0].op, "aten::mm");
	assert_string_equal(f.c.rows.at[1].op, "no::sort");
	assert_int_equal(f.c.rows.at[1].count, 2);
	assert_string_equal(f.c.rows.at[1].place, " in body at net.py:5");
	release(&f);
}

static void what_if_counts_segments_less(void **state)
{
	(void)state;
	fixture f = cover(mixed, 1, true);
	assert_int_equal(f.s.at.n, 4);
	assert_string_equal(f.c.rows.at[0].op, "no::sort");
	assert_int_equal(f.c.rows.at[0].boundaries, 2);
	assert_string_equal(f.c.rows.at[1].op, "aten::bernoulli");
	assert_int_equal(f.c.rows.at[1].boundaries, 1);
	release(&f);
	f = cover(mixed, 1, false);
	assert_int_equal(f.c.rows.at[0].boundaries, 0);
	release(&f);
}

static void same_text(strbuf *b, const char *want)
{
	char *got = taken(b);
	if (strcmp(got, want) != 0)
		fail_msg("\n%s\ninstead of\n%s", got, want);
	mem_free(got);
}

static void a_report_of_what_is_only_planned(void **state)
{
	(void)state;
	fixture f = cover(mixed, 1, true);
	strbuf b = STRBUF_INIT;
	segment_row rows[4];
	for (uint32_t i = 0; i < 4; i++) {
		rows[i] = (segment_row)SEGMENT_ROW_INIT;
		rows[i].name = "segment";
		rows[i].nodes = f.s.at.at[i].n;
		rows[i].work = f.s.at.at[i].work;
		rows[i].bytes_in = f.s.at.at[i].bytes_in;
		rows[i].bytes_out = f.s.at.at[i].bytes_out;
	}
	segment_report r = {"inductor", &f.c, rows, 4, NAN, NAN, NAN};
	OK(report_text(&r, &b));
	same_text(&b, "94.4 % of FLOPs (6 of 9 operators) compiled in 4 segments by inductor\n"
	              "\n"
	              "segment  operators  FLOPs        in       out  runs\n"
	              "segment          2    272  64 bytes  64 bytes  compiled\n"
	              "segment          1    256  64 bytes  64 bytes  compiled\n"
	              "segment          1     16  64 bytes  64 bytes  compiled\n"
	              "segment          2    272  64 bytes  64 bytes  compiled\n"
	              "\n"
	              "on the tape, with share of FLOPs and reason:\n"
	              "2 x  no::sort         3.7 %  is not known; first in body at net.py:5\n"
	              "1 x  aten::bernoulli  1.8 %  draws random numbers; at net.py:9\n"
	              "\n"
	              "supporting no::sort would remove 2 boundaries\n"
	              "supporting aten::bernoulli would remove 1 boundary\n"
	              "\n"
	              "512 bytes go into and out of segments in a run\n");
	release(&f);
}

static const segment_row measured[] = {
	{"segment 0", "inductor", 120, 4.1e9, 602112, 401408, 602112, 401408, 34.27, 1234567, 1.19e-7, 1e-5, 12.345, 4.5,
     NULL},
	{"segment 1", "inductor", 56, 3e6, 401408, 4000, 401408, 4000, 8.04, 65536, 0, 1e-5, 0.75, 1.5, "needs avx512f"},
};

static coverage some_coverage(void)
{
	static fallback_row rows[] = {
		{"aten::sort", "is not in the table", " in head at net.py:7", 3, 4e7, 2},
		{"aten::sort", "takes a number that is read from data", "", 1, 0, 2},
	};
	coverage c = {.nodes = 180, .compiled = 176, .work = 4.2e9, .compiled_work = 4.1331e9, .bytes = 1408928};
	c.rows.at = rows;
	c.rows.n = 2;
	return c;
}

static void a_report_of_what_was_measured(void **state)
{
	(void)state;
	coverage c = some_coverage();
	segment_report r = {"inductor", &c, measured, 2, 22.13, 18.5, 12.3};
	strbuf b = STRBUF_INIT;
	OK(report_text(&r, &b));
	same_text(&b,
	          "98.4 % of FLOPs (176 of 180 operators) compiled in 2 segments by inductor; 1 of them runs on the "
	          "tape here\n"
	          "\n"
	          "segment    operators  FLOPs        in       out     size  compiled in             error      tape"
	          "     code   speed  runs\n"
	          "segment 0        120   4.1G  602.1 kB  401.4 kB   1.2 MB       34.3 s  1.2e-7 of 1.0e-5   12.3 ms"
	          "  4.50 ms   2.74x  compiled\n"
	          "segment 1         56   3.0M  401.4 kB    4.0 kB  65.5 kB        8.0 s       0 of 1.0e-5  0.750 ms"
	          "  1.50 ms  0.500x  on the tape: needs avx512f\n"
	          "\n"
	          "on the tape, with share of FLOPs and reason:\n"
	          "3 x  aten::sort  0.9 %  is not in the table; first in head at net.py:7\n"
	          "1 x  aten::sort  0.0 %  takes a number that is read from data\n"
	          "\n"
	          "supporting aten::sort would remove 2 boundaries\n"
	          "\n"
	          "1.4 MB go into and out of segments in a run (measured: 1.4 MB)\n"
	          "a run takes 12.3 ms: 1.80 times as fast as eager (22.1 ms), 1.50 times as fast as the tape (18.5 ms)\n");
}

static void a_report_as_json(void **state)
{
	(void)state;
	coverage c = some_coverage();
	segment_row rows[] = {measured[1]};
	rows[0].code_ms = NAN;
	rows[0].measured_in = -1;
	segment_report r = {"inductor", &c, rows, 1, NAN, 18.5, INFINITY};
	strbuf b = STRBUF_INIT;
	OK(report_json(&r, &b));
	same_text(&b, "{\"backend\":\"inductor\",\"share\":0.9840714285714286,\"operators\":180,\"compiled\":176,"
	              "\"flops\":4200000000,\"compiled_flops\":4133100000,\"bytes\":1408928,\"tape_ms\":18.5,"
	              "\"segments\":[{\"name\":\"segment 1\",\"backend\":\"inductor\",\"operators\":56,\"flops\":"
	              "3000000,\"bytes_in\":401408,\"bytes_out\":4000,\"measured_bytes_out\":4000,\"compile_s\":8.04,"
	              "\"size\":65536,\"error\":0,\"tolerance\":1e-05,\"tape_ms\":0.75,\"runs\":\"tape\",\"reason\":"
	              "\"needs avx512f\"}],\"dropped\":[],\"fallbacks\":[{\"op\":\"aten::sort\",\"count\":3,\"flops\":"
	              "40000000,"
	              "\"reason\":\"is not in the table\",\"place\":\"in head at net.py:7\",\"boundaries\":2},{\"op\":"
	              "\"aten::sort\",\"count\":1,\"flops\":0,\"reason\":\"takes a number that is read from data\","
	              "\"place\":\"\",\"boundaries\":2}]}\n");
}

static void a_report_says_what_was_dropped(void **state)
{
	static fallback_row rows[] = {
		{"aten::linear", SLOWER, " in head at net.py:7", 3, 4e7, 0},
		{"aten::sort", "is not in the table", "", 1, 1e7, 0},
		{"aten::relu", SLOWER, " in head at net.py:8", 2, 2e7, 0},
	};
	coverage c = {.nodes = 180, .compiled = 174, .work = 4.2e9, .compiled_work = 4.1331e9, .bytes = 1408928};
	segment_row kept = measured[0], dropped = SEGMENT_ROW_INIT;
	(void)state;
	c.rows.at = rows;
	c.rows.n = 3;
	dropped.name = "dropped 0";
	dropped.backend = "inductor";
	dropped.nodes = 5;
	dropped.tape_ms = 0.25;
	dropped.code_ms = 0.5;
	dropped.on_tape = "slower";
	segment_report r = {
		.backend = "inductor", .covered = &c, .rows = &kept, .nrows = 1, .dropped = &dropped, .ndropped = 1};
	strbuf b = STRBUF_INIT;
	r.eager_ms = r.tape_ms = r.traced_ms = NAN;
	OK(report_text(&r, &b));
	same_text(&b,
	          "98.4 % of FLOPs (174 of 180 operators) compiled in 1 segment by inductor; 1 segment was slower than the "
	          "tape, and dropped\n"
	          "\n"
	          "segment    operators  FLOPs        in       out    size  compiled in             error      tape"
	          "      code   speed  runs\n"
	          "segment 0        120   4.1G  602.1 kB  401.4 kB  1.2 MB       34.3 s  1.2e-7 of 1.0e-5   12.3 ms"
	          "   4.50 ms   2.74x  compiled\n"
	          "dropped 0          5      0                                                             0.250 ms"
	          "  0.500 ms  0.500x  on the tape: slower\n"
	          "\n"
	          "on the tape, with share of FLOPs and reason:\n"
	          "5 x  (operators of dropped segments)  1.4 %  compiled, its segment is slower than the tape\n"
	          "1 x  aten::sort                       0.2 %  is not in the table\n"
	          "\n"
	          "1.4 MB go into and out of segments in a run (measured: 1.0 MB)\n");
	OK(report_json(&r, &b));
	char *json = taken(&b);
	assert_non_null(strstr(json, "\"dropped\":[{\"name\":\"dropped 0\",\"backend\":\"inductor\",\"operators\":5"));
	assert_non_null(strstr(json, "\"op\":\"aten::relu\",\"count\":2"));
	mem_free(json);
}

static void a_plan_without_segments_has_a_report(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	fixture f = cover(HEAD "input %x f32[2]\n%1 = no::a(%x) -> f32[2]\noutput %1\n", 1, true);
	segment_report r = {"openvino", &f.c, NULL, 0, NAN, NAN, NAN};
	OK(report_text(&r, &b));
	same_text(&b, "0.0 % of FLOPs (0 of 1 operator) compiled by openvino\n\n"
	              "on the tape, with share of FLOPs and reason:\n1 x  no::a  100.0 %  is not known\n");
	release(&f);
	f = cover(HEAD "input %x f32[2]\noutput %x\n", 1, true);
	r.covered = &f.c;
	OK(report_text(&r, &b));
	same_text(&b, "100.0 % of operators (0 of 0 operators) compiled by openvino\n");
	release(&f);
}

/* ---- what no back end takes ------------------------------------------------------------------------------------------ */

/* Of the last node. */
static void obstacle(const char *nodes, const char *want)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(
		&b,
		HEAD
		"symbol B 1..8\nsymbol n 0..9 data\ninput %%x f32[B,4]\ninput %%m bool[]\ninput %%i i64[3]\nparam @w f32[4,4]\n"
		"object #o \"Packed\"\n%s\noutput none\n",
		nodes);
	char *text = taken(&b);
	plan *p = load_ok(text);
	const char *got = support_obstacle(p, p->nodes.n - 1);
	if (!want != !got || (got && strcmp(got, want) != 0))
		fail_msg("\"%s\" instead of \"%s\" of %s", got ? got : "", want ? want : "", nodes);
	mem_free(text);
	plan_free(p);
}

static void obstacles_are_named(void **state)
{
	(void)state;
	obstacle("%1 = aten::relu(%x) -> f32[B,4]", NULL);
	obstacle("[%1, %2] = aten::split(%x) -> [f32[B,2] view-of %x, f32[B,2] view-of %x]", NULL);
	obstacle("%1 = aten::view(@w, [2, 8*B]) -> f32[2,8*B] view-of @w", NULL);
	obstacle("%1 = aten::rand(%x) -> f32[B] {random}", "draws random numbers");
	obstacle("%1 = aten::dropout(%x, 0.5, true) -> f32[B,4] {random}", "draws random numbers");
	obstacle("%1 = aten::dropout(%x, 0.5, false) -> f32[B,4] view-of %x {random}", NULL);
	obstacle("%1 = aten::scaled_dot_product_attention(%x, %x, %x, none, 0.1) -> f32[B] {random}",
	         "draws random numbers");
	obstacle("%1 = aten::scaled_dot_product_attention(%x, %x, %x, none, 0.0) -> f32[B] {random}", NULL);
	obstacle("%1 = aten::index.Tensor(%x, [none, %i]) -> f32[B,3] guard", NULL);
	obstacle("%1 = aten::index.Tensor(%x, [%m]) -> f32[B,3] guard", "gives a tensor whose size depends on data");
	obstacle("%1 = aten::a(%x) -> f32[B] {host}", "reads data on the host");
	obstacle("%1 = aten::a(%x) -> f32[B] {impure}", "has an effect outside of the plan");
	obstacle("%1 = aten::is_nonzero(%m) -> bool = true", "gives a number, which is read on the host");
	obstacle("%1 = aten::item(%m) -> float\n%2 = aten::mul(%x, %1) -> f32[B]", "takes a number that is read from data");
	obstacle("%1 = aten::nonzero(%x) -> i64[n,2] guard", "gives a tensor whose size depends on data");
	obstacle("%1 = aten::nonzero(%x) -> i64[n,2] guard\n%2 = aten::sin(%1) -> i64[n,2]",
	         "has a tensor whose size is read from data");
	obstacle("%1 = aten::nonzero(%x) -> i64[n,2] guard\n%2 = aten::fill(%x, n+1) -> f32[B]",
	         "takes a size that is read from data");
	obstacle("%1 = aten::linear(%x, #o) -> f32[B]", "takes an object that is no tensor");
	obstacle("%1 = aten::to_sparse(%x) -> f32[B,4] odd", "has a tensor that is sparse, nested or opaque");
	obstacle("%1 = cleave::python(%x) -> f32[B,4]", "is Python, or a step of the tape itself");
	obstacle("%1 = aten::cuda(%x) -> f32[B,4] device=cuda:0", "has tensors on different devices");
	obstacle("%1 = aten::data(%x) -> f32[B,4] view-of %x", "gives a tensor other memory");
	obstacle("%1 = aten::as_strided(@w, [2], [1], 0) -> f32[2] view-of @w",
	         "reads memory from outside beyond the elements of a tensor");
	obstacle("%1 = aten::relu(@w) -> f32[4,4]\n%2 = aten::as_strided(%1, [2], [1], 0) -> f32[2] view-of %1", NULL);
}

static void a_back_end_takes_one_device(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[4] device=cuda:0\ninput %y f32[4]\n"
	                       "%1 = aten::relu(%x) -> f32[4] device=cuda:0\n"
	                       "%2 = aten::relu(%y) -> f32[4]\n"
	                       "%3 = aten::relu(%1) -> f32[4] device=cuda:0\n"
	                       "%4 = aten::rand(%x) -> f32[4] device=cuda:0 {random}\n"
	                       "output (%2, %3)\n");
	const char *no[4];
	arena a = {0};
	OK(support_of("inductor", p, &(support_spec){.dynamic = true}, no, &a));
	assert_null(no[0]);
	assert_string_equal(no[1], "runs on cpu, the rest of the plan on cuda:0");
	assert_null(no[2]);
	assert_string_equal(no[3], "draws random numbers");
	FAILS(support_of("abacus", p, &(support_spec){0}, no, &a), CLV_E_NOT_FOUND,
	      "there is no back end \"abacus\"; built in are \"inductor\", \"openvino\", \"native\"");
	arena_free(&a);
	plan_free(p);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(coverage_counts_nodes_work_and_bytes),
	cmocka_unit_test(what_if_counts_segments_less),
	cmocka_unit_test(a_report_of_what_is_only_planned),
	cmocka_unit_test(a_report_of_what_was_measured),
	cmocka_unit_test(a_report_as_json),
	cmocka_unit_test(a_report_says_what_was_dropped),
	cmocka_unit_test(a_plan_without_segments_has_a_report),
	cmocka_unit_test(obstacles_are_named),
	cmocka_unit_test(a_back_end_takes_one_device),
};

int main(void)
{
	return cmocka_run_group_tests(tests, NULL, NULL);
}
