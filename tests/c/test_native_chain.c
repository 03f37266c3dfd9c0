/* Chains of elementwise steps: every instruction set against one element at a time, over random shapes, strides and splits. */
#include <math.h>
#include <stdlib.h>

#include "native/chain.h"
#include "support.h"

static const char *const sets[] = {"base", "avx2", "avx512", "neon"};

static uint32_t seed;

static uint32_t draw(uint32_t below)
{
	seed = seed * 1664525u + 1013904223u;
	return (seed >> 8) % below;
}

static chain_reg regs[CHAIN_REGS], regs_before[CHAIN_REGS];
static chain_step steps[CHAIN_REGS];

static unsigned add_reg(chain *c, chain_kind kind, number_type type)
{
	c->regs[c->nregs] = (chain_reg){.kind = (uint8_t)kind, .type = (uint8_t)type};
	return c->nregs++;
}

static void add_step(chain *c, unsigned op, number_type type, number_type to, unsigned out, unsigned a, unsigned b,
                     unsigned third)
{
	c->steps[c->nsteps++] = (chain_step){.op = (uint8_t)op,
	                                     .type = (uint8_t)type,
	                                     .to = (uint8_t)to,
	                                     .out = (uint8_t)out,
	                                     .a = (uint8_t)a,
	                                     .b = (uint8_t)b,
	                                     .c = (uint8_t)third};
}

/* Dense strides in a random order of dimensions. */
static void shuffle_strides(const chain *c, chain_reg *r)
{
	unsigned order[CHAIN_DIMS];
	int64_t at = 1;
	for (unsigned d = 0; d < c->ndim; d++) {
		unsigned other = draw(d + 1);
		order[d] = order[other];
		order[other] = d;
	}
	for (unsigned d = 0; d < c->ndim; d++) {
		r->stride[order[d]] = at;
		at *= c->size[order[d]] + draw(2);
	}
}

static void rows_strides(const chain *c, chain_reg *r)
{
	int64_t at = 1;
	for (unsigned d = c->ndim; d-- > 0; at *= c->size[d])
		r->stride[d] = at;
}

enum { MOST = 1 << 15 };

static int64_t offset(const chain *c, const chain_reg *r, int64_t i)
{
	int64_t at = 0;
	for (unsigned d = c->ndim; d-- > 0; i /= c->size[d])
		at += i % c->size[d] * r->stride[d];
	return at;
}

/* out = flag ? max(a * b, (float)n) : c - 2.5; also = a < c */
enum { A, B, C, N, FLAGS, OUT, ALSO, OPERANDS };

static void make(chain *c)
{
	static const number_type types[] = {NUM_F32, NUM_F32, NUM_F32, NUM_I64, NUM_BOOL, NUM_F32, NUM_BOOL};
	for (unsigned i = 0; i < OPERANDS; i++)
		add_reg(c, i < OUT ? REG_INPUT : REG_OUTPUT, types[i]);
	unsigned number = add_reg(c, REG_NUMBER, NUM_F32), product = add_reg(c, REG_TEMP, NUM_F32);
	unsigned cast = add_reg(c, REG_TEMP, NUM_F32), top = add_reg(c, REG_TEMP, NUM_F32),
			 low = add_reg(c, REG_TEMP, NUM_F32);
	c->regs[number].number.f = 2.5;
	add_step(c, CHAIN_MUL, NUM_F32, NUM_F32, product, A, B, 0);
	add_step(c, CHAIN_CAST, NUM_I64, NUM_F32, cast, N, 0, 0);
	add_step(c, CHAIN_LT, NUM_F32, NUM_BOOL, ALSO, A, C, 0);
	add_step(c, CHAIN_MAX, NUM_F32, NUM_F32, top, product, cast, 0);
	add_step(c, CHAIN_SUB, NUM_F32, NUM_F32, low, C, number, 0);
	add_step(c, CHAIN_WHERE, NUM_F32, NUM_F32, OUT, FLAGS, top, low);
}

static float af[3][MOST], out[MOST];
static int64_t an[MOST];
static uint8_t flags[MOST], also[MOST];

