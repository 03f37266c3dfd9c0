/* src/remote/choose_link.c: which way to divide a call is taken over a link that is slow, fast, changing or away. */
#include "support.h"

#include <math.h>
#include <unistd.h>

#include "remote/remote.h"

enum { HERE, CUT, RAW, WAYS };

static const clv_way ways[WAYS] = {
	[HERE] = {.size = sizeof *ways, .name = "here", .here = 0.5},
	[CUT] = {.size = sizeof *ways,
             .name = "cut",
             .remote = true,
             .here = 0.1,
             .there = 0.02,
             .codec = 0.01,
             .sent = 20000,
             .received = 4000},
	[RAW] = {.size = sizeof *ways, .name = "raw", .remote = true, .there = 0.03, .sent = 600000, .received = 4000},
};

static clv_link *link_of(double rtt, double rate)
{
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	clv_link *l;
	o.rtt = rtt;
	o.rate = rate;
	OK(clv_link_new(ways, WAYS, &o, &l));
	return l;
}

/* A call over a link that is really like this. */
static void call(clv_link *l, uint32_t way, double rtt, double rate)
{
	const clv_way *w = &ways[way];
	clv_remote_times t = {
		.size = sizeof t, .queue = 0, .compute = w->there, .encode = w->codec / 2, .decode = w->codec / 2};
	t.sent_bytes = w->sent;
	t.received_bytes = w->received;
	t.send = (double)w->sent / rate;
	t.wait = rtt + w->there;
	t.receive = (double)w->received / rate;
	OK(clv_link_tell(l, way, w->here, w->remote ? &t : NULL));
}

static void slow_links_keep_work_here_and_fast_ones_send_it_away(void **state)
{
	(void)state;
	static const struct {
		double rtt, rate;
		uint32_t way;
	} cases[] = {{0.1, 1.25e4, HERE}, {0.05, 1.25e6, CUT}, {0.005, 1.25e8, RAW}};
	for (size_t i = 0; i < 3; i++) {
		clv_link *l = link_of(cases[i].rtt, cases[i].rate);
		assert_int_equal(clv_link_choose(l), cases[i].way);
		clv_link_free(l);
	}
}

static void the_cut_moves_when_the_link_changes(void **state)
{
	(void)state;
	double rtt, rate;
	clv_link *l = link_of(0.005, 1.25e8);
	for (int i = 0; i < 30; i++)
		call(l, clv_link_choose(l), 0.02, 2.5e5); /* 2 Mbit/s */
	assert_int_equal(clv_link_choose(l), CUT);
	clv_link_state(l, &rtt, &rate);
	assert_true(rate > 1e5 && rate < 5e5);
	for (int i = 0; i < 60; i++)
		call(l, clv_link_choose(l), 0.002, 1.25e8);
	assert_int_equal(clv_link_choose(l), RAW);
	clv_link_free(l);
}

static void small_differences_move_nothing(void **state)
{
	(void)state;
	clv_way two[2] = {{.size = sizeof *two, .name = "a", .here = 1}, {.size = sizeof *two, .name = "b", .here = 1.05}};
	clv_link *l;
	OK(clv_link_new(two, 2, NULL, &l));
	assert_int_equal(clv_link_choose(l), 0);
	for (int i = 0; i < 50; i++)
		OK(clv_link_tell(l, 0, 1.1, NULL)); /* b is faster now, by less than a tenth */
	assert_int_equal(clv_link_choose(l), 0);
	for (int i = 0; i < 50; i++)
		OK(clv_link_tell(l, 0, 1.3, NULL));
	assert_int_equal(clv_link_choose(l), 1);
	clv_link_free(l);
}

static void a_server_that_is_away_is_left_alone_for_a_while(void **state)
{
	(void)state;
	clv_link *l = link_of(0.005, 1.25e8);
	assert_int_equal(clv_link_choose(l), RAW);
	clv_link_tell_away(l);
	assert_int_equal(clv_link_choose(l), HERE);
	assert_true(isinf(clv_link_expect(l, RAW)));
	OK(clv_link_tell_rtt(l, 0.005)); /* it is back */
	assert_int_equal(clv_link_choose(l), RAW);
	clv_link_free(l);
}

/* Times of a busy machine: up to a fifth off. */
static double noisy(double x, uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return x * (0.8 + 0.4 * (double)(*seed >> 8) / (1 << 24));
}

