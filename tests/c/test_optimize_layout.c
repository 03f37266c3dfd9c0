/* Images laid out channels last: which nodes get them, where they are converted, and what stays as it is. Plans as
 * text, before and after; of the plan after only its nodes. */
#include "optimize/optimize.h"
#include "support.h"

static const char *const others[] = {"identity", "common",  "dead",  "fold_batch_norm", "fuse",
                                     "in_place", "prelude", "sizes", "guards",          NULL};

static clv_status run(const plan *p, node_id first, node_id end, optimized_plan *out)
{
	optimize_spec s = {.level = OPTIMIZE_FAST, .channels_last = true, .off = others};
	return optimize(p, first, end, &s, out);
}

static char *nodes_of(const plan *p)
{
	strbuf b = STRBUF_INIT;
	for (node_id n = 0; n < p->nodes.n; n++) {
		node_print(p, n, &b);
		strbuf_puts(&b, "\n");
	}
	return taken(&b);
}

static void check_range(const char *text, node_id first, uint32_t cut, const char *want)
{
	plan *p = load_ok(text);
	optimized_plan o;
	if (run(p, first, p->nodes.n - cut, &o) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), text);
	OK(plan_verify(o.p));
	char *before = nodes_of(p), *after = nodes_of(o.p);
	assert_string_equal(after, want ? want : before);
	mem_free(before);
	mem_free(after);
	optimized_plan_free(&o);
	plan_free(p);
}

static void becomes(const char *text, const char *want)
{
	check_range(text, 0, 0, want);
}

static void stays(const char *text)
{
	check_range(text, 0, 0, NULL);
}

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\nsymbol B 1..64\nscope \"\" \"M\"\n"

static void test_a_chain_is_converted_at_both_ends(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::relu(%a) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %c\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::relu(%3) -> f32[B,8,16,16]\n"
	        "%5 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_writing_in_place_stays_in_place(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::relu_(%a) -> f32[B,8,16,16] view-of %a writes %a\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::relu_(%c) -> f32[B,8,16,16] view-of %c writes %c\n"
	             "output %d\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::relu_(%3) -> f32[B,8,16,16] view-of %3 writes %3\n"
	        "%5 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::relu_(%5) -> f32[B,8,16,16] view-of %5 writes %5\n"
	        "%7 = aten::clone(%6, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_residual_add_reads_what_was_converted_once(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::relu_(%a) -> f32[B,8,16,16] view-of %a writes %a\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%s = aten::add_.Tensor(%c, %x, 1) -> f32[B,8,16,16] view-of %c writes %c\n"
	             "%o = aten::relu_(%s) -> f32[B,8,16,16] view-of %c writes %c\n"
	             "output %o\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::relu_(%3) -> f32[B,8,16,16] view-of %3 writes %3\n"
	        "%5 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::add_.Tensor(%5, %1, 1) -> f32[B,8,16,16] view-of %5 writes %5\n"
	        "%7 = aten::relu_(%6) -> f32[B,8,16,16] view-of %5 writes %5\n"
	        "%8 = aten::clone(%7, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_an_operator_in_the_middle_gets_a_copy(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%v = aten::flatten.using_ints(%b, 1, -1) -> f32[B,2048] view-of %b\n"
	             "%q = aten::softmax.int(%b, 1, none) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%d, %v, %q)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%6 = aten::flatten.using_ints(%5, 1, -1) -> f32[B,2048] view-of %5\n"
	        "%7 = aten::softmax.int(%5, 1, none) -> f32[B,8,16,16]\n"
	        "%8 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%9 = aten::conv2d(%8, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%10 = aten::clone(%9, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_what_is_kept_leaves_at_the_end(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%b, %c)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%7 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_consumer_that_writes_keeps_its_memory_out(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%u = aten::fill_.Scalar(%b, 1) -> f32[B,8,16,16] view-of %b writes %b\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%e = aten::conv2d(%d, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %e\n",
	        "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%2 = aten::conv2d(%1, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%3 = aten::fill_.Scalar(%2, 1) -> f32[B,8,16,16] view-of %2 writes %2\n"
	        "%4 = aten::clone(%2, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%5 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%6 = aten::conv2d(%4, %5, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%7 = aten::conv2d(%6, %5, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%8 = aten::conv2d(%7, %5, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%9 = aten::clone(%8, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_value_read_before_it_is_written_is_not_converted(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%q = aten::softmax.int(%a, 1, none) -> f32[B,8,16,16]\n"
	             "%b = aten::relu_(%a) -> f32[B,8,16,16] view-of %a writes %a\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%d, %q)\n",
	        "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%2 = aten::softmax.int(%1, 1, none) -> f32[B,8,16,16]\n"
	        "%3 = aten::relu_(%1) -> f32[B,8,16,16] view-of %1 writes %1\n"
	        "%4 = aten::clone(%3, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%5 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%6 = aten::conv2d(%4, %5, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%7 = aten::conv2d(%6, %5, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%8 = aten::clone(%7, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_two_names_of_one_memory_that_leave_stay(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::relu_(%a) -> f32[B,8,16,16] view-of %a writes %a\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%a, %b, %c)\n",
	        "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%2 = aten::relu_(%1) -> f32[B,8,16,16] view-of %1 writes %1\n"
	        "%3 = aten::conv2d(%2, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n");
}

