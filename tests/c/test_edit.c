/* Edits of plans: what goes, what comes, what is read instead; ranges, facts, errors, memory that runs out. */
#include "support.h"

#include "plan/edit.h"
#include "random_plan.h"

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\n"

/* %0 -> relu %1 -> view %2 -> neg %3 -> add %4 */
#define CHAIN                                                                                                          \
	HEAD "input %0 f32[4,4] name=\"x\"\n"                                                                              \
		 "%1 = aten::relu(%0) -> f32[4,4]\n"                                                                           \
		 "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"                                                           \
		 "%3 = aten::neg(%2) -> f32[16]\n"                                                                             \
		 "%4 = aten::add.Tensor(%3, %2, 1) -> f32[16]\n"                                                               \
		 "output %4\n"

typedef struct bench {
	plan *p;
	edit e;
} bench;

static bench begin_range(const char *text, node_id first, node_id end)
{
	bench b = {load_ok(text), {0}};
	OK(edit_new(b.p, first, end, &b.e));
	return b;
}

static bench begin(const char *text)
{
	bench b = {load_ok(text), {0}};
	OK(edit_new(b.p, 0, b.p->nodes.n, &b.e));
	return b;
}

static void end(bench *b)
{
	edit_free(&b->e);
	plan_free(b->p);
}

/* The edited plan prints as this, and the print parses to an equal plan. */
static void check_text(const plan *p, const char *want)
{
	char *text = print_ok(p);
	assert_string_equal(text, want);
	plan *again = load_ok(text);
	assert_true(plan_equal(p, again) && plan_equal(again, p));
	plan_free(again);
	mem_free(text);
}

static void apply_and_check(bench *b, const char *want)
{
	OK(edit_apply(&b->e));
	assert_false(b->e.changed);
	check_text(b->e.p, want);
}

static arg value_arg(value_id v)
{
	arg a = {.kind = ARG_VALUE};
	a.u.v = v;
	return a;
}

static clv_status insert_unary(edit *e, node_id before, const char *op, value_id from, value_id to, node_id *out)
{
	arg in = value_arg(from), result = value_arg(to);
	node_spec s = {.op = op, .args = &in, .nargs = 1, .results = &result, .nresults = 1, .scope = NONE};
	return edit_insert(e, before, &s, out);
}

/* ---- removing, inserting, exchanging ----------------------------------------------------------------------------- */

static void nothing_changes_nothing(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	apply_and_check(&b, CHAIN);
	end(&b);
}

static void a_node_goes_and_what_it_was_given_is_read(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	OK(edit_remove(&b.e, 2));
	OK(edit_remove(&b.e, 2)); /* again: the same */
	OK(edit_read_instead(&b.e, 3, 2));
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::relu(%0) -> f32[4,4]\n"
	                         "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	                         "%3 = aten::add.Tensor(%2, %2, 1) -> f32[16]\n"
	                         "output %3\n");
	assert_int_equal(b.e.end, 3);
	assert_int_equal(b.e.p->values.at[3].def, NONE);
	assert_int_equal(b.e.p->out_tree.at[0].u.v, 4); /* the output has the id that it had */
	end(&b);
}

static void views_follow_what_is_read_instead(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	OK(edit_remove(&b.e, 0));
	OK(edit_read_instead(&b.e, 1, 0));
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::view(%0, [16]) -> f32[16] view-of %0\n"
	                         "%2 = aten::neg(%1) -> f32[16]\n"
	                         "%3 = aten::add.Tensor(%2, %1, 1) -> f32[16]\n"
	                         "output %3\n");
	end(&b);
}

/* What is read instead is itself a view of something that is exchanged, whichever comes first. */
static void views_follow_through_several_exchanges(void **state)
{
	(void)state;
	bench b = begin(HEAD "input %0 f32[4] name=\"x\"\n"
	                     "%1 = aten::relu(%0) -> f32[4]\n"
	                     "%2 = aten::alias(%1) -> f32[4] view-of %1\n"
	                     "%3 = aten::clone(%2, none) -> f32[4]\n"
	                     "%4 = aten::view(%3, [2,2]) -> f32[2,2] view-of %3\n"
	                     "%5 = aten::neg(%4) -> f32[2,2]\n"
	                     "output %5\n");
	OK(edit_read_instead(&b.e, 3, 2));
	OK(edit_read_instead(&b.e, 2, 1));
	OK(edit_read_instead(&b.e, 1, 0));
	for (node_id n = 0; n < 3; n++)
		OK(edit_remove(&b.e, n));
	apply_and_check(&b, HEAD "input %0 f32[4] name=\"x\"\n"
	                         "%1 = aten::view(%0, [2, 2]) -> f32[2,2] view-of %0\n"
	                         "%2 = aten::neg(%1) -> f32[2,2]\n"
	                         "output %2\n");
	end(&b);
}

