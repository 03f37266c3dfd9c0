/* Symbolic integers: normal form, evaluation, printing. */
#include "support.h"

static plan *p;
static expr_id B, S;

static int make_plan(void **state)
{
	(void)state;
	symbol_id b, s;
	OK(plan_new(&p));
	OK(plan_symbol(p, "B", 1, 64, &b));
	OK(plan_symbol(p, "S", 1, 1000, &s));
	OK(expr_sym(p, b, &B));
	OK(expr_sym(p, s, &S));
	return 0;
}

static int drop_plan(void **state)
{
	(void)state;
	plan_free(p);
	p = NULL;
	return 0;
}

static expr_id number(int64_t k)
{
	expr_id e;
	OK(expr_const(p, k, &e));
	return e;
}

static expr_id make(expr_op op, expr_id a, expr_id b)
{
	expr_id e;
	OK(expr_make(p, op, a, b, &e));
	return e;
}

static int64_t value_at(expr_id e, int64_t b, int64_t s)
{
	int64_t out;
	OK(expr_eval(p, e, (int64_t[]){b, s}, &out));
	return out;
}

static void check_text(expr_id e, const char *want)
{
	strbuf b = STRBUF_INIT;
	expr_print(p, e, &b);
	char *text = taken(&b);
	assert_string_equal(text, want);
	mem_free(text);
}

static void equal_expressions_have_equal_ids(void **state)
{
	(void)state;
	assert_int_equal(make(EXPR_MUL, B, S), make(EXPR_MUL, B, S));
	assert_int_equal(number(7), number(7));
	assert_int_not_equal(make(EXPR_MUL, B, S), make(EXPR_MUL, S, B));
}

static void constants_fold(void **state)
{
	(void)state;
	assert_int_equal(make(EXPR_ADD, number(2), number(3)), number(5));
	assert_int_equal(make(EXPR_FLOORDIV, number(-7), number(2)), number(-4));
	assert_int_equal(make(EXPR_MOD, number(-7), number(2)), number(1));
	assert_int_equal(make(EXPR_MOD, number(7), number(-2)), number(-1));
	assert_int_equal(make(EXPR_MIN, number(7), number(-2)), number(-2));
	assert_int_equal(make(EXPR_MAX, number(7), number(-2)), number(7));
}

static void neutral_operands_vanish(void **state)
{
	(void)state;
	assert_int_equal(make(EXPR_ADD, B, number(0)), B);
	assert_int_equal(make(EXPR_ADD, number(0), B), B);
	assert_int_equal(make(EXPR_SUB, B, number(0)), B);
	assert_int_equal(make(EXPR_SUB, B, B), number(0));
	assert_int_equal(make(EXPR_MUL, B, number(1)), B);
	assert_int_equal(make(EXPR_MUL, B, number(0)), number(0));
	assert_int_equal(make(EXPR_FLOORDIV, B, number(1)), B);
	assert_int_equal(make(EXPR_MOD, B, number(1)), number(0));
	assert_int_equal(make(EXPR_MIN, B, B), B);
}

static void constants_gather(void **state)
{
	(void)state;
	assert_int_equal(make(EXPR_ADD, number(3), B), make(EXPR_ADD, B, number(3)));
	assert_int_equal(make(EXPR_SUB, B, number(3)), make(EXPR_ADD, B, number(-3)));
	assert_int_equal(make(EXPR_ADD, make(EXPR_ADD, B, number(3)), number(-3)), B);
	assert_int_equal(make(EXPR_MUL, B, number(4)), make(EXPR_MUL, number(2), make(EXPR_MUL, number(2), B)));
}

static void what_overflows_is_not_folded(void **state)
{
	(void)state;
	expr_id e = make(EXPR_ADD, number(INT64_MAX), number(1));
	int64_t k;
	assert_false(expr_is_const(p, e, &k));
	FAILS(expr_eval(p, e, (int64_t[]){1, 1}, &k), CLV_E_OVERFLOW, "9223372036854775807+1 is too large");
	e = make(EXPR_FLOORDIV, number(INT64_MIN), number(-1));
	FAILS(expr_eval(p, e, (int64_t[]){1, 1}, &k), CLV_E_OVERFLOW, "too large");
	assert_int_equal(make(EXPR_MOD, number(INT64_MIN), number(-1)), number(0));
}

static void division_by_zero_is_an_error_with_the_expression(void **state)
{
	(void)state;
	int64_t k;
	expr_id zero = make(EXPR_SUB, B, S);
	FAILS(expr_eval(p, make(EXPR_FLOORDIV, B, zero), (int64_t[]){3, 3}, &k), CLV_E_INPUT, "B//(B-S) divides by 0");
	FAILS(expr_eval(p, make(EXPR_MOD, B, zero), (int64_t[]){3, 3}, &k), CLV_E_INPUT, "divides by 0");
	FAILS(expr_eval(p, make(EXPR_FLOORDIV, number(1), number(0)), NULL, &k), CLV_E_INPUT, "1//0 divides by 0");
}

static void division_rounds_down_as_in_python(void **state)
{
	(void)state;
	expr_id half = make(EXPR_FLOORDIV, make(EXPR_SUB, B, number(10)), number(4));
	expr_id rest = make(EXPR_MOD, make(EXPR_SUB, B, number(10)), number(4));
	assert_int_equal(value_at(half, 3, 0), -2);
	assert_int_equal(value_at(rest, 3, 0), 1);
	assert_int_equal(value_at(half, 18, 0), 2);
	assert_int_equal(value_at(rest, 18, 0), 0);
}

