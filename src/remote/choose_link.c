/* Which way to divide a call is fastest over a link, and what the link is like: from the times of the calls themselves.
 *
 * What a call spends on the network is its time without the work on both sides: a round trip, and its bytes by the rate. The round
 * trip is the least of the recent ones; what is above it gives the rate, where the bytes are enough to tell. Measured work replaces
 * what was said at the start; where a way was not taken yet, the server is as much faster there as it was in the others. The way
 * changes when another is faster by more than a share, so that noise moves nothing. While no call goes to the server nothing is
 * learned of it: so one call goes there now and then, as often as costs a twentieth of the time at most. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/options.h"
#include "remote/remote.h"

/* A way, and what is known of it. */
typedef struct known_way {
	clv_way w;
	double given; /* seconds there, as said at the start */
	bool seen;    /* the server's work was measured */
	bool barred;  /* not to be chosen now */
} known_way;

struct clv_link {
	clv_link_options o;
	pthread_mutex_t lock;
	known_way *ways;
	uint32_t nways, chosen;
	double rtt, rate;
	double server;     /* its times by those that were said at the start */
	double told;       /* when a call there was last told; clock_seconds(), as the others */
	double away_until; /* the server is left alone */
	double look_at;    /* when a call goes there to see how it is, if none does anyway */
};

static const double NEWER = 0.3,
					NEWEST = 0.9;  /* the share of a new measurement: soon after the last one, and long after */
static const double FADES = 0.02;  /* the share of what is known of other ways that a call makes doubtful */
static const double DEARNESS = 20; /* time that was lost by looking is this share of all, at most: 1/20 */
enum { TELLING = 2048 };           /* bytes: fewer say nothing about the rate */

static double blend_by(double share, double old, double now)
{
	return old + share * (now - old);
}

static double blend(double old, double now)
{
	return blend_by(NEWER, old, now);
}

/* What is old counts less. */
static double share_of_news(const clv_link *l)
{
	double share = (clock_seconds() - l->told) / l->o.look;
	return share < NEWER ? NEWER : share > NEWEST ? NEWEST : share;
}

/* ---- what is expected ---------------------------------------------------------------------------------------------- */

static bool is_away(const clv_link *l)
{
	return clock_seconds() < l->away_until;
}

static double expect(const clv_link *l, uint32_t i)
{
	const known_way *k = &l->ways[i];
	const clv_way *w = &k->w;
	if (!w->remote)
		return w->here;
	if (is_away(l) || k->barred)
		return INFINITY;
	double there = k->seen ? w->there : k->given * l->server;
	return w->here + w->codec + l->rtt + ((double)w->sent + (double)w->received) / l->rate + there;
}

static uint32_t fastest(const clv_link *l)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < l->nways; i++)
		if (expect(l, i) < expect(l, best))
			best = i;
	return best;
}

/* ---- made ---------------------------------------------------------------------------------------------------------- */

static bool is_time(double s)
{
	return s >= 0 && isfinite(s);
}

static clv_status copy_way(const clv_way *from, clv_way *to)
{
	TRY(options_read(to, sizeof *to, from, "clv_way"));
	const char *name = to->name ? to->name : "";
	to->name = NULL;
	if (!is_time(to->here) || !is_time(to->there) || !is_time(to->codec) || to->sent < 0 || to->received < 0)
		return fail(CLV_E_INVALID, "way \"%.64s\" has times or sizes that cannot be", name);
	to->name = mem_strdup(name, strlen(name));
	return to->name ? CLV_OK : fail_nomem();
}

static clv_status copy_ways(clv_link *l, const clv_way *ways, uint32_t n)
{
	l->ways = mem_alloc(n * sizeof *l->ways);
	TRY_MEM(l->ways);
	for (uint32_t i = 0; i < n; i++) {
		const clv_way *from = (const clv_way *)((const char *)ways + i * ways->size); /* of the caller's size */
		l->nways = i + 1;
		TRY(copy_way(from, &l->ways[i].w));
		l->ways[i].given = l->ways[i].w.there;
	}
	return CLV_OK;
}

