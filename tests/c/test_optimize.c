/* Passes: plan text in, plan text out; what must change, what must not, and random plans that do the same after as
 * before. */
#include "support.h"

#include "optimize/optimize.h"

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
#define X "input %0 f32[4,4] name=\"x\"\n"

/* ---- running passes ---------------------------------------------------------------------------------------------- */

enum { MANY_PASSES = 64 };

/* All names but one, as a list of what is off. */
static void all_but(const char *name, const char *off[MANY_PASSES])
{
	uint32_t n = 0;
	for (const pass *x = passes; x->name; x++) {
		assert_true(n + 1 < MANY_PASSES);
		if (!name || strcmp(x->name, name) != 0)
			off[n++] = x->name;
	}
	off[n] = NULL;
}

static void check_survives_text(const plan *p, char *text)
{
	plan *again = load_ok(text);
	assert_true(plan_equal(p, again));
	plan_free(again);
}

static optimized_plan run_pass_on(const plan *p, node_id first, node_id end, const char *name, optimize_level level)
{
	const char *off[MANY_PASSES];
	optimized_plan o;
	all_but(name, off);
	optimize_spec s = {.level = level, .off = off};
	OK(optimize(p, first, end, &s, &o));
	OK(plan_verify(o.p));
	return o;
}

static void becomes_in(const char *name, node_id first, node_id end, const char *before, const char *after)
{
	plan *p = load_ok(before);
	optimized_plan o = run_pass_on(p, first, end == NONE ? p->nodes.n : end, name, OPTIMIZE_SAFE);
	char *text = print_ok(o.p), *want;
	plan *wanted = load_ok(after);
	want = print_ok(wanted);
	assert_string_equal(text, want);
	check_survives_text(o.p, text);
	assert_int_equal(o.counts.n, strcmp(before, after) != 0);
	assert_true(o.counts.n == 0 || (!strcmp(o.counts.at[0].pass, name) && o.counts.at[0].changes));
	assert_int_equal(o.p->out_tree.n, p->out_tree.n);
	if (p->out_tree.n)
		assert_memory_equal(o.p->out_tree.at, p->out_tree.at, p->out_tree.n * sizeof *p->out_tree.at);
	mem_free(text);
	mem_free(want);
	plan_free(wanted);
	plan_free(p);
	optimized_plan_free(&o);
	o = (optimized_plan){0};
}

static void becomes(const char *name, const char *before, const char *after)
{
	becomes_in(name, 0, NONE, before, after);
}

static void stays(const char *name, const char *text)
{
	becomes_in(name, 0, NONE, text, text);
}

/* ---- dead -------------------------------------------------------------------------------------------------------- */

static void dead_nodes_go_all_the_way_up(void **state)
{
	(void)state;
	becomes("dead",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	               "%2 = aten::cos(%1) -> f32[4,4]\n"
	               "[%3, %4] = aten::split.Tensor(%2, 2, 0) -> [f32[2,4] view-of %2, f32[2,4] view-of %2]\n"
	               "%5 = aten::add.Tensor(%3, %4, 1) -> f32[2,4]\n"
	               "%6 = aten::relu(%0) -> f32[4,4]\n"
	               "output %6\n",
	        HEAD X "%1 = aten::relu(%0) -> f32[4,4]\noutput %1\n");
}

static void what_has_an_effect_stays(void **state)
{
	(void)state;
	stays("dead", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                     "%2 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n" /* a write */
	                     "%3 = aten::cos(%0) -> f32[4,4]\n"
	                     "%4 = aten::is_nonzero(%3) -> bool = true {host}\n" /* a guard */
	                     "%5 = aten::bernoulli(%0, none) -> f32[4,4] {random}\n"
	                     "%6 = aten::dropout(%0, 0.5, true) -> f32[4,4] {random}\n"
	                     "%7 = test::print(%0) -> f32[4,4] {impure}\n"
	                     "test::log(%0)\n"
	                     "%10 = test::counts(%0) -> f32[4,4]\n" /* not one of torch's */
	                     "%8 = aten::nonzero(%0) -> i64[3,2] guard\n"
	                     "%9 = aten::item(%0) -> float {host}\n"
	                     "output %0\n");
}

static void dropout_that_drops_nothing_is_no_effect(void **state)
{
	(void)state;
	becomes("dead", HEAD X "%1 = aten::dropout(%0, 0.5, false) -> f32[4,4] view-of %0 {random}\noutput %0\n",
	        HEAD X "output %0\n");
}

static void one_needed_result_keeps_its_node(void **state)
{
	(void)state;
	stays("dead", HEAD X "[%1, %2] = aten::split.Tensor(%0, 2, 0) -> [f32[2,4] view-of %0, f32[2,4] view-of %0]\n"
	                     "output %2\n");
}

/* %2 says that it is on the memory of %1, which its node does not take; %3 is only named by a write. */
static void the_first_on_used_memory_stays(void **state)
{
	(void)state;
	stays("dead", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                     "%2 = test::again(%0) -> f32[4,4] view-of %1\n"
	                     "%3 = aten::view(%2, [16]) -> f32[16] view-of %1\n"
	                     "%4 = aten::relu_(%2) -> f32[4,4] view-of %1 writes %3\n"
	                     "output %4\n");
}

static void numbers_of_data_keep_their_node(void **state)
{
	(void)state;
	stays("dead", HEAD "symbol n 1..9 data\n"
	                   "input %0 f32[9] name=\"x\"\n"
	                   "input %1 i64[4] name=\"i\"\n"
	                   "%2 = aten::index.Tensor(%0, [%1]) -> f32[n] guard\n"
	                   "%3 = aten::zeros([n], none, none, none, none) -> f32[n]\n"
	                   "output %3\n");
}

static void what_leaves_the_range_is_not_dead(void **state)
{
	(void)state;
	becomes_in("dead", 1, 3,
	           HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                  "%2 = aten::cos(%0) -> f32[4,4]\n"
	                  "%3 = aten::exp(%0) -> f32[4,4]\n"
	                  "%4 = aten::neg(%2) -> f32[4,4]\n"
	                  "output none\n",
	           HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                  "%2 = aten::cos(%0) -> f32[4,4]\n"
	                  "%3 = aten::neg(%2) -> f32[4,4]\n"
	                  "output none\n");
}

/* ---- identity ---------------------------------------------------------------------------------------------------- */