static void lists_and_writes_are_exchanged_too(void **state)
{
	(void)state;
	bench b = begin(HEAD "input %0 f32[4] name=\"x\"\n"
	                     "%1 = aten::relu(%0) -> f32[4]\n"
	                     "%2 = aten::dropout(%1, 0.5, false) -> f32[4] view-of %1 {random}\n"
	                     "%3 = aten::add_.Tensor(%2, num(1), 1) -> f32[4] view-of %1 writes %2\n"
	                     "%4 = aten::cat([%2, [%3]], 0) -> f32[8]\n"
	                     "output %4\n");
	OK(edit_remove(&b.e, 1));
	OK(edit_read_instead(&b.e, 2, 1));
	apply_and_check(&b, HEAD "input %0 f32[4] name=\"x\"\n"
	                         "%1 = aten::relu(%0) -> f32[4]\n"
	                         "%2 = aten::add_.Tensor(%1, num(1), 1) -> f32[4] view-of %1 writes %1\n"
	                         "%3 = aten::cat([%1, [%2]], 0) -> f32[8]\n"
	                         "output %3\n");
	end(&b);
}

static void new_nodes_come_in_the_order_they_were_put(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	value_id first, second;
	node_id n;
	OK(edit_like(&b.e, 3, &first));
	OK(edit_like(&b.e, 3, &second));
	OK(insert_unary(&b.e, 3, "aten::sin", 2, first, &n));
	OK(insert_unary(&b.e, 3, "aten::cos", first, second, &n));
	OK(edit_remove(&b.e, 2));
	OK(edit_read_instead(&b.e, 3, second));
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::relu(%0) -> f32[4,4]\n"
	                         "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	                         "%3 = aten::sin(%2) -> f32[16]\n"
	                         "%4 = aten::cos(%3) -> f32[16]\n"
	                         "%5 = aten::add.Tensor(%4, %2, 1) -> f32[16]\n"
	                         "output %5\n");
	assert_int_equal(b.e.facts.n, 7); /* the removed value has its id still */
	end(&b);
}

static void a_new_node_takes_over_a_result(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	node_id n;
	FAILS(insert_unary(&b.e, 3, "aten::abs", 3, 4, &n), CLV_E_INVALID, "already defined");
	OK(edit_remove(&b.e, 3));
	OK(insert_unary(&b.e, 4, "aten::abs", 3, 4, &n)); /* at the end of the range */
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::relu(%0) -> f32[4,4]\n"
	                         "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	                         "%3 = aten::neg(%2) -> f32[16]\n"
	                         "%4 = aten::abs(%3) -> f32[16]\n"
	                         "output %4\n");
	assert_int_equal(b.e.end, 4);
	end(&b);
}

static void a_new_node_can_be_taken_back(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	value_id v;
	node_id n;
	OK(edit_like(&b.e, 0, &v));
	OK(insert_unary(&b.e, 0, "aten::sin", 0, v, &n));
	OK(edit_remove(&b.e, n));
	apply_and_check(&b, CHAIN);
	end(&b);
}

static void memory_is_taken_over_by_a_view(void **state)
{
	(void)state;
	bench b = begin(HEAD "input %0 f32[4] name=\"x\"\n"
	                     "%1 = aten::sin(%0) -> f32[4]\n"
	                     "%2 = aten::relu_(%1) -> f32[4] view-of %1 writes %1\n"
	                     "%3 = aten::view(%2, [2,2]) -> f32[2,2] view-of %1\n"
	                     "output (%2, %3)\n");
	node_id n;
	OK(edit_remove(&b.e, 0));
	OK(edit_remove(&b.e, 1));
	edit_take_memory(&b.e, 2);
	OK(insert_unary(&b.e, 1, "test::sin_relu", 0, 2, &n));
	apply_and_check(&b, HEAD "input %0 f32[4] name=\"x\"\n"
	                         "%1 = test::sin_relu(%0) -> f32[4]\n"
	                         "%2 = aten::view(%1, [2, 2]) -> f32[2,2] view-of %1\n"
	                         "output (%1, %2)\n");
	end(&b);
}

