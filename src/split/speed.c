/* Reads the speed of a model from the output of `cleave bench --json`. The file is hostile. */
#include <math.h>

#include "file/json.h"
#include "file/safetensors.h"

/* The last row that has a speed: larger batches are measured after smaller ones. */
static clv_status read_speed(const json_t *rows, double *out)
{
	double speed = NAN;
	for (size_t i = 0; i < json_array_size(rows); i++) {
		const json_t *x = json_object_get(json_array_get(rows, i), "flops_per_s");
		if (json_is_number(x))
			speed = json_number_value(x);
	}
	if (isnan(speed))
		return fail(CLV_E_PARSE, "no row has flops_per_s; `cleave bench --json` writes such files");
	if (!isfinite(speed) || speed <= 0)
		return fail(CLV_E_PARSE, "flops_per_s is %g; it must be above 0", speed);
	*out = speed;
	return CLV_OK;
}

clv_status clv_speed_load(const char *path, double *out)
{
	uint8_t *text = NULL;
	size_t n = 0;
	json_t *root = NULL;
	if (!path || !out)
		return fail(CLV_E_INVALID, "clv_speed_load: an argument is NULL");
	TRY(file_read(path, &text, &n));
	clv_status st = json_read((const char *)text, n, "the measurement", &root);
	if (st == CLV_OK)
		st = read_speed(root, out);
	json_decref(root);
	mem_free(text);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
}