/* A node that gives back %1, an intermediate value of this type. */
static void check_identity(const char *type, const char *rest, bool goes)
{
	char before[1024], after[512];
	snprintf(before, sizeof before,
	         HEAD "symbol B 1..8\nsymbol C 2..8\ninput %%0 %s name=\"x\"\n%%1 = aten::sin(%%0) -> %s\n"
	              "%%2 = %s\n%%3 = aten::cos(%%2) -> %s\noutput %%3\n",
	         type, type, rest, type);
	snprintf(after, sizeof after,
	         HEAD "symbol B 1..8\nsymbol C 2..8\ninput %%0 %s name=\"x\"\n%%1 = aten::sin(%%0) -> %s\n"
	              "%%2 = aten::cos(%%1) -> %s\noutput %%2\n",
	         type, type, type);
	becomes("identity", before, goes ? after : before);
}

typedef struct identity_case {
	const char *type, *node;
	bool goes;
} identity_case;

#define V " view-of %1"

static const identity_case identities[] = {
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4]" V " {random}", true},
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::dropout(%1, 0.0, true) -> f32[4,4]" V " {random}", true},
	{"f32[4,4]", "aten::dropout(%1, 0.5, true) -> f32[4,4] {random}", false},
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4] {random}", false}, /* the plan saw a copy */
	{"f32[4,4]", "aten::dropout_(%1, 0.5, false) -> f32[4,4]" V " writes %1 {random}", true},
	{"f32[4,4]", "aten::dropout_(%1, 0.5, true) -> f32[4,4]" V " writes %1 {random}", false},
	{"f32[4,4]", "aten::feature_dropout(%1, 0.5, false) -> f32[4,4]" V " {random}", true},
	{"f32[4,4]", "aten::feature_alpha_dropout_(%1, 0.5, false) -> f32[4,4]" V " writes %1 {random}", true},
	{"f32[4,4]", "aten::alpha_dropout(%1, 0.5, false) -> f32[4,4]" V " {random}", true},
	{"f32[4,4]", "aten::native_dropout(%1, 0.5, false) -> f32[4,4] {random}", false},
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4]" V " {impure}", false},
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4]" V " {host}", false},
	{"f32[4,4]", "aten::dropout(%1, 0.5, false) -> f32[4,4]" V " {autocast=cpu:bf16}", true},

	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32, false, false, none) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32, true, false, memory:preserve) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32, false, true, none) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32, false, true, none) -> f32[4,4]", false},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f32, false, false, memory:channels_last) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::to.dtype(%1, dtype:f64, false, false, none) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::to.device(%1, device:cpu, dtype:f32, false, false, none) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.device(%1, device:meta, dtype:f32, false, false, none) -> f32[4,4]" V, false},
	{"f32[4,4]",
     "aten::to.dtype_layout(%1, dtype:f32, layout:strided, device:cpu, none, false, false, none) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.dtype_layout(%1, none, none, none, false, false, false, none) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.dtype_layout(%1, none, none, none, true, false, false, none) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::to.dtype_layout(%1, none, layout:mkldnn, none, none, false, false, none) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::to.other(%1, %0, false, false, none) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::to.other(%1, %0, false, true, none) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::type_as(%1, %0) -> f32[4,4]" V, true},

	{"f32[4,4]", "aten::contiguous(%1, memory:contiguous) -> f32[4,4]" V, true},
	{"f32[B,1]", "aten::contiguous(%1, none) -> f32[B,1]" V, true},
	{"f32[4,4]", "aten::contiguous(%1, memory:contiguous) -> f32[4,4]", false},
	{"f32[4,4]", "aten::contiguous(%1, memory:channels_last) -> f32[4,4]" V, false},

	{"f32[4,4]", "aten::detach(%1) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::alias(%1) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::detach_(%1) -> f32[4,4]" V " writes %1", true},
	{"f32[4,4]", "aten::lift_fresh(%1) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::conj(%1) -> f32[4,4]" V, true},
	{"c64[4,4]", "aten::conj(%1) -> c64[4,4]" V, false},

	{"f32[4,4]", "aten::view(%1, [4, -1]) -> f32[4,4]" V, true},
	{"f32[C,4]", "aten::view(%1, [C, 4]) -> f32[C,4]" V, true},
	{"f32[C,1]", "aten::reshape(%1, [C, 1]) -> f32[C,1]" V, false}, /* the input's strides at size 1 are not known */
	{"f32[B,4]", "aten::_unsafe_view(%1, [-1, 4]) -> f32[B,4]" V, false},
	{"f32[2*C,4]", "aten::view(%1, [-1, 4]) -> f32[2*C,4]" V, true},
	{"f32[2*B,4]", "aten::view(%1, [-1, 4]) -> f32[2*B,4]" V, true},
	{"f32[B+1,4]", "aten::view(%1, [-1, 4]) -> f32[B+1,4]" V, true},
	{"f32[C-1,4]", "aten::view(%1, [-1, 4]) -> f32[C-1,4]" V, false},
	{"f32[B,4]", "aten::expand(%1, [B, 4], false) -> f32[B,4]" V, true},
	{"f32[B,4]", "aten::expand_as(%1, %0) -> f32[B,4]" V, true},
	{"f32[B,1]", "aten::permute(%1, [0, 1]) -> f32[B,1]" V, true},
	{"f32[4,4]", "aten::permute(%1, [0, -1]) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::permute(%1, [1, 0]) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::transpose.int(%1, 1, -1) -> f32[4,4]" V, true},
	{"f32[4,4]", "aten::transpose.int(%1, 0, 1) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::slice.Tensor(%1, 0, 0, 9223372036854775807, 1) -> f32[4,4]" V, true},
	{"f32[B,4]", "aten::slice.Tensor(%1, 0, none, B) -> f32[B,4]" V, true},
	{"f32[1,4]", "aten::slice.Tensor(%1, 0, 0, 9, 2) -> f32[1,4]" V, false},
	{"f32[4,4]", "aten::slice.Tensor(%1, 0, 1, 5, 1) -> f32[4,4]" V, false},
	{"f32[4,4]", "aten::narrow(%1, 0, 0, 4) -> f32[4,4]" V, true},
	{"f32[C,4]", "aten::squeeze.dim(%1, 0) -> f32[C,4]" V, true},
	{"f32[B,4]", "aten::squeeze.dim(%1, 0) -> f32[B,4]" V, false},
	{"f32[4,4]", "aten::flatten.using_ints(%1, 1, 1) -> f32[4,4]" V, true},

	{"f32[4,4]", "aten::clone(%1, none) -> f32[4,4]", true},
	{"f32[B,1]", "aten::clone(%1, memory:preserve) -> f32[B,1]", true},
	{"f32[B,1]", "aten::clone(%1, memory:contiguous) -> f32[B,1]", false},
	{"f32[4,4]", "aten::clone(%1, memory:contiguous) -> f32[4,4]", true},
	{"f32[4,4]", "aten::clone(%1, memory:channels_last) -> f32[4,4]", false},

	{"f32[4,4]", "aten::neg(%1) -> f32[4,4]", false},
	{"f32[4,4]", "aten::view(%1, [4, 4]) -> f32[4,4] odd" V, false},
	{"f32[4,4]", "aten::view(%1, [4, 4]) -> f32[4,4] guard" V, false},
};