static void check_one(const chain *before, int64_t i)
{
	int64_t at[OPERANDS];
	for (unsigned r = 0; r < OPERANDS; r++)
		at[r] = offset(before, &before->regs[r], i);
	float a = af[0][at[A]], b = af[1][at[B]], third = af[2][at[C]], n = (float)an[at[N]], product = a * b;
	float want = flags[at[FLAGS]] ? (product > n || product != product ? product : n) : third - 2.5f;
	if (memcmp(&want, &out[at[OUT]], sizeof want) != 0 && !(isnan(want) && isnan(out[at[OUT]])))
		fail_msg("element %lld: %a instead of %a", (long long)i, out[at[OUT]], want);
	assert_int_equal(also[at[ALSO]], a < third);
}

static void fill_operands(void)
{
	for (int i = 0; i < MOST; i++) {
		for (int j = 0; j < 3; j++)
			af[j][i] = draw(50) ? (float)((int)draw(2000) - 1000) / 64 : NAN;
		an[i] = (int64_t)draw(20) - 10;
		flags[i] = draw(2) != 0;
		out[i] = -77;
		also[i] = 77;
	}
}

static void check_random(const native_kernels *k)
{
	chain c = {.ndim = (uint8_t)draw(5), .regs = regs, .steps = steps}, before;
	int64_t count = 1;
	for (unsigned d = 0; d < c.ndim; d++) {
		c.size[d] = draw(20) ? 1 + (int64_t)draw(d == 1 ? 40 : 9) : 0;
		count *= c.size[d];
	}
	make(&c);
	for (unsigned r = 0; r < OPERANDS; r++) {
		if (draw(2))
			rows_strides(&c, &c.regs[r]);
		else
			shuffle_strides(&c, &c.regs[r]);
		for (unsigned d = 0; r < OUT && d < c.ndim; d++)
			if (!draw(4))
				c.regs[r].stride[d] = 0;
	}
	fill_operands();
	before = c;
	memcpy(regs_before, regs, sizeof regs);
	before.regs = regs_before;
	assert_true(chain_finish(&c, k, OUT, false));
	char *data[CHAIN_REGS] = {(char *)af[0], (char *)af[1], (char *)af[2], (char *)an,
	                          (char *)flags, (char *)out,   (char *)also};
	int64_t items = chain_items(&c);
	for (int64_t first = 0, end; first < items; first = end) {
		end = first + 1 + draw((uint32_t)(items - first));
		assert_true(chain_run(&c, data, NULL, first, end));
	}
	for (int64_t i = 0; i < count; i++)
		check_one(&before, i);
	for (int64_t i = 0, touched = 0; i < MOST; i++) {
		touched += also[i] != 77;
		assert_true(touched <= count);
	}
}

static void random_chains_give_what_single_elements_give(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		const native_kernels *k = native_kernels_named(sets[i]);
		seed = 5;
		for (int round = 0; k && round < 400; round++)
			check_random(k);
	}
}

/* relu(x + bias[col] + scale[row]) on blocks of a matrix of which x has the place. */
static void blocks_give_what_the_whole_gives(void **state)
{
	(void)state;
	enum { ROWS = 37, COLS = 70, PITCH = 80 };
	static float x[ROWS * PITCH], whole[ROWS * PITCH], bias[COLS], scale[ROWS];
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		const native_kernels *k = native_kernels_named(sets[i]);
		if (!k)
			continue;
		chain c = {.ndim = 2, .size = {ROWS, COLS}, .regs = regs, .steps = steps};
		unsigned in = add_reg(&c, REG_INPUT, NUM_F32), b = add_reg(&c, REG_INPUT, NUM_F32);
		unsigned s = add_reg(&c, REG_INPUT, NUM_F32), to = add_reg(&c, REG_OUTPUT, NUM_F32);
		unsigned t = add_reg(&c, REG_TEMP, NUM_F32), u = add_reg(&c, REG_TEMP, NUM_F32);
		c.regs[in].stride[0] = c.regs[to].stride[0] = PITCH;
		c.regs[in].stride[1] = c.regs[to].stride[1] = c.regs[b].stride[1] = c.regs[s].stride[0] = 1;
		add_step(&c, CHAIN_ADD, NUM_F32, NUM_F32, t, in, b, 0);
		add_step(&c, CHAIN_ADD, NUM_F32, NUM_F32, u, t, s, 0);
		add_step(&c, CHAIN_RELU, NUM_F32, NUM_F32, to, u, 0, 0);
		assert_true(chain_finish(&c, k, to, true));
		seed = 9;
		for (int j = 0; j < ROWS * PITCH; j++)
			x[j] = (float)draw(1000) / 10 - 50;
		for (int j = 0; j < COLS; j++)
			bias[j] = (float)draw(100) - 50;
		for (int j = 0; j < ROWS; j++)
			scale[j] = (float)draw(100) - 50;
		memcpy(whole, x, sizeof x);
		for (int r = 0; r < ROWS; r++)
			for (int col = 0; col < COLS; col++) {
				float y = x[r * PITCH + col] + bias[col] + scale[r];
				whole[r * PITCH + col] = y < 0 ? 0 : y;
			}
		char *data[CHAIN_REGS] = {NULL, (char *)bias, (char *)scale, NULL};
		for (int r = 0; r < ROWS; r += 10)
			for (int col = 0; col < COLS; col += 32) {
				chain_block block = {.row = r,
				                     .rows = ROWS - r < 10 ? ROWS - r : 10,
				                     .col = col,
				                     .cols = COLS - col < 32 ? COLS - col : 32,
				                     .pitch = PITCH,
				                     .at = x + r * PITCH + col,
				                     .reg = in,
				                     .out = to};
				assert_true(chain_run_block(&c, data, &block));
			}
		assert_memory_equal(x, whole, sizeof x);
	}
}

