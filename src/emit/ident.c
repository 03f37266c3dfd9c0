/* Gives every value and symbol of a plan a Python identifier of its own.
 *
 * Symbols keep their names, inputs theirs as far as Python allows, results are named after their node. Names in a plan can
 * be anything, so nothing here trusts one. */
#include <string.h>

#include "emit/emit.h"

static const char *const keywords[] = {"False",  "None",   "True",    "and",      "as",       "assert", "async",
                                       "await",  "break",  "class",   "continue", "def",      "del",    "elif",
                                       "else",   "except", "finally", "for",      "from",     "global", "if",
                                       "import", "in",     "is",      "lambda",   "nonlocal", "not",    "or",
                                       "pass",   "raise",  "return",  "try",      "while",    "with",   "yield"};

/* What the generated code uses itself, and letters that linters take for digits. */
static const char *const own_words[] = {"self",       "torch",      "nn",      "F",       "min",  "max",  "bool",
                                        "tuple",      "float",      "getattr", "setattr", "repr", "call", "flag",
                                        "complex",    "GuardError", "Part",    "super",   "_",    "math", "own_copy",
                                        "tensors_of", "l",          "O",       "I"};

static bool is_among(const char *const *words, size_t count, const char *s, size_t n)
{
	for (size_t i = 0; i < count; i++)
		if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0)
			return true;
	return false;
}

static bool is_keyword(const char *s, size_t n)
{
	return is_among(keywords, sizeof keywords / sizeof *keywords, s, n);
}

static bool is_reserved(const char *s, size_t n)
{
	return is_keyword(s, n) || is_among(own_words, sizeof own_words / sizeof *own_words, s, n);
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Python changes names that start with two underscores inside a class. */
bool ident_ok(const char *s, size_t n)
{
	if (n == 0 || !is_letter(s[0]) || (n > 1 && s[0] == '_' && s[1] == '_'))
		return false;
	for (size_t i = 1; i < n; i++)
		if (!is_letter(s[i]) && !is_digit(s[i]))
			return false;
	return !is_keyword(s, n);
}

bool ident_free(const char *s, size_t n)
{
	return ident_ok(s, n) && !is_reserved(s, n);
}

typedef struct key {
	const idents *t;
	const char *s;
	size_t n;
} key;

static bool same_name(const void *ctx, uint32_t id)
{
	const key *k = ctx;
	const char *s = k->t->text.at + k->t->starts.at[id];
	return strlen(s) == k->n && memcmp(s, k->s, k->n) == 0;
}

/* "x['a'][0]" reads x_a_0: runs of what Python does not take become one underscore. */
static void put_clean(strbuf *b, const char *s)
{
	enum { LONGEST = 100 }; /* a name is written wherever its value is read */
	size_t start = b->n;
	bool gap = false;
	for (; *s && b->n - start < LONGEST; s++) {
		if (!is_letter(*s) && !is_digit(*s)) {
			gap = true;
			continue;
		}
		if (gap && b->n > start)
			strbuf_putc(b, '_');
		gap = false;
		if (b->n == start && is_digit(*s))
			strbuf_putc(b, 'x');
		if (b->n > start || *s != '_')
			strbuf_putc(b, *s);
	}
	if (b->n == start)
		strbuf_putc(b, 'x');
	else if (!b->failed && is_reserved(b->at + start, b->n - start))
		strbuf_putc(b, '_');
}

static clv_status take_name(idents *t, size_t start, bool *taken)
{
	size_t n = t->text.n - start;
	strbuf_putc(&t->text, '\0');
	TRY_MEM(!t->text.failed);
	const char *s = t->text.at + start;
	uint32_t hash = hash_bytes(s, n, (uintptr_t)t);
	*taken = table_find(&t->by_text, hash, same_name, &(key){t, s, n}) != TABLE_NONE;
	if (*taken)
		return CLV_OK;
	TRY(vec_push(&t->starts, start));
	return table_add(&t->by_text, hash, t->starts.n - 1);
}

/* The name, or the name with the number of the value where it is taken. */
static clv_status add_name(idents *t, const char *name, uint32_t number, uint32_t *out)
{
	bool taken = true;
	for (unsigned attempt = 0; taken; attempt++) {
		size_t start = t->text.n;
		put_clean(&t->text, name);
		if (attempt == 1)
			strbuf_printf(&t->text, "_%u", number);
		else if (attempt > 1)
			strbuf_printf(&t->text, "_%u_%u", number, attempt);
		TRY(take_name(t, start, &taken));
		if (taken)
			t->text.n = start;
	}
	*out = t->starts.n - 1;
	return CLV_OK;
}

typedef struct naming {
	idents *t;
	const char *node;
	bool many;
	uint32_t next;
	clv_status st;
} naming;

/* relu__1, of relu_, reads relu_1. */
static void put_readable(strbuf *b, const char *name)
{
	for (const char *s = name; *s; s++)
		if (*s != '_' || (s[1] != '_' && s[1] != '\0') || s == name)
			strbuf_putc(b, *s);
}

static void name_result(void *ctx, value_id v)
{
	naming *n = ctx;
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	if (n->st != CLV_OK || n->t->of_value[v] != NONE)
		return;
	put_readable(&b, n->node);
	if (n->many)
		strbuf_printf(&b, "_out%u", n->next++);
	n->st = strbuf_take(&b, &text);
	if (n->st == CLV_OK)
		n->st = add_name(n->t, text, v, &n->t->of_value[v]);
	mem_free(text);
}

static bool has_many(const plan *p, const node *n)
{
	return n->nresults > 1 || (n->nresults == 1 && p->args.at[n->results].kind == ARG_LIST);
}

static clv_status name_all(idents *t, const node_names *names)
{
	const plan *p = t->p;
	for (symbol_id s = 0; s < p->symbols.n; s++)
		TRY(add_name(t, plan_s(p, p->symbols.at[s].name), s, &t->of_symbol[s]));
	for (uint32_t i = 0; i < p->inputs.n; i++) {
		value_id v = p->inputs.at[i];
		const char *name = p->values.at[v].name == NONE ? "x" : plan_s(p, p->values.at[v].name);
		if (t->of_value[v] == NONE)
			TRY(add_name(t, name, i, &t->of_value[v]));
	}
	for (node_id n = 0; n < p->nodes.n; n++) {
		/* A module that is called as a whole gives its name to its result. */
		const char *name = block_is(p, n) ? module_path(p, n) : node_name(names, n);
		naming k = {t, name, has_many(p, &p->nodes.at[n]), 0, CLV_OK};
		node_each_result(p, n, name_result, &k);
		TRY(k.st);
	}
	return CLV_OK;
}

clv_status idents_new(const plan *p, const node_names *names, idents *out)
{
	*out = (idents){.p = p};
	out->of_value = arena_ids(&out->arena, p->values.n);
	out->of_symbol = arena_ids(&out->arena, p->symbols.n);
	TRY(arena_status(&out->arena));
	return name_all(out, names);
}

void idents_free(idents *t)
{
	strbuf_free(&t->text);
	vec_free(&t->starts);
	table_free(&t->by_text);
	arena_free(&t->arena);
}

static const char *name_at(const idents *t, uint32_t i)
{
	return i < t->starts.n ? t->text.at + t->starts.at[i] : "_";
}

const char *ident_value(const idents *t, value_id v)
{
	return name_at(t, t->of_value[v]);
}

const char *ident_symbol(const idents *t, symbol_id s)
{
	return name_at(t, t->of_symbol[s]);
}
