/* Figures for Prometheus, as text. */
#include <string.h>

#include "serve/session.h"

static const double SECONDS[BUCKETS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
static const double BYTES[BUCKETS] = {1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 128e6, 256e6};
static const double ROWS[BUCKETS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};

static const double *bounds_of(histogram_unit unit)
{
	return unit == UNIT_SECONDS ? SECONDS : unit == UNIT_BYTES ? BYTES : ROWS;
}

static double scale_of(histogram_unit unit)
{
	return unit == UNIT_SECONDS ? 1e-9 : 1;
}

void histogram_add(histogram *h, histogram_unit unit, int64_t amount)
{
	const double *bounds = bounds_of(unit);
	uint64_t n = amount > 0 ? (uint64_t)amount : 0;
	unsigned i = 0;
	while (i < BUCKETS && (double)n * scale_of(unit) > bounds[i])
		i++;
	atomic_fetch_add(&h->bucket[i], 1);
	atomic_fetch_add(&h->sum, n);
}

/* ---- text ---------------------------------------------------------------------------------------------------------------------- */

typedef struct page {
	strbuf *b;
	const char *name;
	size_t offset; /* of the figure in a tally */
	histogram_unit unit;
} page;

static void put_label(strbuf *b, const char *text)
{
	for (; *text; text++) {
		if (*text == '\\' || *text == '"')
			strbuf_putc(b, '\\');
		if (*text == '\n')
			strbuf_puts(b, "\\n");
		else
			strbuf_putc(b, *text);
	}
}

static void put_labels(strbuf *b, const served *m)
{
	strbuf_puts(b, "{model=\"");
	put_label(b, m->name);
	strbuf_puts(b, "\",version=\"");
	put_label(b, m->version);
	strbuf_putc(b, '"');
}

static const void *figure(const served *m, size_t offset)
{
	return (const char *)&m->tally + offset;
}

static clv_status put_histogram(void *ctx, served *m)
{
	const page *p = ctx;
	const histogram *h = figure(m, p->offset);
	uint64_t n = 0;
	for (unsigned i = 0; i <= BUCKETS; i++) {
		n += atomic_load(&h->bucket[i]);
		strbuf_printf(p->b, "%s_bucket", p->name);
		put_labels(p->b, m);
		if (i < BUCKETS)
			strbuf_printf(p->b, ",le=\"%g\"} %llu\n", bounds_of(p->unit)[i], (unsigned long long)n);
		else
			strbuf_printf(p->b, ",le=\"+Inf\"} %llu\n", (unsigned long long)n);
	}
	strbuf_printf(p->b, "%s_sum", p->name);
	put_labels(p->b, m);
	strbuf_printf(p->b, "} %.9g\n%s_count", (double)atomic_load(&h->sum) * scale_of(p->unit), p->name);
	put_labels(p->b, m);
	strbuf_printf(p->b, "} %llu\n", (unsigned long long)n);
	return CLV_OK;
}

static clv_status put_counter(void *ctx, served *m)
{
	const page *p = ctx;
	const _Atomic uint64_t *n = figure(m, p->offset);
	strbuf_puts(p->b, p->name);
	put_labels(p->b, m);
	strbuf_printf(p->b, "} %llu\n", (unsigned long long)atomic_load(n));
	return CLV_OK;
}

static void put_gauge(strbuf *b, const char *name, const char *help, uint64_t n)
{
	strbuf_printf(b, "# HELP %s %s\n# TYPE %s gauge\n%s %llu\n", name, help, name, name, (unsigned long long)n);
}

void metrics_count(server *s, const exchange *x)
{
	static const struct {
		unsigned status;
		refusal why;
	} refusals[] = {{401, REFUSED_UNAUTHORIZED}, {403, REFUSED_FORBIDDEN}, {413, REFUSED_TOO_LARGE},
	                {429, REFUSED_BUSY},         {503, REFUSED_NO_MEMORY}, {504, REFUSED_DEADLINE}};
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		if (refusals[i].status == x->out.status)
			atomic_fetch_add(&s->refused[refusals[i].why], 1);
}

static void put_refusals(const server *s, strbuf *b)
{
	static const char *const reasons[REFUSALS] = {"unauthorized", "forbidden", "too_large", "busy",
	                                              "no_memory",    "deadline",  "cancelled"};
	strbuf_puts(b, "# HELP cleave_refused_total Requests that were not run, or whose client left.\n"
	               "# TYPE cleave_refused_total counter\n");
	for (unsigned i = 0; i < REFUSALS; i++)
		strbuf_printf(b, "cleave_refused_total{reason=\"%s\"} %llu\n", reasons[i],
		              (unsigned long long)atomic_load(&s->refused[i]));
}

/* Everything in a tally is a count, but for one time. */
static void move_counts(void *from, void *to, size_t n)
{
	_Static_assert(sizeof(tally) % sizeof(uint64_t) == 0 && sizeof(batch_tally) % sizeof(uint64_t) == 0,
	               "tallies are counts");
	_Atomic uint64_t *a = from, *b = to;
	for (size_t i = 0; i < n / sizeof *a; i++)
		atomic_fetch_add(&b[i], atomic_exchange(&a[i], 0));
}

void tally_move(served *from, served *to)
{
	tally *a = &from->tally, *b = &to->tally;
	uint32_t n = from->nbatches < to->nbatches ? from->nbatches : to->nbatches;
	int64_t last = atomic_load(&a->last_ms), now = atomic_load(&b->last_ms);
	atomic_store(&a->last_ms, 0);
	move_counts(a, b, sizeof *a);
	move_counts(from->batches, to->batches, n * sizeof *from->batches);
	atomic_store(&b->last_ms, last > now ? last : now);
}

static clv_status put_counters(server *s, strbuf *b)
{
	static const struct {
		const char *name, *help;
		size_t offset;
	} counters[] = {
		{"cleave_requests_success_total", "Requests that were answered.", offsetof(tally, success.count)},
		{"cleave_requests_failure_total", "Requests that ended with an error.", offsetof(tally, failure.count)},
		{"cleave_inferences_total", "Rows, or whole calls of models without a batch, that were computed.",
	     offsetof(tally, inferences)},
		{"cleave_executions_total", "Runs of the model.", offsetof(tally, executions)},
		{"cleave_training_steps_total", "Steps that sessions made.", offsetof(tally, train_steps)},
	};
	for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
		page p = {.b = b, .name = counters[i].name, .offset = counters[i].offset};
		strbuf_printf(b, "# HELP %s %s\n# TYPE %s counter\n", p.name, counters[i].help, p.name);
		TRY(models_each(s, NULL, NULL, put_counter, &p));
	}
	return CLV_OK;
}

