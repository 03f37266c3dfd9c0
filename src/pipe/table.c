/* Prints a partition as a table for people, and its timeline as lines. The same whatever the locale. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/human.h"
#include "pipe/pipe.h"

/* ---- numbers ---------------------------------------------------------------------------------------------------------- */

/* Two decimals, by hand: printf's point depends on the locale. */
static void put_fixed(strbuf *b, double x)
{
	if (!(fabs(x) < 1e15)) {
		strbuf_double(b, x);
		return;
	}
	int64_t hundredths = llround(fabs(x) * 100);
	strbuf_printf(b, "%s%" PRId64 ".%02d", x < 0 && hundredths ? "-" : "", hundredths / 100, (int)(hundredths % 100));
}

static void put_us(strbuf *b, double us)
{
	static const char *const units[] = {" us", " ms", " s"};
	unsigned unit = 0;
	for (; us >= 999.995 && unit < 2; unit++)
		us /= 1000;
	put_fixed(b, us);
	strbuf_puts(b, units[unit]);
}

static void put_percent(strbuf *b, double share)
{
	put_fixed(b, share * 100);
	strbuf_puts(b, " %");
}

static void put_bytes(strbuf *b, double bytes)
{
	strbuf_bytes(b, bytes < 9e18 ? (int64_t)bytes : INT64_MAX);
}

/* ---- cells ------------------------------------------------------------------------------------------------------------ */

/* Texts one after the other, each with its NUL; cells come row by row. */
typedef struct cells {
	strbuf text;
	VEC(uint32_t) at;
	uint32_t end; /* of the last cell, in `text` */
	bool failed;
} cells;

/* Ends the cell that was written to c->text since the last one. */
static void end_cell(cells *c)
{
	uint32_t start = c->end;
	strbuf_putc(&c->text, '\0');
	c->end = (uint32_t)c->text.n;
	c->failed |= vec_push(&c->at, start) != CLV_OK;
}

static void cell_text(cells *c, const char *s)
{
	strbuf_puts(&c->text, s);
	end_cell(c);
}

static void cell_int(cells *c, int64_t n)
{
	strbuf_int(&c->text, n);
	end_cell(c);
}

static void cell_us(cells *c, double us)
{
	put_us(&c->text, us);
	end_cell(c);
}

static void cell_bytes(cells *c, int64_t bytes)
{
	strbuf_bytes(&c->text, bytes);
	end_cell(c);
}

/* Writes and releases them. */
static clv_status put_cells(cells *c, uint32_t columns, strbuf *b)
{
	const char **texts = mem_realloc(NULL, c->at.n, sizeof *texts);
	bool *right = mem_alloc(columns * sizeof *right);
	bool whole = texts && right && !c->failed && !c->text.failed;
	for (uint32_t i = 0; i < c->at.n && whole; i++)
		texts[i] = c->text.at + c->at.at[i];
	for (uint32_t i = 0; i < columns && whole; i++)
		right[i] = true;
	if (whole)
		strbuf_columns(b, texts, c->at.n / columns, columns, right);
	mem_free(texts);
	mem_free(right);
	strbuf_free(&c->text);
	vec_free(&c->at);
	return whole && !b->failed ? CLV_OK : fail_nomem();
}

static uint32_t put_titles(cells *c, const char *const *titles)
{
	uint32_t n = 0;
	for (; titles[n]; n++)
		cell_text(c, titles[n]);
	return n;
}

/* ---- the tables --------------------------------------------------------------------------------------------------------- */

static clv_status put_stages(const pipe_partition *p, const pipe_score *s, strbuf *b)
{
	static const char *const titles[] = {"stage",  "device",     "nodes", "forward", "backward", "waits", "share",
	                                     "memory", "parameters", "in",    "out",     "relayed",  NULL};
	cells c = {.text = STRBUF_INIT};
	uint32_t columns = put_titles(&c, titles);
	double all = 0;
	for (uint32_t i = 0; i < p->nstages; i++)
		all += s->stages[i].fwd_us + s->stages[i].bwd_us;
	for (uint32_t i = 0; i < p->nstages; i++) {
		const stage_score *x = &s->stages[i];
		cell_int(&c, i);
		cell_int(&c, x->device);
		cell_int(&c, x->nodes);
		cell_us(&c, x->fwd_us);
		cell_us(&c, x->bwd_us);
		cell_us(&c, x->comm_us);
		put_percent(&c.text, all > 0 ? (x->fwd_us + x->bwd_us) / all : 0);
		end_cell(&c);
		cell_bytes(&c, x->memory_bytes);
		cell_bytes(&c, x->param_bytes);
		cell_bytes(&c, x->in_bytes);
		cell_bytes(&c, x->out_bytes);
		cell_bytes(&c, x->relayed_bytes);
	}
	return put_cells(&c, columns, b);
}

static clv_status put_devices(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, strbuf *b)
{
	static const char *const titles[] = {"device", "stages", "time", "memory", "limit", NULL};
	cells c = {.text = STRBUF_INIT};
	uint32_t columns = put_titles(&c, titles);
	for (uint32_t d = 0; d < pr->k; d++) {
		uint32_t stages = 0;
		for (uint32_t i = 0; i < p->nstages; i++)
			stages += p->device_of[i] == d;
		cell_int(&c, d);
		cell_int(&c, stages);
		cell_us(&c, s->device_us[d]);
		cell_bytes(&c, s->device_bytes[d]);
		if (pr->devices[d].memory_bytes)
			cell_bytes(&c, pr->devices[d].memory_bytes);
		else
			cell_text(&c, "none");
	}
	return put_cells(&c, columns, b);
}

