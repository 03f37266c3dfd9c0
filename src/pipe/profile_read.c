/* Reads profile files, which are not trusted: every number must be finite and not negative, every text plain. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "file/json.h"
#include "file/safetensors.h"
#include "pipe/profile_keys.h"

/* Between two samples in proportion. */
static double quantile(const double *sorted, uint32_t n, double q)
{
	double at = q * (n - 1);
	uint32_t below = (uint32_t)at, above = below + 1 < n ? below + 1 : below;
	return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

spread spread_of(double *samples, uint32_t n)
{
	numbers_sort(samples, n);
	return (spread){quantile(samples, n, 0.5), quantile(samples, n, 0.25), quantile(samples, n, 0.75), samples[0],
	                samples[n - 1]};
}

void profile_free(profile *f)
{
	for (uint32_t i = 0; i < f->key.n; i++) {
		mem_free(f->key.at[i].name);
		mem_free(f->key.at[i].text);
	}
	for (uint32_t i = 0; i < f->rows.n; i++) {
		mem_free(f->rows.at[i].name);
		mem_free(f->rows.at[i].module);
	}
	vec_free(&f->key);
	vec_free(&f->rows);
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

static clv_status read_number(const json_t *object, const char *key, double *out)
{
	const json_t *x = json_object_get(object, key);
	if (!json_is_number(x))
		return fail(CLV_E_PARSE, "%s is missing or is no number", key);
	double v = json_number_value(x);
	if (!isfinite(v) || v < 0)
		return fail(CLV_E_PARSE, "%s is %g; it must be finite and not negative", key, v);
	*out = v;
	return CLV_OK;
}

static clv_status read_spread(const char *name, const spread *s)
{
	bool sorted = s->least <= s->low && s->low <= s->median && s->median <= s->high && s->high <= s->most;
	return sorted ? CLV_OK : fail(CLV_E_PARSE, "%s: least, low, time, high, most must ascend", name);
}

static clv_status read_numbers(const json_t *object, block_profile *out)
{
	for (size_t i = 0; i < PROFILE_NUMBER_COUNT; i++) {
		double x;
		TRY(read_number(object, profile_numbers[i].key, &x));
		memcpy((char *)out + profile_numbers[i].at, &x, sizeof x);
	}
	TRY(read_spread("forward", &out->forward));
	return read_spread("backward", &out->backward);
}

static clv_status copy_text(const char *s, char **out)
{
	*out = mem_strdup(s, strlen(s));
	return *out ? CLV_OK : fail_nomem();
}

static clv_status read_row(const json_t *object, uint32_t after, profile_row *out)
{
	const char *name, *module;
	int64_t end;
	TRY(json_get_string(object, "name", &name));
	TRY(json_get_string(object, "module", &module));
	TRY(json_get_int(object, "end", &end));
	if (end <= after || end >= UINT32_MAX)
		return fail(CLV_E_PARSE, "end is %lld, and must be above %u, where the block begins", (long long)end, after);
	out->end = (uint32_t)end;
	TRY(read_numbers(object, &out->at));
	TRY(copy_text(name, &out->name));
	return copy_text(module, &out->module);
}

static clv_status read_rows(const json_t *root, profile *out)
{
	const json_t *rows;
	TRY(json_get_array(root, "blocks", &rows));
	size_t n = json_array_size(rows);
	if (!n || n >= UINT32_MAX)
		return fail(CLV_E_PARSE, "\"blocks\" has %zu blocks", n);
	for (size_t i = 0; i < n; i++) {
		uint32_t after = i ? out->rows.at[i - 1].end : 0;
		TRY(vec_push(&out->rows, (profile_row){0}));
		clv_status st = read_row(json_array_get(rows, i), after, &out->rows.at[i]);
		if (st != CLV_OK)
			return fail_more(st, "blocks[%zu]", i);
	}
	return CLV_OK;
}

static clv_status read_key(const json_t *root, profile *out)
{
	json_t *key = json_object_get(root, "key");
	const char *name;
	json_t *text;
	if (!json_is_object(key))
		return fail(CLV_E_PARSE, "\"key\" is missing or is no object");
	json_object_foreach(key, name, text)
	{
		const char *s;
		TRY(json_get_string(key, name, &s));
		TRY(vec_push(&out->key, (profile_text){0}));
		TRY(copy_text(name, &out->key.at[out->key.n - 1].name));
		TRY(copy_text(s, &out->key.at[out->key.n - 1].text));
	}
	return CLV_OK;
}

static clv_status read_whole(const json_t *root, profile *out)
{
	const json_t *whole = json_object_get(root, "whole");
	if (!whole)
		return CLV_OK;
	out->has_whole = true;
	clv_status st = read_numbers(whole, &out->whole);
	return st == CLV_OK ? st : fail_more(st, "whole");
}

static clv_status read_profile(const json_t *root, profile *out)
{
	const char *format;
	int64_t version;
	if (json_get_string(root, "format", &format) != CLV_OK || strcmp(format, PROFILE_FORMAT) != 0)
		return fail(CLV_E_PARSE, "it is no profile: \"format\" is not \"%s\"", PROFILE_FORMAT);
	TRY(json_get_int(root, "version", &version));
	if (version != PROFILE_VERSION)
		return fail(CLV_E_PARSE, "it has version %lld, this Cleave reads version %d", (long long)version,
		            PROFILE_VERSION);
	TRY(read_key(root, out));
	TRY(read_whole(root, out));
	return read_rows(root, out);
}

clv_status profile_parse(const char *text, size_t n, profile *out)
{
	json_t *root;
	profile f = {0};
	TRY(json_read(text, n, "the profile", &root));
	clv_status st = read_profile(root, &f);
	json_decref(root);
	if (st != CLV_OK)
		profile_free(&f);
	else
		*out = f;
	return st;
}

clv_status profile_read(const char *path, profile *out)
{
	uint8_t *data;
	size_t n;
	TRY(file_read(path, &data, &n));
	clv_status st = profile_parse((const char *)data, n, out);
	mem_free(data);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
}