static void edits_follow_one_another(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	OK(edit_remove(&b.e, 2));
	OK(edit_read_instead(&b.e, 3, 2));
	OK(edit_apply(&b.e));
	OK(edit_remove(&b.e, 0));
	OK(edit_read_instead(&b.e, 1, 0));
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::view(%0, [16]) -> f32[16] view-of %0\n"
	                         "%2 = aten::add.Tensor(%1, %1, 1) -> f32[16]\n"
	                         "output %2\n");
	end(&b);
}

static void a_tensor_like_another_is_one_of_its_own(void **state)
{
	(void)state;
	bench b = begin(HEAD "symbol B 1..8\n"
	                     "input %0 f32[B,4] strides(1,B) device=cuda:0 grad name=\"x\"\n"
	                     "%1 = aten::detach(%0) -> f32[B,4] device=cuda:0 view-of %0\n"
	                     "output %1\n");
	value_id v;
	OK(edit_like(&b.e, 1, &v));
	const value *x = &b.e.p->values.at[v], *y = &b.e.p->values.at[1];
	assert_int_equal(x->alias, NONE);
	assert_int_equal(x->dtype, y->dtype);
	assert_int_equal(x->device, y->device);
	assert_memory_equal(&b.e.p->dims.at[x->shape], &b.e.p->dims.at[y->shape], 2 * sizeof(expr_id));
	end(&b);
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

static void only_the_range_is_edited(void **state)
{
	(void)state;
	bench b = begin_range(CHAIN, 1, 3);
	value_id v;
	node_id n;
	FAILS(edit_remove(&b.e, 0), CLV_E_INVALID, "node 0 is not in the range");
	FAILS(edit_remove(&b.e, 3), CLV_E_INVALID, "node 3 is not in the range");
	FAILS(edit_remove(&b.e, 100), CLV_E_INVALID, "node 100 is not in the range");
	OK(edit_like(&b.e, 3, &v));
	FAILS(insert_unary(&b.e, 0, "aten::sin", 0, v, &n), CLV_E_INVALID, "node 0 is not in the range");
	FAILS(insert_unary(&b.e, 4, "aten::sin", 0, v, &n), CLV_E_INVALID, "node 4 is not in the range");
	FAILS(edit_read_instead(&b.e, 2, 1), CLV_E_INVALID, "the outputs of the range cannot be exchanged");
	FAILS(edit_read_instead(&b.e, 3, 2), CLV_E_INVALID, "the outputs of the range cannot be exchanged");
	end(&b);
}

static void the_range_grows_and_shrinks(void **state)
{
	(void)state;
	bench b = begin_range(CHAIN, 2, 3);
	value_id v;
	node_id n;
	OK(edit_like(&b.e, 3, &v));
	OK(insert_unary(&b.e, 2, "aten::sin", 2, v, &n));
	OK(edit_remove(&b.e, 2));
	OK(insert_unary(&b.e, 3, "aten::cos", v, 3, &n));
	apply_and_check(&b, HEAD "input %0 f32[4,4] name=\"x\"\n"
	                         "%1 = aten::relu(%0) -> f32[4,4]\n"
	                         "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	                         "%3 = aten::sin(%2) -> f32[16]\n"
	                         "%4 = aten::cos(%3) -> f32[16]\n"
	                         "%5 = aten::add.Tensor(%4, %2, 1) -> f32[16]\n"
	                         "output %5\n");
	assert_int_equal(b.e.first, 2);
	assert_int_equal(b.e.end, 4);
	end(&b);
}

static void an_empty_range_takes_new_nodes(void **state)
{
	(void)state;
	bench b = begin_range(CHAIN, 2, 2);
	value_id v;
	node_id n;
	OK(edit_like(&b.e, 3, &v));
	OK(insert_unary(&b.e, 2, "aten::sin", 2, v, &n));
	OK(edit_apply(&b.e));
	assert_int_equal(b.e.first, 2);
	assert_int_equal(b.e.end, 3);
	end(&b);
}

static void a_range_must_be_one_of_the_plan(void **state)
{
	(void)state;
	plan *p = load_ok(CHAIN);
	edit e;
	FAILS(edit_new(p, 2, 1, &e), CLV_E_INVALID, "nodes 2 to 1 are no range");
	edit_free(&e);
	FAILS(edit_new(p, 0, 5, &e), CLV_E_INVALID, "nodes 0 to 5 are no range");
	edit_free(&e);
	plan_free(p);
}

/* ---- pinned nodes ------------------------------------------------------------------------------------------------ */

static bench begin_pinned(const char *text, node_id first, node_id last)
{
	bench b = begin(text);
	OK(edit_pin(&b.e, &(node_span){first, last}, 1));
	return b;
}

static void pinned_nodes_are_outside(void **state)
{
	(void)state;
	bench b = begin_pinned(CHAIN, 1, 3);
	assert_true(b.e.facts.kept[1] && b.e.facts.kept[2]);
	assert_false(b.e.facts.kept[3]);
	assert_int_equal(b.e.facts.uses[3], 1);
	assert_true(b.e.facts.shown[3] && !edit_pinned(&b.e, 0) && edit_pinned(&b.e, 2));
	assert_false(edit_is(&b.e, 2, OP_neg));
	assert_int_equal(edit_result(&b.e, 2), NONE);
	FAILS(edit_remove(&b.e, 2), CLV_E_INVALID, "node 2 is pinned");
	FAILS(edit_read_instead(&b.e, 2, 1), CLV_E_INVALID, "the outputs of the range");
	end(&b);
}

static void pinned_nodes_stay_together(void **state)
{
	(void)state;
	bench b = begin_pinned(CHAIN, 1, 3);
	node_span at;
	value_id v;
	node_id n;
	OK(edit_like(&b.e, 1, &v));
	OK(insert_unary(&b.e, 2, "aten::sin", 1, v, &n));
	OK(edit_apply(&b.e));
	edit_spans(&b.e, &at);
	assert_true(at.first == 2 && at.end == 4);
	OK(edit_remove(&b.e, 1));
	OK(edit_apply(&b.e));
	edit_spans(&b.e, &at);
	assert_true(at.first == 1 && at.end == 3);
	char *text = print_ok(b.p);
	check_text(b.e.p, text);
	mem_free(text);
	end(&b);
}

static void only_spans_of_the_range_are_pinned(void **state)
{
	(void)state;
	static const node_span bad[][2] = {{{0, 2}, {1, 3}}, {{0, 1}, {3, 3}}, {{0, 1}, {3, 5}}, {{2, 3}, {0, 1}}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		bench b = begin(CHAIN);
		FAILS(edit_pin(&b.e, bad[i], 2), CLV_E_INVALID, "cannot be pinned");
		end(&b);
	}
	bench b = begin_range(CHAIN, 1, 3);
	FAILS(edit_pin(&b.e, &(node_span){0, 2}, 1), CLV_E_INVALID, "nodes 0 to 2 cannot be pinned");
	end(&b);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void exchanges_must_make_sense(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	FAILS(edit_read_instead(&b.e, 4, 3), CLV_E_INVALID, "the outputs of the range cannot be exchanged");
	FAILS(edit_read_instead(&b.e, 1, 99), CLV_E_INVALID, "there is no value 99");
	FAILS(edit_read_instead(&b.e, 99, 1), CLV_E_INVALID, "there is no value 1 to read instead of value 99");
	OK(edit_read_instead(&b.e, 3, 2));
	OK(edit_read_instead(&b.e, 2, 1));
	FAILS(edit_read_instead(&b.e, 1, 3), CLV_E_INVALID, "value 1 is read instead of value 3 already");
	OK(edit_read_instead(&b.e, 1, 1));
	end(&b);
}

static void the_result_must_verify(void **state)
{
	(void)state;
	bench b = begin(CHAIN);
	OK(edit_remove(&b.e, 2)); /* %3 is still read */
	FAILS(edit_apply(&b.e), CLV_E_VERIFY, "is used before it is defined");
	end(&b);
	b = begin(CHAIN);
	OK(edit_remove(&b.e, 3)); /* the output */
	FAILS(edit_apply(&b.e), CLV_E_VERIFY, "the output tree names value 4, which is a result of no node");
	end(&b);
	b = begin(CHAIN);
	OK(edit_read_instead(&b.e, 1, 3)); /* made later */
	FAILS(edit_apply(&b.e), CLV_E_VERIFY, "is used before it is defined");
	end(&b);
	b = begin(CHAIN);
	OK(edit_read_instead(&b.e, 1, 2)); /* its own view */
	FAILS(edit_apply(&b.e), CLV_E_VERIFY, "is used before it is defined");
	end(&b);
	b = begin(HEAD "input %0 f32[4] name=\"x\"\n"
	               "%1 = aten::sin(%0) -> f32[4]\n"
	               "%2 = aten::alias(%1) -> f32[4] view-of %1\n"
	               "%3 = aten::cos(%0) -> f32[4]\n"
	               "%4 = aten::alias(%3) -> f32[4] view-of %3\n"
	               "output none\n");
	OK(edit_read_instead(&b.e, 1, 4)); /* each for a view of the other */
	OK(edit_read_instead(&b.e, 3, 2));
	FAILS(edit_apply(&b.e), CLV_E_INVALID, "is exchanged for a view of itself");
	end(&b);
}

static void a_removed_value_cannot_be_bound(void **state)
{
	(void)state;
	bench b = begin(HEAD "buffer @n i64[]\n"
	                     "%0 = aten::add.Tensor(@n, num(1), 1) -> i64[]\n"
	                     "rebind @n = %0\n"
	                     "output none\n");
	OK(edit_remove(&b.e, 0));
	FAILS(edit_apply(&b.e), CLV_E_VERIFY, "rebind 0 names value 1, which is a result of no node");
	end(&b);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

static void facts_say_who_uses_what(void **state)
{
	(void)state;
	bench b = begin_range(HEAD "input %0 f32[4] name=\"x\"\n"
	                           "%1 = aten::sin(%0) -> f32[4]\n"
	                           "%2 = aten::cos(%1) -> f32[4]\n"
	                           "%3 = aten::view(%2, [2,2]) -> f32[2,2] view-of %2\n"
	                           "%4 = aten::relu_(%3) -> f32[2,2] view-of %2 writes %3\n"
	                           "%5 = aten::add.Tensor(%2, %2, 1) -> f32[4]\n"
	                           "%6 = aten::neg(%5) -> f32[4]\n"
	                           "%7 = aten::exp(%4) -> f32[2,2]\n"
	                           "output (%6, %7)\n",
	                      1, 6);
	const edit_facts *f = &b.e.facts;
	assert_int_equal(f->n, 8);
	assert_int_equal(f->uses[2], 3);
	assert_int_equal(f->user[2], 4);
	assert_int_equal(f->uses[0], 0);
	assert_int_equal(f->user[0], NONE);
	assert_true(f->kept[0] && f->kept[4] && f->kept[6]);
	assert_false(f->kept[2] || f->kept[3] || f->kept[5] || f->kept[1]);
	assert_true(f->written[2] && f->written[3] && f->written[4]);
	assert_false(f->written[1] || f->written[5]);
	assert_int_equal(f->views[2], 2);
	assert_int_equal(f->views[5], 0);
	assert_true(f->shown[2] && f->shown[3]); /* %4 leaves the range */
	assert_true(f->shown[1]);                /* comes from outside */
	assert_false(f->shown[5]);
	end(&b);
}

static void nodes_are_read(void **state)
{
	(void)state;
	bench b = begin(HEAD "input %0 f32[4] name=\"x\"\n"
	                     "[%1, %2] = aten::split.Tensor(%0, 2, 0) -> [f32[2] view-of %0, f32[2] view-of %0]\n"
	                     "%3 = aten::is_nonzero(%1) -> bool = true {host}\n"
	                     "%4 = aten::neg(%2) -> f32[2]\n"
	                     "output %4\n");
	assert_true(edit_is(&b.e, 0, OP_split_Tensor));
	assert_false(edit_is(&b.e, 0, OP_split_with_sizes));
	assert_int_equal(edit_value(&b.e, 0, 0), 0);
	assert_int_equal(edit_value(&b.e, 0, 1), NONE);
	assert_int_equal(edit_arg(&b.e, 0, 1)->kind, ARG_INT);
	assert_int_equal(edit_arg(&b.e, 0, 3)->kind, ARG_NONE);
	assert_int_equal(edit_result(&b.e, 0), NONE);
	assert_int_equal(edit_result(&b.e, 1), NONE);
	assert_int_equal(edit_result(&b.e, 2), 4);
	end(&b);
}

/* ---- scale, chance and memory ------------------------------------------------------------------------------------ */

/* A chain of nodes of which all but the last are exchanged for what they were given. */
static void long_chains_take_no_time(void **state)
{
	(void)state;
	enum { LENGTH = 100000 };
	strbuf s = STRBUF_INIT;
	strbuf_puts(&s, HEAD "input %0 f32[4] name=\"x\"\n");
	for (int i = 1; i <= LENGTH; i++)
		strbuf_printf(&s, "%%%d = aten::alias(%%%d) -> f32[4] view-of %%0\n", i, i - 1);
	strbuf_printf(&s, "output %%%d\n", LENGTH);
	char *text = taken(&s);
	bench b = begin(text);
	for (node_id n = LENGTH - 1; n-- > 0;) {
		OK(edit_read_instead(&b.e, n + 1, n));
		OK(edit_remove(&b.e, n));
	}
	apply_and_check(&b, HEAD "input %0 f32[4] name=\"x\"\n%1 = aten::alias(%0) -> f32[4] view-of %0\noutput %1\n");
	end(&b);
	mem_free(text);
}

/* Random plans with random changes: they verify and survive their text, or are refused; nothing else. */
static void any_change_verifies_or_is_refused(void **state)
{
	(void)state;
	uint32_t done = 0;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		plan *p = random_plan(seed);
		uint64_t dice = seed * 77;
		node_id n = p->nodes.n, from = random_below(&dice, n + 1), to = from + random_below(&dice, n + 1 - from);
		edit e;
		OK(edit_new(p, from, to, &e));
		for (uint32_t i = 0; i < 3 && from < to && p->values.n; i++) {
			OK(edit_remove(&e, from + random_below(&dice, to - from)));
			clv_status st = edit_read_instead(&e, random_below(&dice, p->values.n), random_below(&dice, p->values.n));
			assert_true(st == CLV_OK || st == CLV_E_INVALID);
		}
		clv_status st = edit_apply(&e);
		assert_true(st == CLV_OK || st == CLV_E_VERIFY || st == CLV_E_INVALID);
		if (st == CLV_OK) {
			char *text = print_ok(e.p);
			check_text(e.p, text);
			mem_free(text);
			done++;
		}
		edit_free(&e);
		plan_free(p);
	}
	assert_true(done > 50);
}

static clv_status change_all(edit *e)
{
	value_id v;
	node_id n;
	TRY(edit_like(e, 3, &v));
	TRY(insert_unary(e, 2, "aten::sin", 2, v, &n));
	TRY(edit_remove(e, 2));
	TRY(edit_read_instead(e, 3, v));
	return edit_apply(e);
}

static clv_status edit_once(const void *ctx)
{
	edit e;
	clv_status st = edit_new(ctx, 0, 4, &e);
	if (st == CLV_OK)
		st = change_all(&e);
	edit_free(&e);
	return st;
}

static void edits_survive_every_failed_allocation(void **state)
{
	(void)state;
	plan *p = load_ok(CHAIN);
	assert_true(sweep_faults(edit_once, p, CLV_OK) > 30);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_changes_nothing),
		cmocka_unit_test(a_node_goes_and_what_it_was_given_is_read),
		cmocka_unit_test(views_follow_what_is_read_instead),
		cmocka_unit_test(views_follow_through_several_exchanges),
		cmocka_unit_test(lists_and_writes_are_exchanged_too),
		cmocka_unit_test(new_nodes_come_in_the_order_they_were_put),
		cmocka_unit_test(a_new_node_takes_over_a_result),
		cmocka_unit_test(a_new_node_can_be_taken_back),
		cmocka_unit_test(memory_is_taken_over_by_a_view),
		cmocka_unit_test(edits_follow_one_another),
		cmocka_unit_test(a_tensor_like_another_is_one_of_its_own),
		cmocka_unit_test(only_the_range_is_edited),
		cmocka_unit_test(the_range_grows_and_shrinks),
		cmocka_unit_test(an_empty_range_takes_new_nodes),
		cmocka_unit_test(a_range_must_be_one_of_the_plan),
		cmocka_unit_test(pinned_nodes_are_outside),
		cmocka_unit_test(pinned_nodes_stay_together),
		cmocka_unit_test(only_spans_of_the_range_are_pinned),
		cmocka_unit_test(exchanges_must_make_sense),
		cmocka_unit_test(the_result_must_verify),
		cmocka_unit_test(a_removed_value_cannot_be_bound),
		cmocka_unit_test(facts_say_who_uses_what),
		cmocka_unit_test(nodes_are_read),
		cmocka_unit_test(long_chains_take_no_time),
		cmocka_unit_test(any_change_verifies_or_is_refused),
		cmocka_unit_test(edits_survive_every_failed_allocation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