static void test_an_input_that_is_written_later_is_read_as_it_is(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%y = aten::relu_(%x) -> f32[B,8,16,16] view-of %x writes %x\n"
	             "%s = aten::add.Tensor(%b, %x, 1) -> f32[B,8,16,16]\n"
	             "output %s\n",
	        "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%2 = aten::conv2d(%1, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%3 = aten::relu_(%0) -> f32[B,8,16,16] view-of %0 writes %0\n"
	        "%4 = aten::add.Tensor(%2, %0, 1) -> f32[B,8,16,16]\n");
}

static void test_an_input_that_was_written_before_can_be_converted(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%y = aten::relu_(%x) -> f32[B,8,16,16] view-of %x writes %x\n"
	             "%a = aten::conv2d(%y, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %b\n",
	        "%1 = aten::relu_(%0) -> f32[B,8,16,16] view-of %0 writes %0\n"
	        "%2 = aten::clone(%1, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%3 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%4 = aten::conv2d(%2, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::conv2d(%4, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_strides_of_inputs_are_left_alone(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] strides(2048,1,128,8) name=\"x\"\n"
	           "param @w f32[8,8,3,3]\n"
	           "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "%b = aten::relu(%a) -> f32[B,8,16,16]\n"
	           "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "output %c\n");
}

static void test_strides_of_weights_are_left_alone(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	           "param @w f32[8,8,3,3] strides(72,1,24,8)\n"
	           "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "%b = aten::relu(%a) -> f32[B,8,16,16]\n"
	           "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "output %c\n");
}

static void test_what_has_no_convolution_is_left_alone(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	           "%a = aten::relu(%x) -> f32[B,8,16,16]\n"
	           "%b = aten::max_pool2d(%a, [2, 2], [2, 2], [0, 0], [1, 1], false) -> f32[B,8,8,8]\n"
	           "output %b\n");
}

static void test_one_convolution_between_two_edges_does_not_pay(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	           "param @w f32[8,8,3,3]\n"
	           "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "%b = aten::relu(%a) -> f32[B,8,16,16]\n"
	           "output %b\n");
}