static void put_sums(const pipe_partition *p, const pipe_score *s, strbuf *b)
{
	strbuf_printf(b, "method         %s", p->asked ? p->asked : p->method);
	if (p->asked && strcmp(p->asked, p->method) != 0)
		strbuf_printf(b, " (%s)", p->method);
	strbuf_puts(b, p->stopped ? ", stopped by the time limit\n" : "\n");
	strbuf_puts(b, "slowest device ");
	put_us(b, s->bottleneck_us);
	if (p->optimal) /* what is not at the bound of all partitions is proven among chains alone */
		strbuf_puts(b,
		            score_gap(s) < 1e-9 ? ", proven to be the best" : ", proven to be the best of one stage a device");
	strbuf_puts(b, "\nlower bound    ");
	put_us(b, s->lower_bound_us);
	strbuf_puts(b, ", gap ");
	put_percent(b, score_gap(s));
	if (p->bound_us > s->lower_bound_us) {
		strbuf_puts(b, "; proven for this method: ");
		put_us(b, p->bound_us);
	}
	strbuf_puts(b, "\nbytes cut      ");
	put_bytes(b, s->cut_bytes);
	strbuf_puts(b, ", relayed ");
	put_bytes(b, s->relay_bytes);
	strbuf_putc(b, '\n');
	if (p->raw_balance > 0) {
		strbuf_puts(b, "before repair  cut ");
		put_bytes(b, p->raw_cut_bytes);
		strbuf_puts(b, ", heaviest part over the mean ");
		put_fixed(b, p->raw_balance);
		strbuf_putc(b, '\n');
	}
}

static clv_status put_schedule(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, strbuf *b)
{
	pipe_timeline t;
	clv_status st = timeline_new(pr, p, s, &t);
	if (st == CLV_E_OVERFLOW)
		return CLV_OK;
	TRY(st);
	strbuf_printf(b, "schedule       %s%s, %" PRIu32 " micro-batch%s: bubble ", pipe_schedule_names[pr->schedule],
	              t.fits ? "" : " on a free placement", pr->microbatches, pr->microbatches == 1 ? "" : "es");
	put_percent(b, t.bubble);
	strbuf_puts(b, ", ");
	put_fixed(b, t.per_second);
	strbuf_puts(b, " micro-batches per second\n");
	timeline_free(&t);
	return CLV_OK;
}

clv_status partition_table(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, strbuf *b)
{
	TRY(put_stages(p, s, b));
	strbuf_putc(b, '\n');
	if (p->nstages > pr->k || memory_limited(pr)) {
		TRY(put_devices(pr, p, s, b));
		strbuf_putc(b, '\n');
	}
	put_sums(p, s, b);
	TRY(put_schedule(pr, p, s, b));
	return b->failed ? fail_nomem() : CLV_OK;
}

/* Nodes that follow each other are shown by the first and the last of them. */
static void put_names(const pipe_graph *g, const uint32_t *nodes, uint32_t n, strbuf *b)
{
	enum { MOST = 4 };
	uint32_t shown = 0;
	for (uint32_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && nodes[end] == nodes[end - 1] + 1;)
			end++;
		if (++shown > MOST) {
			strbuf_printf(b, ", and %" PRIu32 " more", n - i);
			return;
		}
		strbuf_puts(b, i ? ", " : "");
		strbuf_plain(b, g->nodes.at[nodes[i]].name);
		if (end - i > 1) {
			strbuf_puts(b, end - i > 2 ? " … " : ", ");
			strbuf_plain(b, g->nodes.at[nodes[end - 1]].name);
		}
	}
}

clv_status partition_names(const pipe_problem *pr, const pipe_partition *p, strbuf *b)
{
	uint32_t *first, *nodes;
	TRY(partition_nodes(pr->g, p, &first, &nodes));
	strbuf_putc(b, '\n');
	for (uint32_t i = 0; i < p->nstages; i++) {
		strbuf_printf(b, "stage %-9" PRIu32, i);
		put_names(pr->g, nodes + first[i], first[i + 1] - first[i], b);
		strbuf_putc(b, '\n');
	}
	mem_free(first);
	mem_free(nodes);
	return b->failed ? fail_nomem() : CLV_OK;
}

clv_status timeline_text(const pipe_problem *pr, const pipe_timeline *t, strbuf *b)
{
	for (uint32_t d = 0; d < pr->k; d++) {
		strbuf_printf(b, "device %" PRIu32 ":", d);
		for (uint32_t i = t->first[d]; i < t->first[d + 1]; i++) {
			const pipe_action *a = &t->actions[i];
			strbuf_printf(b, " %c%" PRIu32 ".%" PRIu32, a->kind == ACTION_FORWARD ? 'F' : 'B', a->stage, a->microbatch);
		}
		strbuf_putc(b, '\n');
	}
	return b->failed ? fail_nomem() : CLV_OK;
}