static void printing_uses_few_parentheses(void **state)
{
	(void)state;
	check_text(make(EXPR_ADD, make(EXPR_MUL, B, number(4)), number(1)), "4*B+1");
	check_text(make(EXPR_SUB, B, number(1)), "B-1");
	check_text(make(EXPR_MUL, make(EXPR_ADD, B, number(1)), S), "(B+1)*S");
	check_text(make(EXPR_SUB, B, make(EXPR_SUB, S, number(1))), "B-(S-1)");
	check_text(make(EXPR_SUB, make(EXPR_SUB, B, S), S), "B-S-S");
	check_text(make(EXPR_FLOORDIV, B, make(EXPR_MUL, number(2), S)), "B//(2*S)");
	check_text(make(EXPR_MIN, B, make(EXPR_MAX, S, number(-4))), "min(B, max(S, -4))");
	check_text(make(EXPR_SUB, number(0), B), "0-B");
	check_text(make(EXPR_ADD, B, number(INT64_MIN)), "B+-9223372036854775808");
	check_text(make(EXPR_SUB, B, number(INT64_MIN)), "B--9223372036854775808");
}

/* Random expressions against a second evaluator that works on the way they were made. */
static bool random_value(uint64_t *seed, unsigned depth, int64_t b, int64_t s, expr_id *e, int64_t *out)
{
	expr_id x, y;
	int64_t u = 0, v = 0;
	switch (depth ? random_below(seed, 10) : random_below(seed, 3)) {
	case 0:
		*e = B;
		*out = b;
		return true;
	case 1:
		*e = S;
		*out = s;
		return true;
	case 2:
		*out = (int64_t)random_below(seed, 9) - 4;
		*e = number(*out);
		return true;
	default: break;
	}
	bool ok = random_value(seed, depth - 1, b, s, &x, &u);
	ok = random_value(seed, depth - 1, b, s, &y, &v) && ok;
	expr_op op = (expr_op)(EXPR_ADD + random_below(seed, 7));
	*e = make(op, x, y);
	if ((op == EXPR_FLOORDIV || op == EXPR_MOD) && v == 0)
		return false;
	int64_t quotient = v ? u / v - (u % v != 0 && (u < 0) != (v < 0)) : 0;
	switch (op) {
	case EXPR_ADD: return *out = u + v, ok;
	case EXPR_SUB: return *out = u - v, ok;
	case EXPR_MUL: return *out = u * v, ok;
	case EXPR_FLOORDIV: return *out = quotient, ok;
	case EXPR_MOD: return *out = u - v * quotient, ok;
	case EXPR_MIN: return *out = u < v ? u : v, ok;
	default: return *out = u > v ? u : v, ok;
	}
}

static void random_expressions_have_the_right_value(void **state)
{
	(void)state;
	uint64_t seed = 5;
	for (int i = 0; i < 20000; i++) {
		int64_t syms[2] = {1 + random_below(&seed, 9), 1 + random_below(&seed, 9)}, want, got;
		expr_id e;
		if (random_value(&seed, 4, syms[0], syms[1], &e, &want)) {
			OK(expr_eval(p, e, syms, &got));
			assert_int_equal(got, want);
		}
	}
}

static void all_expressions_can_be_evaluated_at_once(void **state)
{
	(void)state;
	expr_id good = make(EXPR_ADD, make(EXPR_MUL, number(4), B), S), bad = make(EXPR_FLOORDIV, S, make(EXPR_SUB, B, S));
	expr_id worse = make(EXPR_ADD, bad, B);
	int64_t *out = mem_alloc(p->exprs.n * sizeof *out);
	bool *ok = mem_alloc(p->exprs.n * sizeof *ok);
	OK(expr_eval_all(p, (int64_t[]){3, 3}, out, ok));
	assert_true(ok[good]);
	assert_int_equal(out[good], 15);
	assert_false(ok[bad]);
	assert_false(ok[worse]);
	mem_free(out);
	mem_free(ok);
}

static void an_expression_has_a_largest_size(void **state)
{
	(void)state;
	expr_id e = B;
	clv_status st = CLV_OK;
	for (int i = 0; i < 1000 && st == CLV_OK; i++)
		st = expr_make(p, EXPR_MUL, e, e, &e);
	check_error(st, CLV_E_UNSUPPORTED, "more than 256 terms");
}

static void operands_that_do_not_exist_are_refused(void **state)
{
	(void)state;
	expr_id e;
	int64_t k;
	FAILS(expr_make(p, EXPR_ADD, B, 10000, &e), CLV_E_INVALID, "no such operand");
	FAILS(expr_make(p, EXPR_SYM, B, B, &e), CLV_E_INVALID, "operator");
	FAILS(expr_sym(p, 9, &e), CLV_E_INVALID, "no symbol 9");
	FAILS(expr_eval(p, NONE, NULL, &k), CLV_E_INVALID, "no expression");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_plan, drop_plan)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(equal_expressions_have_equal_ids),
		TEST(constants_fold),
		TEST(neutral_operands_vanish),
		TEST(constants_gather),
		TEST(what_overflows_is_not_folded),
		TEST(division_by_zero_is_an_error_with_the_expression),
		TEST(division_rounds_down_as_in_python),
		TEST(printing_uses_few_parentheses),
		TEST(random_expressions_have_the_right_value),
		TEST(all_expressions_can_be_evaluated_at_once),
		TEST(an_expression_has_a_largest_size),
		TEST(operands_that_do_not_exist_are_refused),
	};
	return cmocka_run_group_tests_name("expr", tests, NULL, NULL);
}