static void test_cat_and_slices_of_channels_stay_inside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "param @v f32[8,4,3,3]\n"
	             "param @t f32[8,12,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "[%p, %q] = aten::chunk(%a, 2, 1) -> [f32[B,4,16,16] view-of %a, f32[B,4,16,16] view-of %a]\n"
	             "%b = aten::conv2d(%q, @v, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%c = aten::cat([%p, %b], 1) -> f32[B,12,16,16]\n"
	             "%d = aten::conv2d(%c, @t, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %d\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "[%4, %5] = aten::chunk(%3, 2, 1) -> [f32[B,4,16,16] view-of %3, f32[B,4,16,16] view-of %3]\n"
	        "%6 = aten::contiguous(@v, memory:channels_last) -> f32[8,4,3,3]\n"
	        "%7 = aten::conv2d(%5, %6, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%8 = aten::cat([%4, %7], 1) -> f32[B,12,16,16]\n"
	        "%9 = aten::contiguous(@t, memory:channels_last) -> f32[8,12,3,3]\n"
	        "%10 = aten::conv2d(%8, %9, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%11 = aten::clone(%10, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_slices_that_leave_are_made_outside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "param @v f32[8,4,3,3]\n"
	             "%y = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%a = aten::conv2d(%y, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "[%p, %q] = aten::chunk(%a, 2, 1) -> [f32[B,4,16,16] view-of %a, f32[B,4,16,16] view-of %a]\n"
	             "%b = aten::conv2d(%q, @v, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%p, %c)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "[%6, %7] = aten::chunk(%5, 2, 1) -> [f32[B,4,16,16] view-of %5, f32[B,4,16,16] view-of %5]\n"
	        "%8 = aten::clone(%7, memory:channels_last) -> f32[B,4,16,16]\n"
	        "%9 = aten::contiguous(@v, memory:channels_last) -> f32[8,4,3,3]\n"
	        "%10 = aten::conv2d(%8, %9, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%11 = aten::conv2d(%10, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%12 = aten::clone(%11, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_two_regions_are_converted_each(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%t = aten::softmax.int(%b, 1, none) -> f32[B,8,16,16]\n"
	             "%v = aten::view(%b, [B, 8, 16, 16]) -> f32[B,8,16,16] view-of %b\n"
	             "%c = aten::conv2d(%v, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%d, %t)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%6 = aten::softmax.int(%5, 1, none) -> f32[B,8,16,16]\n"
	        "%7 = aten::view(%5, [B, 8, 16, 16]) -> f32[B,8,16,16] view-of %5\n"
	        "%8 = aten::clone(%7, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%9 = aten::conv2d(%8, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%10 = aten::conv2d(%9, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%11 = aten::clone(%10, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_results_of_other_operators_are_not_known(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	           "param @w f32[8,8,3,3]\n"
	           "%t = aten::transpose.int(%x, 2, 3) -> f32[B,8,16,16] view-of %x\n"
	           "%a = aten::conv2d(%t, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "%b = aten::relu(%a) -> f32[B,8,16,16]\n"
	           "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	           "output %c\n");
}

static void test_weights_that_both_layouts_share_are_not_converted(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "param @one f32[8,8,1,1]\n"
	             "param @deep f32[8,1,3,3]\n"
	             "%a = aten::conv2d(%x, @one, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @deep, none, [1, 1], [1, 1], [1, 1], 8) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %c\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::conv2d(%1, @one, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%3 = aten::conv2d(%2, @deep, none, [1, 1], [1, 1], [1, 1], 8) -> f32[B,8,16,16]\n"
	        "%4 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%5 = aten::conv2d(%3, %4, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_computed_weight_that_changes_is_not_converted(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "input %k f32[8,8,3,3] name=\"k\"\n"
	             "%a = aten::conv2d(%x, %k, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, %k, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %b\n",
	        "%2 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%3 = aten::conv2d(%2, %1, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %1, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_weight_made_of_parameters_is_made_row_major(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "param @s f32[8,1,1,1]\n"
	             "%k = aten::mul.Tensor(@w, @s) -> f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, %k, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, %k, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %b\n",
	        "%1 = aten::mul.Tensor(@w, @s) -> f32[8,8,3,3]\n"
	        "%2 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%3 = aten::contiguous(%1, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%4 = aten::conv2d(%2, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::conv2d(%4, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_one_pixel_is_not_converted_when_it_comes_in(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "input %s f32[B,8,1,1] name=\"s\"\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::mul.Tensor(%s, %a) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %c\n",
	        "%2 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%3 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%4 = aten::conv2d(%2, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::mul.Tensor(%1, %4) -> f32[B,8,16,16]\n"
	        "%6 = aten::conv2d(%5, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%7 = aten::clone(%6, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_a_mean_over_pixels_ends_a_region(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%m = aten::mean.dim(%b, [2, 3], false, none) -> f32[B,8]\n"
	             "%n = aten::mean.dim(%b, [2], false, none) -> f32[B,8,16]\n"
	             "output (%m, %n)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::mean.dim(%4, [2, 3], false, none) -> f32[B,8]\n"
	        "%6 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%7 = aten::mean.dim(%6, [2], false, none) -> f32[B,8,16]\n");
}

