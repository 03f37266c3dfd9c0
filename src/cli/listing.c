/* Tables: typed rows that are sorted, filtered and printed as text or JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct row {
	cell *cells; /* owned, texts too */
	char mark;
	uint32_t order; /* of listing_add: rows that compare equal stay in it */
} row;

struct listing {
	const column *columns;
	uint32_t ncolumns, n, cap;
	row *rows;
	const listing_view *view; /* while it is shown */
};

static uint32_t count_columns(const column *c)
{
	uint32_t n = 0;
	while (c && c[n].name)
		n++;
	return n;
}

listing *listing_new(const column *columns)
{
	listing *t = grab(sizeof *t);
	t->columns = columns;
	t->ncolumns = count_columns(columns);
	return t;
}

void listing_add(listing *t, char mark, const cell *cells)
{
	if (t->n == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 64;
		t->rows = regrab(t->rows, t->cap * sizeof *t->rows);
	}
	row *r = &t->rows[t->n];
	*r = (row){grab(t->ncolumns * sizeof *r->cells), mark, t->n};
	t->n++;
	for (uint32_t i = 0; i < t->ncolumns; i++) {
		r->cells[i] = cells[i];
		if (t->columns[i].type == COLUMN_TEXT && cells[i].s)
			r->cells[i].s = grab_text(cells[i].s, strlen(cells[i].s));
	}
}

void listing_free(listing *t)
{
	for (uint32_t r = 0; r < t->n; r++) {
		for (uint32_t i = 0; i < t->ncolumns; i++)
			if (t->columns[i].type == COLUMN_TEXT)
				free((char *)t->rows[r].cells[i].s);
		free(t->rows[r].cells);
	}
	free(t->rows);
	free(t);
}

/* ---- what the user asks for -------------------------------------------------------------------------------------- */

static void complain_column(const column *columns, const char *name, size_t length)
{
	uint32_t n = count_columns(columns);
	const char **names = grab((n + 1) * sizeof *names);
	char *want = grab_text(name, length);
	for (uint32_t i = 0; i < n; i++)
		names[i] = columns[i].name;
	const char *near = nearest(want, names, n);
	complain("there is no column \"%s\"", want);
	if (near)
		hint("did you mean %s?", near);
	free(want);
	free(names);
}

static bool is_called(const char *name, const char *given, size_t length)
{
	return name && strlen(name) == length && !memcmp(name, given, length);
}

/* By name, or by the title in the table. */
static bool find_column(const column *columns, const char *name, size_t length, uint32_t *out)
{
	uint32_t n = count_columns(columns);
	for (*out = 0; *out < n; ++*out)
		if (is_called(columns[*out].name, name, length))
			return true;
	for (*out = 0; *out < n; ++*out)
		if (is_called(columns[*out].title, name, length))
			return true;
	complain_column(columns, name, length);
	return false;
}

bool listing_read_sort(const column *columns, const char *text, listing_view *v)
{
	const char *colon = strchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : strlen(text);
	v->sorted = true;
	v->descending = colon && !strcmp(colon, ":desc");
	if (colon && !v->descending && strcmp(colon, ":asc") != 0) {
		complain("--sort takes COLUMN, COLUMN:asc or COLUMN:desc, not \"%s\"", text);
		return false;
	}
	return find_column(columns, text, n, &v->sort);
}

static bool is_column_op(const char *op, const char *const *ops)
{
	for (; *ops; ops++)
		if (!strcmp(op, *ops))
			return true;
	return false;
}

/* The number that a text of a filter is, for the type of its column. */
static bool read_operand(column_type type, filter *f)
{
	static const char *const of_texts[] = {"=", "!=", "~", "!~", NULL};
	static const char *const of_numbers[] = {"<", "<=", ">", ">=", "=", "!=", NULL};
	if (type == COLUMN_TEXT)
		return is_column_op(f->op, of_texts);
	if (!is_column_op(f->op, of_numbers))
		return false;
	if (type != COLUMN_BOOL)
		return read_number(f->text, &f->number);
	f->number = !strcmp(f->text, "true") || !strcmp(f->text, "yes");
	return f->number != 0 || !strcmp(f->text, "false") || !strcmp(f->text, "no");
}