static clv_status read_link_options(clv_link *l, const clv_link_options *options)
{
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	TRY(options_read(&o, sizeof o, options, "clv_link_options"));
	o.gain = o.gain != 0 ? o.gain : 0.1;
	o.rtt = o.rtt != 0 ? o.rtt : 0.02;
	o.rate = o.rate != 0 ? o.rate : 1.25e6;
	o.away = o.away != 0 ? o.away : 5;
	o.look = o.look != 0 ? o.look : 10;
	if (!(o.gain > 0 && o.gain < 1) || !is_time(o.rtt) || !(o.rate > 0 && isfinite(o.rate)) || !is_time(o.away) ||
	    !is_time(o.look))
		return fail(CLV_E_INVALID, "a link has a gain between 0 and 1, and times and a rate above 0");
	l->o = o;
	l->rtt = o.rtt;
	l->rate = o.rate;
	l->server = 1;
	l->told = clock_seconds() - o.look;
	l->look_at = clock_seconds() + o.look;
	return CLV_OK;
}

clv_status clv_link_new(const clv_way *ways, uint32_t nways, const clv_link_options *options, clv_link **out)
{
	if (!ways || !nways || !out)
		return fail(CLV_E_INVALID, "clv_link_new needs ways to choose from, and a place for the link");
	clv_link *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	if (pthread_mutex_init(&l->lock, NULL) != 0) {
		mem_free(l);
		return fail_nomem();
	}
	clv_status st = read_link_options(l, options);
	if (st == CLV_OK)
		st = copy_ways(l, ways, nways);
	if (st != CLV_OK) {
		clv_link_free(l);
		return st;
	}
	l->chosen = fastest(l);
	*out = l;
	return CLV_OK;
}