static void nodes_that_give_back_what_they_get_go(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof identities / sizeof *identities; i++) {
		check_identity(identities[i].type, identities[i].node, identities[i].goes);
	}
}

static void what_leaves_keeps_its_node(void **state)
{
	(void)state;
	stays("identity", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                         "%2 = aten::dropout(%1, 0.5, false) -> f32[4,4] view-of %1 {random}\n"
	                         "%3 = aten::clone(%1, none) -> f32[4,4]\n"
	                         "output (%2, %3)\n");
}

/* A second tensor on the memory may get other sizes in place; the tensor itself does with its other name. */
static void views_of_written_memory_stay(void **state)
{
	(void)state;
	stays("identity", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	                         "%2 = aten::alias(%1) -> f32[4,4] view-of %1\n"
	                         "%3 = aten::t_(%2) -> f32[4,4] view-of %1 writes %2\n"
	                         "%4 = aten::add.Tensor(%1, %2, 1) -> f32[4,4]\n"
	                         "output %4\n");
	becomes("identity",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	               "%2 = aten::dropout(%1, 0.5, false) -> f32[4,4] view-of %1 {random}\n"
	               "%3 = aten::relu_(%2) -> f32[4,4] view-of %1 writes %2\n"
	               "%4 = aten::add.Tensor(%1, %2, 1) -> f32[4,4]\n"
	               "output %4\n",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	               "%2 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n"
	               "%3 = aten::add.Tensor(%1, %1, 1) -> f32[4,4]\n"
	               "output %3\n");
}

static void copies_stay_where_memory_is_written_or_seen(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* the copy is written */
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::clone(%1, none) -> f32[4,4]\n"
			   "%3 = aten::relu_(%2) -> f32[4,4] view-of %2 writes %2\n"
			   "%4 = aten::add.Tensor(%3, %1, 1) -> f32[4,4]\noutput %4\n",
		/* the source is */
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::clone(%1, none) -> f32[4,4]\n"
			   "%3 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n"
			   "%4 = aten::add.Tensor(%3, %2, 1) -> f32[4,4]\noutput %4\n",
		/* a view of the copy leaves */
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::clone(%1, none) -> f32[4,4]\n"
			   "%3 = aten::view(%2, [16]) -> f32[16] view-of %2\noutput (%1, %3)\n",
		/* the source is not contiguous, or may not be: the copy has other strides */
		HEAD X "%1 = aten::t(%0) -> f32[4,4] view-of %0\n%2 = aten::clone(%1, none) -> f32[4,4]\n"
			   "%3 = aten::neg(%2) -> f32[4,4]\noutput %3\n",
		HEAD "param @w f32[4,4]\n%0 = aten::clone(@w, none) -> f32[4,4]\n%1 = aten::neg(%0) -> f32[4,4]\noutput %1\n",
		HEAD "input %0 f32[4,4] strides(1,4) name=\"x\"\n%1 = aten::clone(%0, none) -> f32[4,4]\n"
			 "%2 = aten::neg(%1) -> f32[4,4]\noutput %2\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		stays("identity", texts[i]);
}

static void views_of_a_copy_are_views_of_the_source(void **state)
{
	(void)state;
	becomes("identity",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	               "%2 = aten::clone(%1, none) -> f32[4,4]\n"
	               "%3 = aten::view(%2, [16]) -> f32[16] view-of %2\n"
	               "%4 = aten::neg(%3) -> f32[16]\n"
	               "output (%1, %4)\n",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n"
	               "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	               "%3 = aten::neg(%2) -> f32[16]\n"
	               "output (%1, %3)\n");
}

/* What is known to be contiguous, node by node: contiguous of it goes. */
static void check_contiguous(const char *made, const char *type, bool goes)
{
	char before[1024], after[1024];
	const char *head = HEAD "symbol B 1..8\ninput %0 f32[4,4] name=\"x\"\ninput %1 f32[4,4] strides(1,4) name=\"y\"\n"
							"param @w f32[4,4]\nconst #0 f32[4,4]\nconst #1 f32[4,4] strides(1,4)\n"
							"const #2 f32[4]\nconst #3 f32[4,1]\n";
	snprintf(before, sizeof before,
	         "%s%%2 = %s\n%%3 = aten::contiguous(%%2, memory:contiguous) -> %s view-of %s\n%%4 = aten::sin(%%3) -> "
	         "%s\noutput %%4\n",
	         head, made, type, strstr(made, "view-of") ? strstr(made, "view-of") + 8 : "%2", type);
	snprintf(after, sizeof after, "%s%%2 = %s\n%%3 = aten::sin(%%2) -> %s\noutput %%3\n", head, made, type);
	becomes("identity", before, goes ? after : before);
}

static void contiguity_is_known_where_it_is_certain(void **state)
{
	(void)state;
	check_contiguous("aten::relu(%0) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::relu(#0) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::relu(%1) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::relu(#1) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::relu(@w) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::add.Tensor(%0, #0, 1) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::add.Tensor(%0, num(2), 1) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::add.Tensor(%0, #2, 1) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::add.Tensor(%1, #2, 1) -> f32[4,4]", "f32[4,4]", false);
	/* strides of dimensions of size 1 may turn the order of others */
	check_contiguous("aten::add.Tensor(%0, #3, 1) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::add.Tensor(%0, @w, 1) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::add.Tensor(%0, %1, 1) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::view(%0, [16]) -> f32[16] view-of %0", "f32[16]", true);
	check_contiguous("aten::view(%1, [16]) -> f32[16] view-of %1", "f32[16]", false);
	check_contiguous("aten::unsqueeze(%0, 0) -> f32[1,4,4] view-of %0", "f32[1,4,4]", true);
	check_contiguous("aten::select.int(%0, 0, 1) -> f32[4] view-of %0", "f32[4]", true);
	check_contiguous("aten::select.int(%0, 1, 1) -> f32[4] view-of %0", "f32[4]", false);
	check_contiguous("aten::slice.Tensor(%0, 0, 1, 3, 1) -> f32[2,4] view-of %0", "f32[2,4]", true);
	check_contiguous("aten::slice.Tensor(%0, 1, 1, 3, 1) -> f32[4,2] view-of %0", "f32[4,2]", false);
	check_contiguous("aten::slice.Tensor(%0, 0, 0, 4, 2) -> f32[2,4] view-of %0", "f32[2,4]", false);
	check_contiguous("aten::t(%0) -> f32[4,4] view-of %0", "f32[4,4]", false);
	check_contiguous("aten::linear(%1, @w, none) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::matmul(%0, %1) -> f32[4,4]", "f32[4,4]", true);
	check_contiguous("aten::clone(%1, memory:contiguous) -> f32[4,4]", "f32[4,4]", false);
	check_contiguous("aten::arange(4, none, none, none, none) -> i64[4]", "i64[4]", true);
	check_contiguous("aten::zeros([B], none, none, none, none) -> f32[B]", "f32[B]", true);
	check_contiguous("test::unknown(%0) -> f32[4,4]", "f32[4,4]", false);
}

