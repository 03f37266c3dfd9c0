/* A plan of 100,000 nodes is parsed, verified, printed and cut. The times are shown, not judged. */
#include "support.h"

#include <time.h>

#include "plan/view.h"

enum { NODES = 100000 };

static double started;

static double now(void)
{
	struct timespec t;
	timespec_get(&t, TIME_UTC);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void start(void)
{
	started = now();
}

static void stop(const char *what)
{
	print_message("%-10s %6.0f ms\n", what, (now() - started) * 1e3);
}

/* A chain with parameters, constants, lists, modules and odd doubles. */
static char *long_text(void)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Long\"\nsymbol B 1..64\nscope \"\" \"Long\"\ninput %0 f32[B,64]\n");
	for (int i = 0; i < NODES / 10; i++)
		strbuf_printf(&b, "scope layers.%d \"Linear\"\nparam @layers.%d.weight f32[64,64] trainable\n", i, i);
	for (int i = 0; i < NODES; i++) {
		strbuf_printf(&b, "%%%d = aten::op%d.x(%%%d, @layers.%d.weight, [%d, B*%d, [none]], ", i + 1, i % 100, i,
		              i / 10, i, i);
		strbuf_double(&b, (double)i / 3);
		strbuf_printf(&b, ", \"text %d\") -> f32[B,64] in layers.%d at \"model.py:%d\"\n", i, i / 10, i);
	}
	strbuf_printf(&b, "output %%%d\n", NODES);
	return taken(&b);
}

static void a_hundred_thousand_nodes_are_handled(void **state)
{
	(void)state;
	char *text = long_text();
	plan *p = NULL;
	node_names *names = NULL;
	view v;
	start();
	OK(plan_parse(text, strlen(text), &p));
	stop("parse");
	start();
	OK(plan_verify(p));
	stop("verify");
	start();
	char *printed = print_ok(p);
	stop("print");
	start();
	OK(node_names_new(p, &names));
	stop("names");
	start();
	OK(view_range(p, 0, NODES / 2, &v));
	stop("view");
	assert_int_equal(v.outputs.n, 1);
	assert_int_equal(v.externals.n, NODES / 20);
	assert_string_equal(node_name(names, NODES - 1), "op99_999");
	assert_int_equal(node_find(names, "op99_999"), NODES - 1);
	plan *q = NULL;
	OK(plan_parse(printed, strlen(printed), &q));
	start();
	assert_true(plan_equal(p, q));
	stop("equal");
	view_free(&v);
	node_names_free(names);
	plan_free(p);
	plan_free(q);
	mem_free(printed);
	mem_free(text);
}

/* Everything that could be quadratic: one node with many arguments and writes, many inputs, ties, deep aliases. */
static void wide_plans_are_handled(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Wide\"\nparam @p f32[1]");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, " tied=@t%d", i);
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "\ninput %%%d f32[1]", i);
	strbuf_puts(&b, "\na::b(");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%s%%%d", i ? ", " : "", i);
	strbuf_puts(&b, ") writes ");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%s%%%d", i ? ", " : "", i);
	strbuf_puts(&b, "\noutput [");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%s%%%d", i ? ", " : "", i);
	strbuf_puts(&b, "]\n");
	char *text = taken(&b);
	start();
	plan *p = load_ok(text);
	char *printed = print_ok(p);
	stop("wide");
	plan_free(p);
	mem_free(printed);
	mem_free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_hundred_thousand_nodes_are_handled),
		cmocka_unit_test(wide_plans_are_handled),
	};
	return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