static void check_binary(unsigned op, number_type type, const void *a, const void *b, const void *want, size_t bytes,
                         int64_t n, int is_bad)
{
	char got[512];
	int bad = 0;
	chain_find(native_kernels_here(), op, type, type)(got, a, b, NULL, n, &bad);
	assert_memory_equal(got, want, bytes);
	assert_int_equal(bad, is_bad);
}

static void integers_divide_and_wrap_as_in_torch(void **state)
{
	(void)state;
	int32_t a[] = {7, -7, 7, -7, INT32_MIN, 0}, b[] = {2, 2, -2, -2, -1, 5}, zero[] = {1, 0};
	int32_t trunc[] = {3, -3, -3, 3, INT32_MIN, 0}, floor[] = {3, -4, -4, 3, INT32_MIN, 0};
	int32_t rest[] = {1, 1, -1, -1, 0, 0}, fmods[] = {1, -1, 1, -1, 0, 0};
	check_binary(CHAIN_DIV_TRUNC, NUM_I32, a, b, trunc, sizeof trunc, 6, 0);
	check_binary(CHAIN_DIV_FLOOR, NUM_I32, a, b, floor, sizeof floor, 6, 0);
	check_binary(CHAIN_REMAINDER, NUM_I32, a, b, rest, sizeof rest, 6, 0);
	check_binary(CHAIN_FMOD, NUM_I32, a, b, fmods, sizeof fmods, 6, 0);
	check_binary(CHAIN_DIV_FLOOR, NUM_I32, a, zero, (int32_t[]){7}, 4, 2, 1);
	check_binary(CHAIN_REMAINDER, NUM_I32, a, zero, (int32_t[]){0}, 4, 2, 1);
	check_binary(CHAIN_ADD, NUM_I32, (int32_t[]){INT32_MAX}, (int32_t[]){1}, (int32_t[]){INT32_MIN}, 4, 1, 0);
	check_binary(CHAIN_MUL, NUM_I16, (int16_t[]){-32768}, (int16_t[]){-1}, (int16_t[]){-32768}, 2, 1, 0);
	check_binary(CHAIN_POW, NUM_I64, (int64_t[]){3, -1, 2, 0}, (int64_t[]){4, -3, -1, 0}, (int64_t[]){81, -1, 0, 1}, 32,
	             4, 0);
	check_binary(CHAIN_SHL, NUM_U8, (uint8_t[]){3, 3}, (uint8_t[]){7, 9}, (uint8_t[]){128, 0}, 2, 2, 0);
	check_binary(CHAIN_SHR, NUM_I32, (int32_t[]){-8, -8}, (int32_t[]){1, 99}, (int32_t[]){-4, -1}, 8, 2, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_chains_give_what_single_elements_give),
		cmocka_unit_test(blocks_give_what_the_whole_gives),
		cmocka_unit_test(integers_divide_and_wrap_as_in_torch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