/* ---- common ------------------------------------------------------------------------------------------------------ */

static void what_was_made_before_is_read_again(void **state)
{
	(void)state;
	becomes("common",
	        HEAD "scope \"\" \"M\"\n" X "%1 = aten::sin(%0) -> f32[4,4] in \"\"\n"
	             "%2 = aten::sin(%0) -> f32[4,4] at \"m.py:3\"\n"
	             "%3 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	             "%4 = aten::view(%2, [16]) -> f32[16] view-of %2\n"
	             "%5 = aten::cat([%3, %4, %3], 0) -> f32[48]\n"
	             "%6 = aten::cat([%4, %3, %4], 0) -> f32[48]\n"
	             "[%7, %8] = aten::split.Tensor(%5, 24, 0) -> [f32[24] view-of %5, f32[24] view-of %5]\n"
	             "[%9, %10] = aten::split.Tensor(%6, 24, 0) -> [f32[24] view-of %6, f32[24] view-of %6]\n"
	             "%11 = aten::add.Tensor(%7, %9, 1) -> f32[24]\n"
	             "%12 = aten::add.Tensor(%8, %10, 1) -> f32[24]\n"
	             "output (%11, %12)\n",
	        HEAD "scope \"\" \"M\"\n" X "%1 = aten::sin(%0) -> f32[4,4] in \"\"\n"
	             "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	             "%3 = aten::cat([%2, %2, %2], 0) -> f32[48]\n"
	             "[%4, %5] = aten::split.Tensor(%3, 24, 0) -> [f32[24] view-of %3, f32[24] view-of %3]\n"
	             "%6 = aten::add.Tensor(%4, %4, 1) -> f32[24]\n"
	             "%7 = aten::add.Tensor(%5, %5, 1) -> f32[24]\n"
	             "output (%6, %7)\n");
}

/* A pair of nodes on %0 (and %1) whose sum is the output. */
static void check_pair(const char *a, const char *b, const char *type, bool joined)
{
	char before[1024], after[1024];
	const char *head = HEAD "symbol B 1..8\ninput %0 f32[4,4] name=\"x\"\ninput %1 f32[4,4] name=\"y\"\n";
	snprintf(before, sizeof before, "%s%%2 = %s\n%%3 = %s\n%%4 = aten::add.Tensor(%%2, %%3, 1) -> %s\noutput %%4\n",
	         head, a, b, type);
	snprintf(after, sizeof after, "%s%%2 = %s\n%%3 = aten::add.Tensor(%%2, %%2, 1) -> %s\noutput %%3\n", head, a, type);
	becomes("common", before, joined ? after : before);
}

static void only_equal_nodes_are_one(void **state)
{
	(void)state;
	static const struct {
		const char *a, *b;
		bool joined;
	} pairs[] = {
		{"aten::sin(%0) -> f32[4,4]", "aten::sin(%0) -> f32[4,4]", true},
		{"aten::sin(%0) -> f32[4,4] grad", "aten::sin(%0) -> f32[4,4] {nograd}", false},
		{"aten::sin(%0) -> f32[4,4]", "aten::sin(%1) -> f32[4,4]", false},
		{"aten::sin(%0) -> f32[4,4]", "aten::cos(%0) -> f32[4,4]", false},
		{"aten::sin(%0) -> f32[4,4]", "aten::sin(%0) -> f32[4,4] {autocast=cpu:bf16}", false},
		{"aten::f(%0, 1) -> f32[4,4]", "aten::f(%0, 1) -> f32[4,4]", true},
		{"aten::f(%0, 1) -> f32[4,4]", "aten::f(%0, 2) -> f32[4,4]", false},
		{"aten::f(%0, B) -> f32[4,4]", "aten::f(%0, B) -> f32[4,4]", true},
		{"aten::f(%0, 1) -> f32[4,4]", "aten::f(%0, num(1)) -> f32[4,4]", false},
		{"aten::f(%0, 1) -> f32[4,4]", "aten::f(%0, true) -> f32[4,4]", false},
		{"aten::f(%0, 1.0) -> f32[4,4]", "aten::f(%0, 1) -> f32[4,4]", false},
		{"aten::f(%0, 0.0) -> f32[4,4]", "aten::f(%0, -0.0) -> f32[4,4]", false},
		{"aten::f(%0, nan) -> f32[4,4]", "aten::f(%0, nan) -> f32[4,4]", true},
		{"aten::f(%0, complex(1.0,2.0)) -> f32[4,4]", "aten::f(%0, complex(1.0,2.0)) -> f32[4,4]", true},
		{"aten::f(%0, complex(1.0,2.0)) -> f32[4,4]", "aten::f(%0, complex(1.0,3.0)) -> f32[4,4]", false},
		{"aten::f(%0, float(1.0/int(B))) -> f32[4,4]", "aten::f(%0, float(1.0/int(B))) -> f32[4,4]", true},
		{"aten::f(%0, \"a\") -> f32[4,4]", "aten::f(%0, \"b\") -> f32[4,4]", false},
		{"aten::f(%0, dtype:f32) -> f32[4,4]", "aten::f(%0, dtype:f64) -> f32[4,4]", false},
		{"aten::f(%0, device:cpu) -> f32[4,4]", "aten::f(%0, device:cpu) -> f32[4,4]", true},
		{"aten::f(%0, memory:preserve) -> f32[4,4]", "aten::f(%0, layout:sparse_coo) -> f32[4,4]", false},
		{"aten::f([%0, 1]) -> f32[4,4]", "aten::f([%0, 1]) -> f32[4,4]", true},
		{"aten::f([%0, 1]) -> f32[4,4]", "aten::f([%0, 1, none]) -> f32[4,4]", false},
		{"aten::f(%0, none) -> f32[4,4]", "aten::f(%0) -> f32[4,4]", false},
		{"aten::f(%0) -> f32[4,4]", "aten::f(%0) -> f64[4,4]", false},
		{"aten::f(%0) -> f32[4,4]", "aten::f(%0) -> f32[4,B]", false},
		{"aten::f(%0) -> f32[4,4]", "aten::f(%0) -> f32[4,4] view-of %0", false},
		{"aten::f(%0) -> f32[4,4]", "aten::f(%0) -> f32[4,4] odd", false},
		{"aten::f(%0) -> f32[4,4] {random}", "aten::f(%0) -> f32[4,4] {random}", false},
		{"aten::f(%0) -> f32[4,4] {impure}", "aten::f(%0) -> f32[4,4] {impure}", false},
		{"aten::f(%0) -> f32[4,4] {host}", "aten::f(%0) -> f32[4,4] {host}", false},
		{"aten::f(%0) -> f32[4,4] guard", "aten::f(%0) -> f32[4,4] guard", false},
		{"aten::dropout(%0, 0.0, true) -> f32[4,4] {random}", "aten::dropout(%0, 0.0, true) -> f32[4,4] {random}",
	     true},
		{"aten::zeros([4, 4]) -> f32[4,4]", "aten::zeros([4, 4]) -> f32[4,4]", true},
		{"aten::empty.memory_format([4, 4]) -> f32[4,4]", "aten::empty.memory_format([4, 4]) -> f32[4,4]", false},
		{"aten::empty_like(%0) -> f32[4,4]", "aten::empty_like(%0) -> f32[4,4]", false},
		{"aten::new_empty(%0) -> f32[4,4]", "aten::new_empty(%0) -> f32[4,4]", false},
		{"test::noise(%0) -> f32[4,4]", "test::noise(%0) -> f32[4,4]", false},
		{"cleave::python(#f) -> f32[4,4]", "cleave::python(#f) -> f32[4,4]", false},
	};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		if (!strstr(pairs[i].a, "#f"))
			check_pair(pairs[i].a, pairs[i].b, "f32[4,4]", pairs[i].joined);
	}
	stays("common", HEAD "object #f \"F\"\n%0 = cleave::python(#f) -> f32[4]\n%1 = cleave::python(#f) -> f32[4]\n"
	                     "%2 = aten::add.Tensor(%0, %1, 1) -> f32[4]\noutput %2\n");
}