static void test_what_grows_at_the_edge_is_made_outside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%u = aten::upsample_nearest2d.vec(%b, none, [4.0, 4.0]) -> f32[B,8,64,64]\n"
	             "%r = aten::relu(%u) -> f32[B,8,64,64]\n"
	             "output %r\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%6 = aten::upsample_nearest2d.vec(%5, none, [4.0, 4.0]) -> f32[B,8,64,64]\n"
	        "%7 = aten::relu(%6) -> f32[B,8,64,64]\n");
}

static void test_what_shrinks_at_the_edge_is_made_outside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,64,64] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::avg_pool2d(%x, [4, 4], [4, 4], [0, 0], false, true, none) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %c\n",
	        "%1 = aten::avg_pool2d(%0, [4, 4], [4, 4], [0, 0], false, true, none) -> f32[B,8,16,16]\n"
	        "%2 = aten::clone(%1, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%3 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%4 = aten::conv2d(%2, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::conv2d(%4, %3, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%6 = aten::clone(%5, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_training_draws_and_other_types_are_left_alone(void **state)
{
	(void)state;
	stays(HEAD "input %x f64[B,8,16,16] name=\"x\"\n"
	           "param @w f64[8,8,3,3]\n"
	           "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f64[B,8,16,16]\n"
	           "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f64[B,8,16,16]\n"
	           "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f64[B,8,16,16]\n"
	           "output %c\n");
}

static void test_dropout_that_drops_is_outside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::dropout(%b, 0.5, true) -> f32[B,8,16,16] {random}\n"
	             "%e = aten::conv2d(%d, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%f = aten::conv2d(%e, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %f\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%6 = aten::dropout(%5, 0.5, true) -> f32[B,8,16,16] {random}\n"
	        "%7 = aten::conv2d(%6, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%8 = aten::conv2d(%7, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n");
}