static clv_status put_histograms(server *s, strbuf *b)
{
	static const struct {
		const char *name, *help;
		size_t offset;
		histogram_unit unit;
	} histograms[] = {
		{"cleave_request_seconds", "From the first byte of a request to its answer.", offsetof(tally, request_time),
	     UNIT_SECONDS},
		{"cleave_queue_seconds", "Waiting for a worker.", offsetof(tally, queue_time), UNIT_SECONDS},
		{"cleave_compute_seconds", "The run of the model.", offsetof(tally, compute_time), UNIT_SECONDS},
		{"cleave_training_step_seconds", "A step of a session, until it is on disk.", offsetof(tally, train_time),
	     UNIT_SECONDS},
		{"cleave_batch_size", "Requests in a run.", offsetof(tally, batch_size), UNIT_ROWS},
		{"cleave_request_bytes", "Size of a request.", offsetof(tally, bytes_in), UNIT_BYTES},
		{"cleave_response_bytes", "Size of an answer.", offsetof(tally, bytes_out), UNIT_BYTES},
	};
	for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
		page p = {.b = b, .name = histograms[i].name, .offset = histograms[i].offset, .unit = histograms[i].unit};
		strbuf_printf(b, "# HELP %s %s\n# TYPE %s histogram\n", p.name, histograms[i].help, p.name);
		TRY(models_each(s, NULL, NULL, put_histogram, &p));
	}
	return CLV_OK;
}

clv_status metrics_write(server *s, strbuf *b)
{
	uint32_t held, all = sessions_count(s, &held);
	put_gauge(b, "cleave_connections", "Open connections.", s->nconnections);
	put_gauge(b, "cleave_requests_open", "Requests that have no answer yet.", s->nexchanges);
	put_gauge(b, "cleave_bytes_held", "Bytes of open requests and of answers that wait to be read.",
	          atomic_load(&s->bytes_held));
	put_gauge(b, "cleave_ready", "Whether the server is ready.", server_is_ready(s));
	put_gauge(b, "cleave_sessions", "Sessions of training.", all);
	put_gauge(b, "cleave_sessions_in_memory", "Those of them that are not on disk alone.", held);
	put_refusals(s, b);
	TRY(put_counters(s, b));
	return put_histograms(s, b);
}