static void written_memory_is_not_shared(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* a factory's result is written */
		HEAD "%0 = aten::zeros([4]) -> f32[4]\n%1 = aten::zeros([4]) -> f32[4]\n"
			 "%2 = aten::add_.Tensor(%1, num(1), 1) -> f32[4] view-of %1 writes %1\n"
			 "%3 = aten::add.Tensor(%0, %2, 1) -> f32[4]\noutput %3\n",
		/* what is read is written in between */
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::neg(%1) -> f32[4,4]\n"
			   "%3 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n%4 = aten::neg(%1) -> f32[4,4]\n"
			   "%5 = aten::add.Tensor(%2, %4, 1) -> f32[4,4]\noutput %5\n",
		/* an input is written through a view */
		HEAD X "%1 = aten::neg(%0) -> f32[4,4]\n%2 = aten::view(%0, [16]) -> f32[16] view-of %0\n"
			   "%3 = aten::relu_(%2) -> f32[16] view-of %0 writes %2\n%4 = aten::neg(%0) -> f32[4,4]\n"
			   "%5 = aten::add.Tensor(%1, %4, 1) -> f32[4,4]\noutput %5\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		stays("common", texts[i]);
}

static void outputs_stay_two(void **state)
{
	(void)state;
	stays("common", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::sin(%0) -> f32[4,4]\noutput (%1, %2)\n");
	stays("common", HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::sin(%0) -> f32[4,4]\n"
	                       "%3 = aten::view(%2, [16]) -> f32[16] view-of %2\noutput (%1, %3)\n");
	/* the third has a view that leaves, the first has one through the second */
	becomes(
		"common",
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::sin(%0) -> f32[4,4]\n%3 = aten::sin(%0) -> f32[4,4]\n"
			   "%4 = aten::view(%2, [16]) -> f32[16] view-of %2\n%5 = aten::view(%3, [2,8]) -> f32[2,8] view-of %3\n"
			   "%6 = aten::neg(%1) -> f32[4,4]\noutput (%4, %5, %6)\n",
		HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::sin(%0) -> f32[4,4]\n"
			   "%3 = aten::view(%1, [16]) -> f32[16] view-of %1\n%4 = aten::view(%2, [2,8]) -> f32[2,8] view-of %2\n"
			   "%5 = aten::neg(%1) -> f32[4,4]\noutput (%3, %4, %5)\n");
	/* only the first leaves */
	becomes("common",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::sin(%0) -> f32[4,4]\n%3 = aten::neg(%2) -> f32[4,4]\n"
	               "output (%1, %3)\n",
	        HEAD X "%1 = aten::sin(%0) -> f32[4,4]\n%2 = aten::neg(%1) -> f32[4,4]\noutput (%1, %2)\n");
}

/* ---- the prelude ------------------------------------------------------------------------------------------------- */

/* The first `found` nodes of `after` are the prelude of `before`. */
static void check_prelude(optimize_level level, uint32_t found, const char *before, const char *after)
{
	plan *p = load_ok(before), *wanted = load_ok(after);
	optimized_plan o = run_pass_on(p, 0, p->nodes.n, "prelude", level);
	char *text = print_ok(o.p), *want = print_ok(wanted);
	assert_string_equal(text, want);
	check_survives_text(o.p, text);
	assert_int_equal(o.part[0], 0);
	assert_int_equal(o.part[PART_MAIN], found);
	assert_int_equal(o.part[PARTS], o.p->nodes.n);
	mem_free(text);
	mem_free(want);
	plan_free(p);
	plan_free(wanted);
	optimized_plan_free(&o);
}

#define WEIGHTS                                                                                                        \
	HEAD "symbol B 1..8\n" X "param @w f32[4,4]\n"                                                                     \
		 "const #0 f32[4,4]\n"

static void what_depends_on_constants_comes_first(void **state)
{
	(void)state;
	const char *before = WEIGHTS "%1 = aten::sin(%0) -> f32[4,4]\n"
								 "%2 = aten::neg(#0) -> f32[4,4]\n"
								 "%3 = aten::neg(@w) -> f32[4,4]\n"
								 "%4 = aten::arange(4, none, none, none, none) -> i64[4]\n"
								 "%5 = aten::zeros([B]) -> f32[B]\n"
								 "%6 = aten::all_of(%1, %2, %3, %4, %5) -> f32[4]\n"
								 "output %6\n";
	check_prelude(OPTIMIZE_SAFE, 2, before,
	              WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n"
	                      "%2 = aten::arange(4, none, none, none, none) -> i64[4]\n"
	                      "%3 = aten::sin(%0) -> f32[4,4]\n"
	                      "%4 = aten::neg(@w) -> f32[4,4]\n"
	                      "%5 = aten::zeros([B]) -> f32[B]\n"
	                      "%6 = aten::all_of(%3, %1, %4, %2, %5) -> f32[4]\n"
	                      "output %6\n");
	check_prelude(OPTIMIZE_FAST, 3, before,
	              WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n"
	                      "%2 = aten::neg(@w) -> f32[4,4]\n"
	                      "%3 = aten::arange(4, none, none, none, none) -> i64[4]\n"
	                      "%4 = aten::sin(%0) -> f32[4,4]\n"
	                      "%5 = aten::zeros([B]) -> f32[B]\n"
	                      "%6 = aten::all_of(%4, %1, %2, %3, %5) -> f32[4]\n"
	                      "output %6\n");
}

static void what_changes_or_leaves_is_no_prelude(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* the constant is written */
		WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n%2 = aten::relu_(#0) -> f32[4,4] view-of #0 writes #0\n"
				"%3 = aten::add.Tensor(%0, %1, 1) -> f32[4,4]\noutput %3\n",
		/* the result is */
		WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n%2 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n"
				"%3 = aten::add.Tensor(%0, %1, 1) -> f32[4,4]\noutput %3\n",
		/* it leaves, or a view of it does */
		WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\noutput %1\n",
		WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n%2 = aten::view(%1, [16]) -> f32[16] view-of %1\noutput %2\n",
		WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\nrebind @w = %1\noutput %0\n",
		/* it draws, has an effect, or no result */
		WEIGHTS "%1 = aten::bernoulli(#0) -> f32[4,4] {random}\n%2 = aten::neg(%1) -> f32[4,4]\n"
				"%3 = aten::add.Tensor(%0, %2, 1) -> f32[4,4]\noutput %3\n",
		WEIGHTS "%1 = test::print(#0) -> f32[4,4] {impure}\ntest::log(#0)\noutput %0\n",
		WEIGHTS "%1 = test::noise(#0) -> f32[4,4]\n%2 = aten::add.Tensor(%0, %1, 1) -> f32[4,4]\noutput %2\n",
		/* numbers that follow the sizes */
		WEIGHTS
		"%1 = aten::mul.Tensor(#0, num(B)) -> f32[4,4]\n%2 = aten::add.Tensor(%0, %1, 1) -> f32[4,4]\noutput %2\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		check_prelude(OPTIMIZE_SAFE, 0, texts[i], texts[i]);
}

static void guards_on_constants_come_first(void **state)
{
	(void)state;
	check_prelude(OPTIMIZE_SAFE, 7,
	              WEIGHTS "%1 = aten::sin(%0) -> f32[4,4]\n"
	                      "%2 = aten::all(#0) -> bool[]\n"
	                      "%3 = aten::is_nonzero(%2) -> bool = true {host}\n"
	                      "%4 = aten::item(%2) -> int = 3 {host}\n"
	                      "%5 = aten::item(#0) -> float = [0.5, 2.0] {host}\n"
	                      "%6 = aten::equal(#0, %2) -> bool = false {host}\n"
	                      "%7 = aten::nonzero(#0) -> i64[3,2] guard {host}\n"
	                      "cleave::guard_equal(%7, #0, \"tolist\") {host, impure}\n"
	                      "%8 = aten::is_nonzero(%1) -> bool = true {host}\n"
	                      "cleave::guard_equal(%1, #0, \"tolist\") {host, impure}\n"
	                      "output %1\n",
	              WEIGHTS "%1 = aten::all(#0) -> bool[]\n"
	                      "%2 = aten::is_nonzero(%1) -> bool = true {host}\n"
	                      "%3 = aten::item(%1) -> int = 3 {host}\n"
	                      "%4 = aten::item(#0) -> float = [0.5, 2.0] {host}\n"
	                      "%5 = aten::equal(#0, %1) -> bool = false {host}\n"
	                      "%6 = aten::nonzero(#0) -> i64[3,2] guard {host}\n"
	                      "cleave::guard_equal(%6, #0, \"tolist\") {host, impure}\n"
	                      "%7 = aten::sin(%0) -> f32[4,4]\n"
	                      "%8 = aten::is_nonzero(%7) -> bool = true {host}\n"
	                      "cleave::guard_equal(%7, #0, \"tolist\") {host, impure}\n"
	                      "output %7\n");
}

static void guards_that_others_need_stay(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* a number that a node takes, or the caller */
		WEIGHTS
		"%1 = aten::item(#0) -> float = [0.5, 2.0] {host}\n%2 = aten::mul.Tensor(%0, num(%1)) -> f32[4,4]\noutput %2\n",
		WEIGHTS "%1 = aten::item(#0) -> int = 3 {host}\noutput (%0, %1)\n",
		/* no guard: what is read goes somewhere */
		WEIGHTS "%1 = aten::item(#0) -> int {host}\noutput %0\n",
		/* compared with what follows the sizes, or defines a number */
		WEIGHTS "%1 = aten::item(#0) -> int = B {host}\noutput %0\n",
		WEIGHTS "%1 = aten::item(#0) -> float = float(1.0/int(B)) {host}\noutput %0\n",
		HEAD "symbol n 0..9 data\n" X "const #0 i64[]\n%1 = aten::item(#0) -> int = n {host}\noutput (%0, n)\n",
		HEAD "symbol n 0..9 data\n" X
			 "const #0 i64[9]\n%1 = aten::nonzero(#0) -> i64[n,1] guard {host}\noutput (%0, n)\n",
		/* on what is written */
		WEIGHTS "%1 = aten::relu_(#0) -> f32[4,4] view-of #0 writes #0\n%2 = aten::is_nonzero(#0) -> bool = true "
				"{host}\noutput %0\n",
		/* on a parameter: it may change unseen */
		WEIGHTS "%1 = aten::is_nonzero(@w) -> bool = true {host}\noutput %0\n",
		WEIGHTS "cleave::guard_equal(@w, #0, \"tolist\") {host, impure}\noutput %0\n",
		WEIGHTS "%1 = test::ask(#0) -> bool = true {host, impure}\noutput %0\n",
		WEIGHTS "%1 = test::ask(#0) -> bool = true {host}\noutput %0\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		check_prelude(OPTIMIZE_SAFE, 0, texts[i], texts[i]);
}

/* ---- parts by sizes, and guards ----------------------------------------------------------------------------------- */

/* Passes that change nothing but the order: how many nodes each part has. */
static void check_parts(bool guards_first, const uint32_t want[PARTS], const char *before)
{
	static const char *const off[] = {"identity", "common", "dead", NULL};
	plan *p = load_ok(before);
	optimize_spec s = {.level = OPTIMIZE_SAFE, .off = off, .guards_first = guards_first};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	OK(plan_verify(o.p));
	for (unsigned i = 0; i < PARTS; i++)
		assert_int_equal(o.part[i + 1] - o.part[i], want[i]);
	optimized_plan_free(&o);
	plan_free(p);
}

#define SIZED                                                                                                          \
	HEAD "symbol B 1..8\nsymbol n 1..9 data\ninput %0 f32[B,4] name=\"x\"\nparam @w f32[4,4]\n"                        \
		 "const #0 f32[4,4]\n"
#define ASK(v) "aten::is_nonzero(" v ") -> bool = true {host}\n"

static void what_depends_on_sizes_has_its_part(void **state)
{
	(void)state;
	check_parts(false, (uint32_t[PARTS]){1, 4, 0, 2},
	            SIZED
	            "%1 = aten::sin(%0) -> f32[B,4]\n%2 = aten::neg(#0) -> f32[4,4]\n%3 = aten::zeros([B]) -> f32[B]\n"
	            "%4 = aten::mul.Tensor(%2, num(B)) -> f32[4,4]\n%5 = aten::all(%3) -> bool[]\n%6 = " ASK(
					"%5") "%7 = aten::add.Tensor(%1, %3, 1) -> f32[B,4]\noutput %7\n");
	/* compared with a number that follows the sizes */
	check_parts(false, (uint32_t[PARTS]){0, 1, 0, 0}, SIZED "%1 = aten::item(#0) -> int = B {host}\noutput %0\n");
	/* it leaves, is written, follows an input, waits for data, or is made of a parameter */
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 1}, SIZED "%1 = aten::zeros([B]) -> f32[B]\noutput %1\n");
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 2},
	            SIZED "%1 = aten::zeros([B]) -> f32[B]\n%2 = aten::view(%1, [B]) -> f32[B] view-of %1\noutput %2\n");
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 3},
	            SIZED "%1 = aten::zeros([B]) -> f32[B]\n%2 = aten::relu_(%1) -> f32[B] view-of %1 writes %1\n"
	                  "%3 = aten::add.Tensor(%0, %1, 1) -> f32[B,4]\noutput %3\n");
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 1}, SIZED "%1 = aten::new_zeros(%0, [B]) -> f32[B]\noutput %0\n");
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 2},
	            SIZED "%1 = aten::nonzero(%0) -> i64[n,2] guard {host}\n%2 = aten::zeros([n]) -> f32[n]\noutput %0\n");
	check_parts(false, (uint32_t[PARTS]){0, 0, 0, 1},
	            SIZED "%1 = aten::mul.Tensor(@w, num(B)) -> f32[4,4]\noutput %0\n");
}

