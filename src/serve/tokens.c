/* Who may call: a file with a line per token, which has the SHA-256 of the token in hexadecimal, then what it may do:
 *
 *     # sha256                     all models: no `models`; any number of requests: no `rate`
 *     9f86d081884c7d65…  name=edge-7  models=net,net2  rate=100
 *     60303ae22b998861…  name=ops  admin
 *
 * `rate` is requests per second; `admin` may load and unload models. All of it is used by the loop alone. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/number.h"
#include "serve/serve.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

enum { HASH = 32, FILE_MOST = 16 << 20 };

typedef struct token {
	uint8_t hash[HASH];
	const char *models; /* "a,b"; NULL: all */
	const char *name;
	double rate, left; /* rate 0: no limit; left: requests that it may make now */
	int64_t at;        /* when that was counted */
	bool admin;
} token;

struct tokens {
	arena arena;
	VEC(token) all;
};

/* ---- the file ----------------------------------------------------------------------------------------------------------------- */

static clv_status read_word(token *t, const char *word)
{
	if (strcmp(word, "admin") == 0)
		t->admin = true;
	else if (strncmp(word, "models=", 7) == 0)
		t->models = word + 7;
	else if (strncmp(word, "name=", 5) == 0)
		t->name = word + 5;
	else if (strncmp(word, "rate=", 5) != 0 || !number_parse(word + 5, &t->rate) || !(t->rate > 0))
		return fail(CLV_E_PARSE, "\"%.32s\" is not models=, rate=, name= or admin", word);
	return CLV_OK;
}

static clv_status read_line(tokens *l, char *line)
{
	char *rest = NULL, *word = strtok_r(line, " \t\r", &rest);
	token t = {.name = ""};
	if (!word || word[0] == '#')
		return CLV_OK;
	for (char *c = word; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	if (strlen(word) != 2 * (size_t)HASH || !hex_parse(word, t.hash, HASH))
		return fail(CLV_E_PARSE, "a token is 64 hexadecimal digits, the SHA-256 of what clients send");
	while ((word = strtok_r(NULL, " \t\r", &rest)))
		TRY(read_word(&t, word));
	t.left = t.rate > 1 ? t.rate : 1;
	t.at = clock_nanoseconds();
	return vec_push(&l->all, t);
}

static clv_status read_lines(tokens *l, char *text)
{
	char *rest = NULL;
	uint32_t n = 0;
	for (char *line = text; line; line = rest) {
		char *end = strchr(line, '\n');
		rest = end ? end + 1 : NULL;
		if (end)
			*end = '\0';
		n++;
		TRY_MORE(read_line(l, line), "line %u", n);
	}
	return CLV_OK;
}

void tokens_free(tokens *l)
{
	if (!l)
		return;
	vec_free(&l->all);
	arena_free(&l->arena);
	mem_free(l);
}

clv_status tokens_load(const char *path, tokens **out)
{
	uint8_t *data;
	size_t n;
	TRY(file_read_most(path, FILE_MOST, &data, &n));
	tokens *l = mem_alloc(sizeof *l);
	char *text = l ? arena_alloc(&l->arena, n + 1) : NULL;
	clv_status st = text ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		memcpy(text, data, n);
		st = memchr(data, 0, n) ? fail(CLV_E_PARSE, "it is no text") : read_lines(l, text);
	}
	mem_free(data);
	if (st == CLV_OK && !l->all.n)
		st = fail(CLV_E_PARSE, "it has no token");
	if (st == CLV_OK) {
		*out = l;
		return CLV_OK;
	}
	tokens_free(l);
	return st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
}

/* ---- requests ----------------------------------------------------------------------------------------------------------------- */

/* Looks at all of them, whichever it is: how long that takes says nothing. */
static uint32_t find_token(const tokens *l, const char *given)
{
	uint8_t hash[HASH];
	unsigned n = HASH;
	uint32_t found = NONE;
	if (EVP_Digest(given, strlen(given), hash, &n, EVP_sha256(), NULL) != 1)
		return NONE;
	for (uint32_t i = 0; i < l->all.n; i++)
		if (CRYPTO_memcmp(hash, l->all.at[i].hash, HASH) == 0)
			found = i;
	return found;
}

static bool may_now(token *t)
{
	int64_t now = clock_nanoseconds();
	double most = t->rate > 1 ? t->rate : 1;
	if (t->rate == 0)
		return true;
	t->left += (double)(now - t->at) / 1e9 * t->rate;
	t->left = t->left < most ? t->left : most;
	t->at = now;
	if (t->left < 1)
		return false;
	t->left -= 1;
	return true;
}

uint32_t tokens_find(const exchange *x)
{
	const char *given = http_field_of(&x->head, "authorization");
	return given && strncasecmp(given, "Bearer ", 7) == 0 ? find_token(x->s->tokens, given + 7) : NONE;
}

bool tokens_know(exchange *x)
{
	if (!x->s->tokens)
		return true;
	x->token = tokens_find(x);
	if (x->token == NONE)
		answer_error(x, 401, "the request has no token that this server knows");
	return x->token != NONE;
}

/* One of "a,b". A model is meant with all of its cuts. */
static bool is_listed(const char *list, const char *model)
{
	size_t n = strcspn(model, "@");
	while (list && *list) {
		size_t k = strcspn(list, ",");
		if (k == n && !memcmp(list, model, n))
			return true;
		list += k + (list[k] == ',');
	}
	return false;
}

void tokens_owner(exchange *x)
{
	char text[2 * HASH + 1] = "";
	if (x->s->tokens && x->token < x->s->tokens->all.n) {
		hex_print(x->s->tokens->all.at[x->token].hash, HASH, text);
		text[2 * (size_t)HASH] = '\0';
	}
	x->owner = arena_str(&x->arena, text);
}

bool tokens_allow(exchange *x, const char *model, bool change)
{
	tokens *l = x->s->tokens;
	if (!l)
		return true;
	if (x->token >= l->all.n) { /* of a call that began before the file changed */
		answer_error(x, 401, "the token of the call is no longer known");
		return false;
	}
	token *t = &l->all.at[x->token];
	if ((change && !t->admin) || (t->models && !(model && is_listed(t->models, model))))
		answer_error(x, 403, "the token does not allow this");
	else if (!may_now(t))
		answer_error(x, 429, "the token has used up its rate; try again later");
	return !x->out.status;
}