static void test_only_the_range_is_changed(void **state)
{
	(void)state;
	check_range(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	                 "param @w f32[8,8,3,3]\n"
	                 "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%y = aten::relu(%a) -> f32[B,8,16,16]\n"
	                 "%b = aten::conv2d(%y, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%f = aten::conv2d(%d, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "output %f\n",
	            2, 1,
	            "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%2 = aten::relu(%1) -> f32[B,8,16,16]\n"
	            "%3 = aten::clone(%2, memory:channels_last) -> f32[B,8,16,16]\n"
	            "%4 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	            "%5 = aten::conv2d(%3, %4, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%6 = aten::conv2d(%5, %4, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%7 = aten::conv2d(%6, %4, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%8 = aten::clone(%7, memory:contiguous) -> f32[B,8,16,16]\n"
	            "%9 = aten::conv2d(%8, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n");
}

static void test_group_norm_stays_row_major_on_cuda(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] device=cuda:0 name=\"x\"\n"
	             "param @w f32[8,8,3,3] device=cuda:0\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16] device=cuda:0\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16] device=cuda:0\n"
	             "%g = aten::group_norm(%b, 2, none, none, 1e-05, true) -> f32[B,8,16,16] device=cuda:0\n"
	             "output %g\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16] device=cuda:0\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3] device=cuda:0\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16] device=cuda:0\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16] device=cuda:0\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16] device=cuda:0\n"
	        "%6 = aten::group_norm(%5, 2, none, none, 1e-05, true) -> f32[B,8,16,16] device=cuda:0\n");
}

static void test_arguments_that_are_missing_are_no_reason_to_fail(void **state)
{
	(void)state;
	stays(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	           "param @w f32[8,8,3,3]\n"
	           "%a = aten::conv2d(%x) -> f32[B,8,16,16]\n"
	           "%b = aten::add.Tensor(%a) -> f32[B,8,16,16]\n"
	           "%c = aten::cat(%b, 1) -> f32[B,8,16,16]\n"
	           "%d = aten::relu() -> f32[B,8,16,16]\n"
	           "output (%c, %d)\n");
}

static void test_an_image_that_another_node_of_the_region_writes_is_written_there(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%r = aten::relu(%b) -> f32[B,8,16,16] writes %b\n"
	             "%c = aten::conv2d(%r, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output (%d)\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::relu(%4) -> f32[B,8,16,16] writes %4\n"
	        "%6 = aten::conv2d(%5, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%7 = aten::conv2d(%6, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%8 = aten::clone(%7, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_what_writes_other_memory_is_outside(void **state)
{
	(void)state;
	becomes(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	             "param @w f32[8,8,3,3]\n"
	             "buffer @m f32[8]\n"
	             "buffer @v f32[8]\n"
	             "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%b = aten::conv2d(%a, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%n = aten::batch_norm(%b, none, none, @m, @v, false, 0.1, 1e-05, true) -> f32[B,8,16,16] writes @m\n"
	             "%c = aten::conv2d(%n, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "%d = aten::conv2d(%c, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	             "output %d\n",
	        "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	        "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%4 = aten::conv2d(%3, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%5 = aten::clone(%4, memory:contiguous) -> f32[B,8,16,16]\n"
	        "%6 = aten::batch_norm(%5, none, none, @m, @v, false, 0.1, 1e-05, true) -> f32[B,8,16,16] writes @m\n"
	        "%7 = aten::clone(%6, memory:channels_last) -> f32[B,8,16,16]\n"
	        "%8 = aten::conv2d(%7, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%9 = aten::conv2d(%8, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	        "%10 = aten::clone(%9, memory:contiguous) -> f32[B,8,16,16]\n");
}

static void test_what_is_written_after_the_range_is_the_copy(void **state)
{
	(void)state;
	check_range(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	                 "param @w f32[8,8,3,3]\n"
	                 "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%b = aten::relu_(%a) -> f32[B,8,16,16] view-of %a writes %a\n"
	                 "%c = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "%s = aten::add_.Tensor(%c, %x, 1) -> f32[B,8,16,16] view-of %c writes %c\n"
	                 "%o = aten::relu_(%s) -> f32[B,8,16,16] view-of %c writes %c\n"
	                 "output %o\n",
	            0, 1,
	            "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,16,16]\n"
	            "%2 = aten::contiguous(@w, memory:channels_last) -> f32[8,8,3,3]\n"
	            "%3 = aten::conv2d(%1, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%4 = aten::relu_(%3) -> f32[B,8,16,16] view-of %3 writes %3\n"
	            "%5 = aten::conv2d(%4, %2, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	            "%6 = aten::add_.Tensor(%5, %1, 1) -> f32[B,8,16,16] view-of %5 writes %5\n"
	            "%7 = aten::clone(%6, memory:contiguous) -> f32[B,8,16,16]\n"
	            "%8 = aten::relu_(%7) -> f32[B,8,16,16] view-of %7 writes %7\n");
}

static clv_status attempt(const void *ctx)
{
	optimized_plan o;
	const plan *p = ctx;
	clv_status st = run(p, 0, p->nodes.n, &o);
	optimized_plan_free(&o);
	return st;
}

static void test_running_out_of_memory_anywhere_is_an_error(void **state)
{
	(void)state;
	plan *p =
		load_ok(HEAD "input %x f32[B,8,16,16] name=\"x\"\n"
	                 "param @w f32[8,8,3,3]\n"
	                 "%a = aten::conv2d(%x, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "[%p, %q] = aten::chunk(%a, 2, 1) -> [f32[B,4,16,16] view-of %a, f32[B,4,16,16] view-of %a]\n"
	                 "%c = aten::cat([%p, %q], 1) -> f32[B,8,16,16]\n"
	                 "%b = aten::relu_(%c) -> f32[B,8,16,16] view-of %c writes %c\n"
	                 "%d = aten::conv2d(%b, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,16,16]\n"
	                 "output %d\n");
	assert_true(sweep_faults(attempt, p, CLV_OK) > 20);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_chain_is_converted_at_both_ends),
		cmocka_unit_test(test_writing_in_place_stays_in_place),
		cmocka_unit_test(test_a_residual_add_reads_what_was_converted_once),
		cmocka_unit_test(test_an_operator_in_the_middle_gets_a_copy),
		cmocka_unit_test(test_what_is_kept_leaves_at_the_end),
		cmocka_unit_test(test_a_consumer_that_writes_keeps_its_memory_out),
		cmocka_unit_test(test_a_value_read_before_it_is_written_is_not_converted),
		cmocka_unit_test(test_two_names_of_one_memory_that_leave_stay),
		cmocka_unit_test(test_an_input_that_is_written_later_is_read_as_it_is),
		cmocka_unit_test(test_an_input_that_was_written_before_can_be_converted),
		cmocka_unit_test(test_strides_of_inputs_are_left_alone),
		cmocka_unit_test(test_strides_of_weights_are_left_alone),
		cmocka_unit_test(test_what_has_no_convolution_is_left_alone),
		cmocka_unit_test(test_one_convolution_between_two_edges_does_not_pay),
		cmocka_unit_test(test_cat_and_slices_of_channels_stay_inside),
		cmocka_unit_test(test_slices_that_leave_are_made_outside),
		cmocka_unit_test(test_two_regions_are_converted_each),
		cmocka_unit_test(test_results_of_other_operators_are_not_known),
		cmocka_unit_test(test_weights_that_both_layouts_share_are_not_converted),
		cmocka_unit_test(test_a_computed_weight_that_changes_is_not_converted),
		cmocka_unit_test(test_a_weight_made_of_parameters_is_made_row_major),
		cmocka_unit_test(test_one_pixel_is_not_converted_when_it_comes_in),
		cmocka_unit_test(test_a_mean_over_pixels_ends_a_region),
		cmocka_unit_test(test_what_grows_at_the_edge_is_made_outside),
		cmocka_unit_test(test_what_shrinks_at_the_edge_is_made_outside),
		cmocka_unit_test(test_training_draws_and_other_types_are_left_alone),
		cmocka_unit_test(test_dropout_that_drops_is_outside),
		cmocka_unit_test(test_only_the_range_is_changed),
		cmocka_unit_test(test_group_norm_stays_row_major_on_cuda),
		cmocka_unit_test(test_arguments_that_are_missing_are_no_reason_to_fail),
		cmocka_unit_test(test_an_image_that_another_node_of_the_region_writes_is_written_there),
		cmocka_unit_test(test_what_writes_other_memory_is_outside),
		cmocka_unit_test(test_what_is_written_after_the_range_is_the_copy),
		cmocka_unit_test(test_running_out_of_memory_anywhere_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