static void guards_come_before_the_rest_where_that_is_wanted(void **state)
{
	(void)state;
	static const char *const text =
		SIZED "%1 = aten::sin(%0) -> f32[B,4]\n%2 = aten::zeros([B]) -> f32[B]\n%3 = aten::add.Tensor(%0, %2, 1) -> "
			  "f32[B,4]\n%4 = aten::mm(%3, @w) -> f32[B,4]\n%5 = aten::all(%4) -> bool[]\n%6 = " ASK(
				  "%5") "%7 = aten::add.Tensor(%1, %3, 1) -> f32[B,4]\noutput %7\n";
	check_parts(true, (uint32_t[PARTS]){0, 1, 4, 2}, text);
	check_parts(false, (uint32_t[PARTS]){0, 1, 0, 6}, text);
	/* what it reads is an output, is written, drawn, or read from data; then it stays where it was */
	check_parts(true, (uint32_t[PARTS]){0, 0, 0, 2},
	            SIZED "%1 = aten::all(%0) -> bool[]\n%2 = " ASK("%1") "output %1\n");
	check_parts(true, (uint32_t[PARTS]){0, 0, 0, 3},
	            SIZED "%1 = aten::relu_(%0) -> f32[B,4] view-of %0 writes %0\n%2 = aten::all(%0) -> bool[]\n%3 = " ASK(
					"%2") "output %1\n");
	check_parts(true, (uint32_t[PARTS]){0, 0, 0, 2},
	            SIZED "%1 = aten::bernoulli(%0) -> f32[B,4] {random}\n%2 = " ASK("%1") "output %0\n");
	check_parts(true, (uint32_t[PARTS]){0, 0, 0, 2},
	            SIZED "%1 = aten::nonzero(%0) -> i64[n,2] guard {host}\n%2 = " ASK("%1") "output (%0, n)\n");
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static const char *const much = WEIGHTS "%1 = aten::dropout(%0, 0.5, false) -> f32[4,4] view-of %0 {random}\n"
										"%2 = aten::sin(%1) -> f32[4,4]\n"
										"%3 = aten::sin(%0) -> f32[4,4]\n"
										"%4 = aten::cos(%2) -> f32[4,4]\n"
										"%5 = aten::neg(#0) -> f32[4,4]\n"
										"%6 = aten::add.Tensor(%2, %3, 1) -> f32[4,4]\n"
										"%7 = aten::add.Tensor(%6, %5, 1) -> f32[4,4]\n"
										"output %7\n";

static optimized_plan optimize_ok(const char *text, optimize_level level, const char *const *off)
{
	plan *p = load_ok(text);
	optimize_spec s = {.level = level, .off = off};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	plan_free(p);
	return o;
}

static void passes_work_together(void **state)
{
	(void)state;
	optimized_plan o = optimize_ok(much, OPTIMIZE_SAFE, NULL);
	char *text = print_ok(o.p);
	assert_string_equal(text, WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n"
	                                  "%2 = aten::sin(%0) -> f32[4,4]\n"
	                                  "%3 = aten::add.Tensor(%2, %2, 1) -> f32[4,4]\n"
	                                  "%4 = aten::add_.Tensor(%3, %1, 1) -> f32[4,4] view-of %3 writes %3\n"
	                                  "output %4\n");
	assert_int_equal(o.part[PART_MAIN], 1);
	static const char *const names[] = {"identity", "common", "dead", "in_place", "prelude"};
	assert_int_equal(o.counts.n, 5);
	for (uint32_t i = 0; i < 5; i++) {
		assert_string_equal(o.counts.at[i].pass, names[i]);
		assert_int_equal(o.counts.at[i].changes, 1);
	}
	mem_free(text);
	optimized_plan_free(&o);
}

static void each_pass_can_be_switched_off(void **state)
{
	(void)state;
	static const char *const names[] = {"identity", "common", "dead", "in_place", "prelude"};
	for (uint32_t i = 0; i < 5; i++) {
		const char *off[] = {names[i], NULL};
		optimized_plan o = optimize_ok(much, OPTIMIZE_SAFE, off);
		for (uint32_t k = 0; k < o.counts.n; k++)
			assert_string_not_equal(o.counts.at[k].pass, names[i]);
		assert_true(o.counts.n >= 2);
		optimized_plan_free(&o);
	}
}

/* Segments that are compiled: what they read and give stays, and so do they. */
static void nodes_around_pinned_ones_are_rewritten(void **state)
{
	(void)state;
	plan *p = load_ok(WEIGHTS "%1 = aten::alias(%0) -> f32[4,4] view-of %0\n"
	                          "%2 = aten::sin(%1) -> f32[4,4]\n"
	                          "%3 = aten::alias(%2) -> f32[4,4] view-of %2\n"
	                          "%4 = aten::sin(%3) -> f32[4,4]\n" /* pinned: 3, 4, 5 */
	                          "%5 = aten::alias(%4) -> f32[4,4] view-of %4\n"
	                          "%6 = aten::cos(%4) -> f32[4,4]\n"
	                          "%7 = aten::alias(%5) -> f32[4,4] view-of %4\n"
	                          "%8 = aten::neg(#0) -> f32[4,4]\n"
	                          "%9 = aten::sin(%0) -> f32[4,4]\n"
	                          "%10 = aten::cos(%4) -> f32[4,4]\n"
	                          "%11 = aten::add.Tensor(%7, %9, 1) -> f32[4,4]\n"
	                          "%12 = aten::add.Tensor(%11, %8, 1) -> f32[4,4]\n"
	                          "%13 = aten::add.Tensor(%12, %10, 1) -> f32[4,4]\n"
	                          "output %13\n");
	node_span pinned = {3, 6};
	optimize_spec s = {.level = OPTIMIZE_SAFE, .pinned = &pinned, .npinned = 1};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	char *text = print_ok(o.p);
	assert_string_equal(text, WEIGHTS "%1 = aten::neg(#0) -> f32[4,4]\n"
	                                  "%2 = aten::sin(%0) -> f32[4,4]\n"
	                                  "%3 = aten::alias(%2) -> f32[4,4] view-of %2\n"
	                                  "%4 = aten::sin(%3) -> f32[4,4]\n"
	                                  "%5 = aten::alias(%4) -> f32[4,4] view-of %4\n"
	                                  "%6 = aten::cos(%4) -> f32[4,4]\n"
	                                  "%7 = aten::cos(%4) -> f32[4,4]\n"
	                                  "%8 = aten::add.Tensor(%5, %2, 1) -> f32[4,4]\n"
	                                  "%9 = aten::add.Tensor(%8, %1, 1) -> f32[4,4]\n"
	                                  "%10 = aten::add.Tensor(%9, %7, 1) -> f32[4,4]\n"
	                                  "output %10\n");
	assert_true(o.pinned[0].first == 3 && o.pinned[0].end == 6);
	mem_free(text);
	optimized_plan_free(&o);
	plan_free(p);
}

static void bad_ranges_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(much);
	optimize_spec s = {.level = OPTIMIZE_SAFE};
	optimized_plan o;
	FAILS(optimize(p, 3, 2, &s, &o), CLV_E_INVALID, "no range of the plan");
	optimized_plan_free(&o);
	FAILS(optimize(p, 0, 99, &s, &o), CLV_E_INVALID, "no range of the plan");
	optimized_plan_free(&o);
	plan_free(p);
}

