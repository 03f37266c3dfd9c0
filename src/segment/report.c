/* Reports which nodes were compiled, which were not and why, as text for people and as JSON for programs.
 *
 * Unknown numbers are left out, and so is a column without any. Numbers are printed by hand: printf's decimal point
 * depends on the locale. */
#include <math.h>
#include <string.h>

#include "base/human.h"
#include "base/member.h"
#include "segment/segment.h"

double coverage_share(const coverage *c)
{
	if (c->compiled == c->nodes)
		return 1;
	return c->work > 0 ? c->compiled_work / c->work : (double)c->compiled / c->nodes;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------------------- */

/* With one digit behind the point. */
static void put_tenths(strbuf *b, double v)
{
	if (!(v < 1e15)) {
		strbuf_double(b, v);
		return;
	}
	int64_t tenths = (int64_t)(v * 10 + 0.5);
	strbuf_printf(b, "%lld.%lld", (long long)(tenths / 10), (long long)(tenths % 10));
}

/* With three digits that count, as long as there is a point: 0.0123, 1.23, 12.3, 123, 1234. */
static void put_three(strbuf *b, double v)
{
	int digits = 0;
	double scale = 1;
	if (!(v < 1e15)) {
		strbuf_double(b, v);
		return;
	}
	for (; v > 0 && v * scale < 99.95 && digits < 6; digits++)
		scale *= 10;
	int64_t n = (int64_t)(v * scale + 0.5), whole = (int64_t)scale;
	strbuf_printf(b, "%lld", (long long)(n / whole));
	if (digits)
		strbuf_printf(b, ".%0*lld", digits, (long long)(n % whole));
}

/* 1.2e-7 */
static void put_error(strbuf *b, double v)
{
	int power = 0;
	if (!(v > 0) || !isfinite(v)) {
		strbuf_puts(b, v == 0 ? "0" : isnan(v) ? "nan" : "inf");
		return;
	}
	for (; v < 1 && power > -400; power--)
		v *= 10;
	for (; v >= 9.95 && power < 400; power++)
		v /= 10;
	put_tenths(b, v);
	if (power)
		strbuf_printf(b, "e%d", power);
}

/* Never 100 where something is missing. */
static void put_percent(strbuf *b, double share)
{
	double tenths = floor(share * 1000 + 1e-9);
	strbuf_printf(b, "%d.%d %%", (int)tenths / 10, (int)tenths % 10);
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* ---- text: segments --------------------------------------------------------------------------------------------------------- */

enum {
	COLUMN_NAME,
	COLUMN_OPERATORS,
	COLUMN_WORK,
	COLUMN_IN,
	COLUMN_OUT,
	COLUMN_SIZE,
	COLUMN_SECONDS,
	COLUMN_ERROR,
	COLUMN_TAPE,
	COLUMN_CODE,
	COLUMN_SPEED,
	COLUMN_RUNS,
	COLUMNS
};

static const char *const titles[COLUMNS] = {"segment",     "operators", "FLOPs", "in",   "out",   "size",
                                            "compiled in", "error",     "tape",  "code", "speed", "runs"};

static void put_known_bytes(strbuf *b, int64_t bytes)
{
	if (bytes >= 0)
		strbuf_bytes(b, bytes);
}

static void put_known_ms(strbuf *b, double ms)
{
	if (isnan(ms))
		return;
	put_three(b, ms);
	strbuf_puts(b, " ms");
}

static void put_seconds(strbuf *b, const segment_row *x)
{
	if (isnan(x->compile_s))
		return;
	put_tenths(b, x->compile_s);
	strbuf_puts(b, " s");
}

static void put_difference(strbuf *b, const segment_row *x)
{
	if (isnan(x->error))
		return;
	put_error(b, x->error);
	if (isnan(x->tolerance))
		return;
	strbuf_puts(b, " of ");
	put_error(b, x->tolerance);
}

static void put_speed(strbuf *b, const segment_row *x)
{
	if (!(x->tape_ms > 0 && x->code_ms > 0))
		return;
	put_three(b, x->tape_ms / x->code_ms);
	strbuf_puts(b, "x");
}

static void put_where(strbuf *b, const segment_row *x)
{
	strbuf_puts(b, x->on_tape ? "on the tape: " : "compiled");
	strbuf_plain(b, x->on_tape ? x->on_tape : "");
}

/* Writes nothing for a number that is not known. */
static void put_cell(strbuf *b, const segment_row *x, uint32_t column)
{
	switch (column) {
	case COLUMN_NAME: strbuf_plain(b, x->name ? x->name : ""); break;
	case COLUMN_OPERATORS: strbuf_int(b, x->nodes); break;
	case COLUMN_WORK: strbuf_count(b, x->work < 9e18 ? (int64_t)x->work : INT64_MAX); break;
	case COLUMN_IN: put_known_bytes(b, x->bytes_in); break;
	case COLUMN_OUT: put_known_bytes(b, x->bytes_out); break;
	case COLUMN_SIZE: put_known_bytes(b, x->size); break;
	case COLUMN_SECONDS: put_seconds(b, x); break;
	case COLUMN_ERROR: put_difference(b, x); break;
	case COLUMN_TAPE: put_known_ms(b, x->tape_ms); break;
	case COLUMN_CODE: put_known_ms(b, x->code_ms); break;
	case COLUMN_SPEED: put_speed(b, x); break;
	case COLUMN_RUNS: put_where(b, x); break;
	}
}

/* Segments, then those that were dropped. */
static const segment_row *row_at(const segment_report *r, uint32_t i)
{
	return i < r->nrows ? &r->rows[i] : &r->dropped[i - r->nrows];
}

/* Texts of a table; they live in the arena. */
typedef struct cells {
	VEC(const char *) at;
	arena arena;
} cells;

static clv_status take_cell(cells *t, strbuf *b, const char **out)
{
	*out = "";
	return b->at || b->failed ? arena_take(&t->arena, b, out) : CLV_OK;
}

static clv_status add_cell(cells *t, strbuf *b)
{
	const char *text;
	TRY(take_cell(t, b, &text));
	return vec_push(&t->at, text);
}

/* Texts row by row, with the titles above; a column without a known number is left out. */
static clv_status add_column_cells(const segment_report *r, cells *t, bool *right, uint32_t *width)
{
	uint32_t rows = r->nrows + r->ndropped + 1, kept[COLUMNS];
	const char **texts = arena_array(&t->arena, (size_t)rows * COLUMNS, sizeof *texts);
	TRY(arena_status(&t->arena));
	*width = 0;
	for (uint32_t c = 0; c < COLUMNS; c++) {
		bool known = c == COLUMN_NAME;
		texts[c] = titles[c];
		for (uint32_t i = 1; i < rows; i++) {
			strbuf b = STRBUF_INIT;
			put_cell(&b, row_at(r, i - 1), c);
			TRY(take_cell(t, &b, &texts[i * COLUMNS + c]));
			known |= *texts[i * COLUMNS + c] != '\0';
		}
		if (!known)
			continue;
		right[*width] = c != COLUMN_NAME && c != COLUMN_RUNS;
		kept[(*width)++] = c;
	}
	for (uint32_t i = 0; i < rows; i++)
		for (uint32_t c = 0; c < *width; c++)
			TRY(vec_push(&t->at, texts[i * COLUMNS + kept[c]]));
	return CLV_OK;
}

static clv_status put_segments(const segment_report *r, strbuf *b)
{
	cells t = {0};
	bool right[COLUMNS];
	uint32_t width = 0, n = r->nrows + r->ndropped;
	if (!n)
		return CLV_OK;
	clv_status st = add_column_cells(r, &t, right, &width);
	if (st == CLV_OK) {
		strbuf_putc(b, '\n');
		strbuf_columns(b, t.at.at, n + 1, width, right);
	}
	vec_free(&t.at);
	arena_free(&t.arena);
	return st;
}

/* ---- text: the tape --------------------------------------------------------------------------------------------------------- */

static clv_status add_fallback(const coverage *c, const fallback_row *x, cells *t)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%u x", x->count);
	TRY(add_cell(t, &b));
	TRY(vec_push(&t->at, x->op));
	if (c->work > 0)
		put_percent(&b, x->work / c->work);
	TRY(add_cell(t, &b));
	strbuf_plain(&b, x->reason);
	strbuf_puts(&b, x->place && *x->place ? (x->count > 1 ? "; first" : ";") : "");
	strbuf_plain(&b, x->place ? x->place : "");
	return add_cell(t, &b);
}

/* Operators of dropped segments are one row: the segments are in the table before. */
static fallback_row slower_row(const coverage *c)
{
	fallback_row sum = {.op = "(operators of dropped segments)", .reason = SLOWER};
	for (uint32_t i = 0; i < c->rows.n; i++)
		if (!strcmp(c->rows.at[i].reason, SLOWER)) {
			sum.count += c->rows.at[i].count;
			sum.work += c->rows.at[i].work;
		}
	return sum;
}

static clv_status put_fallbacks(const coverage *c, strbuf *b)
{
	static const bool right[] = {true, false, true, false};
	cells t = {0};
	clv_status st = CLV_OK;
	fallback_row slower = slower_row(c);
	if (!c->rows.n)
		return CLV_OK;
	if (slower.count)
		st = add_fallback(c, &slower, &t);
	for (uint32_t i = 0; i < c->rows.n && st == CLV_OK; i++)
		if (strcmp(c->rows.at[i].reason, SLOWER) != 0)
			st = add_fallback(c, &c->rows.at[i], &t);
	if (st == CLV_OK) {
		strbuf_puts(b, "\non the tape, with share of FLOPs and reason:\n");
		strbuf_columns(b, t.at.at, t.at.n / 4, 4, right);
	}
	vec_free(&t.at);
	arena_free(&t.arena);
	return st;
}

/* Rows of one operator have one number. */
static bool said_before(const coverage *c, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (c->rows.at[k].boundaries && !strcmp(c->rows.at[k].op, c->rows.at[i].op))
			return true;
	return false;
}

static void put_what_if(const coverage *c, strbuf *b)
{
	bool any = false;
	for (uint32_t i = 0; i < c->rows.n; i++) {
		const fallback_row *x = &c->rows.at[i];
		if (!x->boundaries || said_before(c, i))
			continue;
		if (!any)
			strbuf_putc(b, '\n');
		any = true;
		strbuf_puts(b, "supporting ");
		strbuf_plain(b, x->op);
		strbuf_printf(b, " would remove %u boundar%s\n", x->boundaries, x->boundaries == 1 ? "y" : "ies");
	}
}

/* ---- text: the whole -------------------------------------------------------------------------------------------------------- */

static void put_headline(const segment_report *r, strbuf *b)
{
	const coverage *c = r->covered;
	put_percent(b, coverage_share(c));
	strbuf_printf(b, " of %s (%u of %u operator%s) %scompiled", c->work > 0 ? "FLOPs" : "operators", c->compiled,
	              c->nodes, plural(c->nodes), r->planned ? "would be " : "");
	if (r->nrows)
		strbuf_printf(b, " in %u segment%s", r->nrows, plural(r->nrows));
	if (r->backend) {
		strbuf_puts(b, " by ");
		strbuf_plain(b, r->backend);
	}
	uint32_t idle = 0;
	for (uint32_t i = 0; i < r->nrows; i++)
		idle += r->rows[i].on_tape != NULL;
	if (idle && !r->planned)
		strbuf_printf(b, "; %u of them run%s on the tape here", idle, idle == 1 ? "s" : "");
	if (r->ndropped)
		strbuf_printf(b, "; %u segment%s slower than the tape, and dropped", r->ndropped,
		              r->ndropped == 1 ? " was" : "s were");
	strbuf_putc(b, '\n');
}

/* -1: not all were measured */
static int64_t measured_bytes(const segment_report *r)
{
	int64_t sum = 0;
	for (uint32_t i = 0; i < r->nrows; i++) {
		const segment_row *x = &r->rows[i];
		if (x->measured_in < 0 || x->measured_out < 0 || __builtin_add_overflow(sum, x->measured_in, &sum) ||
		    __builtin_add_overflow(sum, x->measured_out, &sum))
			return -1;
	}
	return r->nrows ? sum : -1;
}

static void put_traffic(const segment_report *r, strbuf *b)
{
	int64_t measured = measured_bytes(r);
	if (!r->nrows)
		return;
	strbuf_putc(b, '\n');
	strbuf_bytes(b, r->covered->bytes);
	strbuf_puts(b, " go into and out of segments in a run");
	if (measured >= 0) {
		strbuf_puts(b, " (measured: ");
		strbuf_bytes(b, measured);
		strbuf_putc(b, ')');
	}
	strbuf_putc(b, '\n');
}

static void put_against(strbuf *b, const char *what, double before, double now, bool *any)
{
	if (!(before > 0))
		return;
	strbuf_puts(b, *any ? ", " : ": ");
	*any = true;
	put_three(b, before / now);
	strbuf_printf(b, " times as fast as %s (", what);
	put_three(b, before);
	strbuf_puts(b, " ms)");
}

static void put_speeds(const segment_report *r, strbuf *b)
{
	bool any = false;
	if (!(r->traced_ms > 0))
		return;
	strbuf_puts(b, "a run takes ");
	put_three(b, r->traced_ms);
	strbuf_puts(b, " ms");
	put_against(b, "eager", r->eager_ms, r->traced_ms, &any);
	put_against(b, "the tape", r->tape_ms, r->traced_ms, &any);
	strbuf_putc(b, '\n');
}

clv_status report_text(const segment_report *r, strbuf *b)
{
	put_headline(r, b);
	TRY(put_segments(r, b));
	TRY(put_fallbacks(r->covered, b));
	put_what_if(r->covered, b);
	put_traffic(r, b);
	put_speeds(r, b);
	return b->failed ? fail_nomem() : CLV_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

/* Writes nothing where the number is not known. */
static void put_known_int(strbuf *b, const char *key, int64_t n)
{
	if (n >= 0)
		member_int(b, key, n);
}

static void put_known_number(strbuf *b, const char *key, double x)
{
	if (isfinite(x))
		member_number(b, key, x);
}

static void put_known_text(strbuf *b, const char *key, const char *s)
{
	if (s)
		member_text(b, key, s);
}

static void put_json_segment(strbuf *b, const segment_row *x)
{
	member_open(b, NULL, '{');
	put_known_text(b, "name", x->name);
	put_known_text(b, "backend", x->backend);
	put_known_int(b, "operators", x->nodes);
	put_known_number(b, "flops", x->work);
	put_known_int(b, "bytes_in", x->bytes_in);
	put_known_int(b, "bytes_out", x->bytes_out);
	put_known_int(b, "measured_bytes_in", x->measured_in);
	put_known_int(b, "measured_bytes_out", x->measured_out);
	put_known_number(b, "compile_s", x->compile_s);
	put_known_int(b, "size", x->size);
	put_known_number(b, "error", x->error);
	put_known_number(b, "tolerance", x->tolerance);
	put_known_number(b, "tape_ms", x->tape_ms);
	put_known_number(b, "code_ms", x->code_ms);
	put_known_text(b, "runs", x->on_tape ? "tape" : "compiled");
	put_known_text(b, "reason", x->on_tape);
	strbuf_putc(b, '}');
}

static void put_json_segments(strbuf *b, const char *key, const segment_row *rows, uint32_t n)
{
	member_open(b, key, '[');
	for (uint32_t i = 0; i < n; i++)
		put_json_segment(b, &rows[i]);
	strbuf_putc(b, ']');
}

static void put_json_fallback(strbuf *b, const fallback_row *x)
{
	member_open(b, NULL, '{');
	put_known_text(b, "op", x->op);
	put_known_int(b, "count", x->count);
	put_known_number(b, "flops", x->work);
	put_known_text(b, "reason", x->reason);
	put_known_text(b, "place", x->place && *x->place == ' ' ? x->place + 1 : x->place);
	put_known_int(b, "boundaries", x->boundaries);
	strbuf_putc(b, '}');
}

clv_status report_json(const segment_report *r, strbuf *b)
{
	const coverage *c = r->covered;
	strbuf_putc(b, '{');
	put_known_text(b, "backend", r->backend);
	put_known_number(b, "share", coverage_share(c));
	put_known_int(b, "operators", c->nodes);
	put_known_int(b, "compiled", c->compiled);
	put_known_number(b, "flops", c->work);
	put_known_number(b, "compiled_flops", c->compiled_work);
	put_known_int(b, "bytes", c->bytes);
	put_known_int(b, "measured_bytes", measured_bytes(r));
	put_known_number(b, "eager_ms", r->eager_ms);
	put_known_number(b, "tape_ms", r->tape_ms);
	put_known_number(b, "traced_ms", r->traced_ms);
	put_json_segments(b, "segments", r->rows, r->nrows);
	put_json_segments(b, "dropped", r->dropped, r->ndropped);
	member_open(b, "fallbacks", '[');
	for (uint32_t i = 0; i < c->rows.n; i++)
		put_json_fallback(b, &c->rows.at[i]);
	strbuf_puts(b, "]}\n");
	return b->failed ? fail_nomem() : CLV_OK;
}