static void noise_moves_nothing_to_and_fro(void **state)
{
	(void)state;
	uint32_t seed = 1, moves = 0;
	clv_link *l = link_of(0.05, 1.25e6);
	for (int i = 0, way = CUT; i < 300; i++) {
		uint32_t now = clv_link_choose(l);
		moves += now != (uint32_t)way;
		way = (int)now;
		call(l, now, noisy(0.05, &seed), noisy(1.25e6, &seed));
	}
	assert_true(moves <= 2);
	assert_int_equal(clv_link_choose(l), CUT);
	clv_link_free(l);
}

static void a_server_that_was_measured_once_is_as_fast_in_the_other_ways(void **state)
{
	(void)state;
	clv_link *l = link_of(0.005, 1.25e8);
	double before = clv_link_expect(l, RAW);
	clv_remote_times t = {.size = sizeof t, .compute = 10 * ways[CUT].there, .sent_bytes = 20000};
	t.wait = t.compute + 0.005;
	OK(clv_link_tell(l, CUT, ways[CUT].here, &t));
	assert_true(clv_link_expect(l, RAW) > before + 5 * ways[RAW].there);
	clv_link_free(l);
}

static void a_link_that_got_better_is_noticed_though_nothing_uses_it(void **state)
{
	(void)state;
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	clv_link *l;
	o.rate = 1000;
	o.look = 1e-4;
	OK(clv_link_new(ways, WAYS, &o, &l));
	usleep(1000);
	uint32_t way = clv_link_choose(l);
	assert_int_equal(way, CUT); /* that sends least: to see */
	call(l, way, 0.005, 1.25e8);
	assert_int_equal(clv_link_choose(l), RAW);
	clv_link_free(l);
	o.look = 1e6;
	OK(clv_link_new(ways, WAYS, &o, &l));
	assert_int_equal(clv_link_choose(l), HERE);
	clv_link_free(l);
}

static void a_call_that_was_given_up_says_that_the_link_is_slow(void **state)
{
	(void)state;
	clv_link *l = link_of(0.005, 1.25e8);
	assert_int_equal(clv_link_choose(l), RAW);
	link_tell_late(l, RAW, 1.5);
	double rtt, rate;
	clv_link_state(l, &rtt, &rate);
	assert_true(rate < 5e5);
	assert_int_equal(clv_link_choose(l), CUT);
	link_tell_late(l, CUT, 100);
	assert_int_equal(clv_link_choose(l), HERE);
	clv_link_free(l);
}

static void a_way_that_is_barred_is_not_chosen(void **state)
{
	(void)state;
	clv_link *l = link_of(0.005, 1.25e8);
	link_bar(l, RAW, true);
	assert_int_equal(clv_link_choose(l), CUT);
	assert_int_equal(link_look(l), CUT);
	link_bar(l, RAW, false);
	assert_int_equal(clv_link_choose(l), RAW);
	clv_link_free(l);
}

static void what_cannot_be_is_refused(void **state)
{
	(void)state;
	clv_link *l;
	clv_way w = ways[CUT];
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	FAILS(clv_link_new(NULL, 0, NULL, &l), CLV_E_INVALID, "needs ways");
	w.there = NAN;
	FAILS(clv_link_new(&w, 1, NULL, &l), CLV_E_INVALID, "way \"cut\" has times");
	w.there = 0;
	w.sent = -1;
	FAILS(clv_link_new(&w, 1, NULL, &l), CLV_E_INVALID, "way \"cut\" has times");
	o.gain = 1;
	FAILS(clv_link_new(ways, WAYS, &o, &l), CLV_E_INVALID, "gain between 0 and 1");
	OK(clv_link_new(ways, WAYS, NULL, &l));
	FAILS(clv_link_tell(l, WAYS, 1, NULL), CLV_E_INVALID, "no way 3");
	FAILS(clv_link_tell_rtt(l, -1), CLV_E_INVALID, "round trip");
	assert_true(isnan(clv_link_expect(l, WAYS)));
	clv_link_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slow_links_keep_work_here_and_fast_ones_send_it_away),
		cmocka_unit_test(the_cut_moves_when_the_link_changes),
		cmocka_unit_test(small_differences_move_nothing),
		cmocka_unit_test(a_server_that_is_away_is_left_alone_for_a_while),
		cmocka_unit_test(noise_moves_nothing_to_and_fro),
		cmocka_unit_test(a_server_that_was_measured_once_is_as_fast_in_the_other_ways),
		cmocka_unit_test(a_link_that_got_better_is_noticed_though_nothing_uses_it),
		cmocka_unit_test(a_call_that_was_given_up_says_that_the_link_is_slow),
		cmocka_unit_test(a_way_that_is_barred_is_not_chosen),
		cmocka_unit_test(what_cannot_be_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