static clv_status optimize_once(const void *ctx)
{
	const plan *p = ctx;
	optimize_spec s = {.level = OPTIMIZE_SAFE};
	optimized_plan o;
	clv_status st = optimize(p, 0, p->nodes.n, &s, &o);
	optimized_plan_free(&o);
	return st;
}

static void passes_survive_every_failed_allocation(void **state)
{
	(void)state;
	plan *p = load_ok(much);
	assert_true(sweep_faults(optimize_once, p, CLV_OK) > 100);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dead_nodes_go_all_the_way_up),
		cmocka_unit_test(what_has_an_effect_stays),
		cmocka_unit_test(dropout_that_drops_nothing_is_no_effect),
		cmocka_unit_test(one_needed_result_keeps_its_node),
		cmocka_unit_test(the_first_on_used_memory_stays),
		cmocka_unit_test(numbers_of_data_keep_their_node),
		cmocka_unit_test(what_leaves_the_range_is_not_dead),
		cmocka_unit_test(nodes_that_give_back_what_they_get_go),
		cmocka_unit_test(what_leaves_keeps_its_node),
		cmocka_unit_test(views_of_written_memory_stay),
		cmocka_unit_test(copies_stay_where_memory_is_written_or_seen),
		cmocka_unit_test(views_of_a_copy_are_views_of_the_source),
		cmocka_unit_test(contiguity_is_known_where_it_is_certain),
		cmocka_unit_test(what_was_made_before_is_read_again),
		cmocka_unit_test(only_equal_nodes_are_one),
		cmocka_unit_test(written_memory_is_not_shared),
		cmocka_unit_test(outputs_stay_two),
		cmocka_unit_test(what_depends_on_constants_comes_first),
		cmocka_unit_test(what_changes_or_leaves_is_no_prelude),
		cmocka_unit_test(guards_on_constants_come_first),
		cmocka_unit_test(guards_that_others_need_stay),
		cmocka_unit_test(what_depends_on_sizes_has_its_part),
		cmocka_unit_test(guards_come_before_the_rest_where_that_is_wanted),
		cmocka_unit_test(passes_work_together),
		cmocka_unit_test(each_pass_can_be_switched_off),
		cmocka_unit_test(nodes_around_pinned_ones_are_rewritten),
		cmocka_unit_test(bad_ranges_are_refused),
		cmocka_unit_test(passes_survive_every_failed_allocation),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