bool listing_read_filter(const column *columns, const char *text, listing_view *v)
{
	size_t name = strcspn(text, "<>=!~ "), space = strspn(text + name, " ");
	const char *at = text + name + space;
	size_t op = strspn(at, "<>=!~");
	filter f = {.text = at + op + strspn(at + op, " ")};
	if (op == 0 || op > 2 || name == 0) {
		complain("--filter takes a column, a comparison and a value, such as 'boundary_bytes<1M', not \"%s\"", text);
		return false;
	}
	memcpy(f.op, at, op);
	if (!strcmp(f.op, "=="))
		f.op[1] = '\0';
	if (!find_column(columns, text, name, &f.column))
		return false;
	if (!read_operand(columns[f.column].type, &f)) {
		complain("%s cannot be compared like this: \"%s\"", columns[f.column].name, text);
		hint(columns[f.column].type == COLUMN_TEXT
		         ? "texts are compared with = != ~ !~"
		         : "numbers are compared with < <= > >= = !=, and may be 64M or 50%%");
		return false;
	}
	v->filters = regrab(v->filters, (v->nfilters + 1) * sizeof *v->filters);
	v->filters[v->nfilters++] = f;
	return true;
}

static double number_in(column_type type, const cell *c)
{
	switch (type) {
	case COLUMN_NUMBER:
	case COLUMN_SECONDS:
	case COLUMN_SHARE: return c->x;
	case COLUMN_BOOL: return c->b;
	default: return (double)c->n;
	}
}

static bool passes_text(const filter *f, const char *s)
{
	bool holds = f->op[strlen(f->op) - 1] == '~' ? strstr(s, f->text) != NULL : !strcmp(s, f->text);
	return holds != (f->op[0] == '!');
}

static bool passes(const listing *t, const filter *f, const cell *c)
{
	column_type type = t->columns[f->column].type;
	if (type == COLUMN_TEXT)
		return passes_text(f, c->s ? c->s : "");
	double v = number_in(type, c);
	switch (f->op[0]) {
	case '<': return f->op[1] ? v <= f->number : v < f->number;
	case '>': return f->op[1] ? v >= f->number : v > f->number;
	default: return (v == f->number) == (f->op[0] == '=');
	}
}

static bool is_shown(const listing *t, const row *r)
{
	for (uint32_t i = 0; i < t->view->nfilters; i++)
		if (!passes(t, &t->view->filters[i], &r->cells[t->view->filters[i].column]))
			return false;
	return true;
}

static int compare_cells(column_type type, const cell *a, const cell *b)
{
	if (type == COLUMN_TEXT)
		return strcmp(a->s ? a->s : "", b->s ? b->s : "");
	double x = number_in(type, a), y = number_in(type, b);
	return x < y ? -1 : x > y;
}

static const listing *sorted; /* qsort hands nothing on */

static int compare_rows(const void *a, const void *b)
{
	const row *x = a, *y = b;
	uint32_t by = sorted->view->sort;
	int d = compare_cells(sorted->columns[by].type, &x->cells[by], &y->cells[by]);
	if (d == 0)
		return x->order < y->order ? -1 : 1;
	return sorted->view->descending ? -d : d;
}

/* Rows that pass, in the order asked for, come first; their number. */
static uint32_t select_rows(listing *t)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < t->n; i++)
		if (is_shown(t, &t->rows[i])) {
			row r = t->rows[n];
			t->rows[n++] = t->rows[i];
			t->rows[i] = r;
		}
	sorted = t;
	if (t->view->sorted && n)
		qsort(t->rows, n, sizeof *t->rows, compare_rows);
	return t->view->limit && t->view->limit < n ? (uint32_t)t->view->limit : n;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

enum { CELL_TEXT = 80, MOST_WIDTH = 200 }; /* cells that are longer stand out: names may have any length */

static bool is_integer_column(column_type type)
{
	return type == COLUMN_INT || type == COLUMN_BYTES || type == COLUMN_HUMAN || type == COLUMN_COUNT;
}

/* Text of a cell: in `space`, or its own. */
static const char *cell_text(column_type type, const cell *c, char space[CELL_TEXT])
{
	bool unknown = c->n == INT64_MAX;
	if (is_integer_column(type) && c->n == INT64_MIN)
		return "";
	switch (type) {
	case COLUMN_TEXT: return c->s ? c->s : "";
	case COLUMN_BOOL: return c->b ? "yes" : "no";
	case COLUMN_NUMBER:
		if (isnan(c->x))
			return "";
		snprintf(space, CELL_TEXT, "%.6g", c->x);
		return space;
	case COLUMN_SECONDS: return isnan(c->x) ? "" : human_seconds(c->x, space);
	case COLUMN_SHARE:
		if (isnan(c->x))
			return "";
		snprintf(space, CELL_TEXT, "%.1f %%", c->x * 100);
		return space;
	case COLUMN_HUMAN: return unknown ? "?" : human_bytes(c->n, space);
	case COLUMN_COUNT: return unknown ? "?" : human_count(c->n, space);
	case COLUMN_BYTES:
		if (unknown)
			return "?";
		int n = snprintf(space, CELL_TEXT, "%lld", (long long)c->n);
		if (c->n >= 1000) {
			char human[HUMAN_TEXT];
			snprintf(space + n, (size_t)(CELL_TEXT - n), " (%s)", human_bytes(c->n, human));
		}
		return space;
	default: snprintf(space, CELL_TEXT, "%lld", (long long)c->n); return space;
	}
}