void clv_link_free(clv_link *l)
{
	if (!l)
		return;
	for (uint32_t i = 0; i < l->nways; i++)
		mem_free((char *)l->ways[i].w.name);
	mem_free(l->ways);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

/* ---- told ---------------------------------------------------------------------------------------------------------- */

static void learn_rtt(clv_link *l, double seconds)
{
	l->rtt = seconds < l->rtt ? seconds : blend(l->rtt, seconds);
}

/* Time on the network, and the bytes that took it. */
static void learn_network(clv_link *l, double seconds, double bytes)
{
	if (bytes < TELLING) {
		learn_rtt(l, seconds);
		return;
	}
	double share = share_of_news(l), moving = seconds - l->rtt;
	if (moving <=
	    seconds / 20) { /* nearly all of it is round trip: the rate is at least this, and the round trip at most */
		l->rtt = seconds < l->rtt ? seconds : l->rtt;
		moving = seconds / 20;
		l->rate = bytes / moving > l->rate ? blend_by(share, l->rate, bytes / moving) : l->rate;
		return;
	}
	l->rate = 1 / blend_by(share, 1 / l->rate, moving / bytes);
}

/* The server's work, of a way that it has done before; of the others less is known now. */
static void learn_there(clv_link *l, known_way *k, double there)
{
	if (k->given > 0)
		l->server = blend_by(share_of_news(l), l->server, there / k->given);
	k->w.there = k->seen ? blend(k->w.there, there) : there;
	k->seen = true;
	for (uint32_t i = 0; i < l->nways; i++)
		if (&l->ways[i] != k)
			l->ways[i].w.there = blend_by(FADES, l->ways[i].w.there, l->ways[i].given * l->server);
}

static void learn_call(clv_link *l, known_way *k, const clv_remote_times *t, bool first)
{
	clv_way *w = &k->w;
	bool known = t->compute >= 0;
	double there = known ? t->compute + (t->queue >= 0 ? t->queue : 0) : w->there;
	double network = t->send + t->wait + t->receive - there;
	w->codec = blend(w->codec, t->encode + t->decode);
	w->sent = t->sent_bytes;
	w->received = t->received_bytes;
	learn_network(l, network > 1e-6 ? network : 1e-6, (double)t->sent_bytes + (double)t->received_bytes);
	if (known && !first)
		learn_there(l, k, there);
	l->told = clock_seconds();
	l->away_until = 0;
}

/* A call went to the server and took so long: if that was dear, the next look is later. */
static double next_look(const clv_link *l, double seconds)
{
	double lost = seconds - expect(l, l->chosen), wait = DEARNESS * lost;
	return clock_seconds() + (wait > l->o.look ? wait : l->o.look);
}

clv_status link_tell(clv_link *l, uint32_t way, double here, const clv_remote_times *times, bool first)
{
	clv_remote_times t = {.size = sizeof t};
	if (!l || way >= l->nways || isnan(here))
		return fail(CLV_E_INVALID, "clv_link_tell: there is no way %u, or its time is no number", way);
	if (times)
		TRY(options_read(&t, sizeof t, times, "clv_remote_times"));
	pthread_mutex_lock(&l->lock);
	known_way *k = &l->ways[way];
	if (here >= 0)
		k->w.here = blend(k->w.here, here);
	if (times) {
		learn_call(l, k, &t, first);
		l->look_at = next_look(l, (here >= 0 ? here : k->w.here) + t.total);
	}
	pthread_mutex_unlock(&l->lock);
	return CLV_OK;
}

clv_status clv_link_tell(clv_link *l, uint32_t way, double here, const clv_remote_times *times)
{
	return link_tell(l, way, here, times, false);
}

void link_tell_late(clv_link *l, uint32_t way, double seconds)
{
	pthread_mutex_lock(&l->lock);
	const clv_way *w = &l->ways[way].w;
	double rate = ((double)w->sent + (double)w->received) / seconds;
	l->rate = rate < l->rate ? rate : l->rate;
	l->told = clock_seconds();
	l->look_at = next_look(l, seconds);
	pthread_mutex_unlock(&l->lock);
}

void link_bar(clv_link *l, uint32_t way, bool barred)
{
	pthread_mutex_lock(&l->lock);
	l->ways[way].barred = barred;
	pthread_mutex_unlock(&l->lock);
}

void link_way(clv_link *l, uint32_t i, clv_way *out)
{
	pthread_mutex_lock(&l->lock);
	*out = l->ways[i].w;
	pthread_mutex_unlock(&l->lock);
}

clv_status clv_link_tell_rtt(clv_link *l, double seconds)
{
	if (!l || !is_time(seconds))
		return fail(CLV_E_INVALID, "a round trip takes 0 seconds or more");
	pthread_mutex_lock(&l->lock);
	learn_rtt(l, seconds);
	l->away_until = 0;
	pthread_mutex_unlock(&l->lock);
	return CLV_OK;
}

void link_tell_away(clv_link *l, double lost)
{
	pthread_mutex_lock(&l->lock);
	double wait = DEARNESS * lost;
	l->away_until = clock_seconds() + (wait > l->o.away ? wait : l->o.away);
	l->look_at = l->away_until;
	pthread_mutex_unlock(&l->lock);
}

void clv_link_tell_away(clv_link *l)
{
	link_tell_away(l, 0);
}

/* ---- asked --------------------------------------------------------------------------------------------------------- */

/* The fastest of those that would say how the server is; NONE: there is none. */
static uint32_t fastest_there(const clv_link *l)
{
	uint32_t best = NONE;
	for (uint32_t i = 0; i < l->nways; i++)
		if (l->ways[i].w.remote && isfinite(expect(l, i)) && (best == NONE || expect(l, i) < expect(l, best)))
			best = i;
	return best;
}

/* All runs here, and it is time to see how the server is. */
static bool is_time_to_look(clv_link *l, uint32_t *out)
{
	if (l->ways[l->chosen].w.remote || clock_seconds() < l->look_at)
		return false;
	*out = fastest_there(l);
	l->look_at = clock_seconds() + l->o.look; /* this call is the one; what it tells may move this */
	return *out != NONE;
}

uint32_t clv_link_choose(clv_link *l)
{
	uint32_t looking;
	pthread_mutex_lock(&l->lock);
	uint32_t best = fastest(l);
	if (expect(l, best) < expect(l, l->chosen) * (1 - l->o.gain))
		l->chosen = best;
	uint32_t way = is_time_to_look(l, &looking) ? looking : l->chosen;
	pthread_mutex_unlock(&l->lock);
	return way;
}

uint32_t link_look(clv_link *l)
{
	pthread_mutex_lock(&l->lock);
	uint32_t way = fastest_there(l);
	pthread_mutex_unlock(&l->lock);
	return way;
}

double clv_link_expect(clv_link *l, uint32_t way)
{
	if (!l || way >= l->nways)
		return NAN;
	pthread_mutex_lock(&l->lock);
	double seconds = expect(l, way);
	pthread_mutex_unlock(&l->lock);
	return seconds;
}

void clv_link_state(clv_link *l, double *rtt, double *rate)
{
	pthread_mutex_lock(&l->lock);
	*rtt = l->rtt;
	*rate = l->rate;
	pthread_mutex_unlock(&l->lock);
}