/* Characters, not bytes. */
static size_t width_of(const char *s)
{
	size_t n = 0;
	for (; *s; s++)
		n += ((unsigned char)*s & 0xC0) != 0x80;
	return n;
}

static void put_spaces(size_t n)
{
	printf("%*s", (int)n, "");
}

/* Spaces are written when more comes after them: lines end where their text ends. */
static void put_cell(const listing *t, uint32_t i, const char *text, size_t width, size_t *pending)
{
	size_t n = width_of(text), pad = n < width ? width - n : 0;
	bool right = t->columns[i].type != COLUMN_TEXT;
	if (*text) {
		put_spaces(*pending + (right ? pad : 0));
		put_plain(stdout, text);
		*pending = 0;
	}
	*pending += 2 + (*text && right ? 0 : pad);
}

static void widen(size_t *width, const char *text)
{
	size_t n = width_of(text);
	*width = n <= *width ? *width : n < MOST_WIDTH ? n : MOST_WIDTH;
}

/* Widths of the columns; 0 for those that are not shown: without a title, and texts that are empty in all rows. */
static size_t *measure_columns(const listing *t, uint32_t n)
{
	char space[CELL_TEXT];
	size_t *widths = grab((t->ncolumns + 1) * sizeof *widths);
	for (uint32_t i = 0; i < t->ncolumns; i++) {
		for (uint32_t r = 0; t->columns[i].title && r < n; r++)
			widen(&widths[i], cell_text(t->columns[i].type, &t->rows[r].cells[i], space));
		if (t->columns[i].title && (widths[i] || n == 0))
			widen(&widths[i], t->columns[i].title);
	}
	return widths;
}

static bool has_marks(const listing *t, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++)
		if (t->rows[r].mark)
			return true;
	return false;
}

static style style_of(char mark)
{
	return mark == '*' ? STYLE_GREEN : mark == '!' ? STYLE_DIM : STYLE_NONE;
}

static void show_row(const listing *t, const row *r, bool marks, const size_t *widths)
{
	char space[CELL_TEXT];
	style s = style_of(r->mark);
	size_t pending = 0;
	fputs(s ? paint(stdout, s) : "", stdout);
	if (marks)
		printf("%c ", r->mark ? r->mark : ' ');
	for (uint32_t i = 0; i < t->ncolumns; i++)
		if (widths[i])
			put_cell(t, i, cell_text(t->columns[i].type, &r->cells[i], space), widths[i], &pending);
	printf("%s\n", s ? paint(stdout, STYLE_NONE) : "");
}

static void show_for_people(const listing *t, uint32_t n)
{
	size_t pending = 0;
	bool marks = has_marks(t, n);
	size_t *widths = measure_columns(t, n);
	printf("%s%s", paint(stdout, STYLE_BOLD), marks ? "  " : "");
	for (uint32_t i = 0; i < t->ncolumns; i++)
		if (widths[i])
			put_cell(t, i, t->columns[i].title, widths[i], &pending);
	printf("%s\n", paint(stdout, STYLE_NONE));
	for (uint32_t r = 0; r < n; r++)
		show_row(t, &t->rows[r], marks, widths);
	free(widths);
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static void json_cell(const column *k, const cell *c)
{
	switch (k->type) {
	case COLUMN_TEXT: put_json_text(k->name, c->s); break;
	case COLUMN_BOOL: put_json_bool(k->name, c->b); break;
	case COLUMN_NUMBER:
	case COLUMN_SECONDS:
	case COLUMN_SHARE: put_json_number(k->name, c->x); break;
	default:
		if (c->n == INT64_MAX || c->n == INT64_MIN)
			put_json_text(k->name, NULL);
		else
			put_json_int(k->name, c->n);
	}
}

static void json_rows(const listing *t, uint32_t n, const char *key)
{
	put_json_open(key, '[');
	for (uint32_t r = 0; r < n; r++) {
		put_json_open_line(NULL, '{');
		for (uint32_t i = 0; i < t->ncolumns; i++)
			json_cell(&t->columns[i], &t->rows[r].cells[i]);
		put_json_close();
	}
	put_json_close();
}

static const listing_view all;

void listing_json(listing *t, const listing_view *v, const char *key)
{
	t->view = v ? v : &all;
	json_rows(t, select_rows(t), key);
	listing_free(t);
}

void listing_show(listing *t, const listing_view *v)
{
	t->view = v ? v : &all;
	if (t->view->json) {
		listing_json(t, v, NULL);
		return;
	}
	show_for_people(t, select_rows(t));
	listing_free(t);
}
