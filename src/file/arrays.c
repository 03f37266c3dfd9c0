/* Tensors of files as plain memory, for programs without torch: safetensors files, and .npy, which has one tensor. */
#include <string.h>

#include "base/options.h"
#include "file/npy.h"
#include "file/safetensors.h"
#include "plan/words.h"

struct clv_arrays {
	uint8_t *bytes; /* of the file; owned. NULL: those of the caller */
	st_file *file;  /* NULL: of an .npy file */
	npy npy;
	uint8_t *dense; /* its data in row-major order, where it was in another; owned */
};

static clv_status check_bools(dtype d, const uint8_t *data, size_t n)
{
	size_t odd = bools_odd(d, data, n);
	return odd == n ? CLV_OK : fail(CLV_E_PARSE, "element %zu is %u, and bools are 0 or 1", odd, data[odd]);
}

static clv_status read_npy(clv_arrays *a, const void *data, size_t n)
{
	TRY(npy_parse(data, n, &a->npy));
	TRY(check_bools(a->npy.dtype, a->npy.data, a->npy.nbytes));
	if (!a->npy.fortran)
		return CLV_OK;
	a->dense = mem_realloc(NULL, a->npy.nbytes + 1, 1);
	TRY_MEM(a->dense);
	npy_copy(&a->npy, a->dense);
	return CLV_OK;
}

static clv_status read_safetensors(clv_arrays *a, const void *data, size_t n)
{
	TRY(st_parse(data, n, &a->file));
	for (uint32_t i = 0; i < st_count(a->file); i++) {
		const st_entry *e = st_at(a->file, i);
		clv_status st = check_bools(e->dtype, e->data, e->nbytes);
		if (st != CLV_OK)
			return fail_more(st, "tensor \"%.64s\"", e->name);
	}
	return CLV_OK;
}

clv_status arrays_parse(const void *data, size_t n, clv_arrays **out)
{
	clv_arrays *a = mem_alloc(sizeof *a);
	TRY_MEM(a);
	clv_status st = npy_looks_like(data, n) ? read_npy(a, data, n) : read_safetensors(a, data, n);
	if (st == CLV_OK)
		*out = a;
	else
		clv_arrays_free(a);
	return st;
}

clv_status clv_arrays_load(const char *path, clv_arrays **out)
{
	uint8_t *bytes;
	size_t n;
	clv_arrays *a;
	if (!path || !out)
		return fail(CLV_E_INVALID, "clv_arrays_load needs a path and a place for the arrays");
	TRY(file_read(path, &bytes, &n));
	clv_status st = arrays_parse(bytes, n, &a);
	if (st != CLV_OK) {
		mem_free(bytes);
		return st == CLV_E_NOMEM ? st : fail_more(st, "%s", path);
	}
	a->bytes = bytes;
	*out = a;
	return CLV_OK;
}

void clv_arrays_free(clv_arrays *a)
{
	if (!a)
		return;
	st_free(a->file);
	mem_free(a->dense);
	mem_free(a->bytes);
	mem_free(a);
}

uint32_t clv_arrays_count(const clv_arrays *a)
{
	return !a ? 0 : a->file ? st_count(a->file) : 1;
}

clv_status clv_arrays_get(const clv_arrays *a, uint32_t i, clv_array *out)
{
	if (!a || !out || i >= clv_arrays_count(a))
		return fail(CLV_E_INVALID, "clv_arrays_get: there is no array %u, or no place for it", i);
	clv_array x = {.name = "", .dtype = dtype_name(a->npy.dtype), .ndim = a->npy.ndim, .shape = a->npy.shape};
	x.data = a->dense ? a->dense : a->npy.data;
	x.bytes = a->npy.nbytes;
	if (a->file) {
		const st_entry *e = st_at(a->file, i);
		x = (clv_array){0, e->name, dtype_name(e->dtype), e->ndim, e->shape, e->data, e->nbytes};
	}
	return options_write(out, &x, sizeof x, "clv_array");
}

uint32_t clv_arrays_find(const clv_arrays *a, const char *name)
{
	if (!a || !name)
		return CLV_NONE;
	return a->file ? st_find(a->file, name) : *name ? CLV_NONE : 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static clv_status to_entry(const clv_array *given, st_entry *out)
{
	clv_array x = {0};
	TRY(options_read(&x, sizeof x, given, "clv_array"));
	if (!x.name || !x.dtype || (x.ndim && !x.shape) || (x.bytes && !x.data))
		return fail(CLV_E_INVALID, "a clv_array has no name, dtype, shape or data");
	*out = (st_entry){.name = x.name, .ndim = x.ndim, .shape = x.shape, .data = x.data, .nbytes = x.bytes};
	clv_status st = dtype_read(x.dtype, &out->dtype);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "tensor \"%.64s\"", x.name);
}

static clv_status save_entries(const st_entry *entries, uint32_t n, const char *path)
{
	st_image image;
	TRY(st_layout(entries, n, NULL, 0, &image));
	clv_status st = st_save(&image, path);
	st_image_free(&image);
	return st;
}

clv_status clv_arrays_save(const clv_array *arrays, uint32_t n, const char *path)
{
	if ((n && !arrays) || !path)
		return fail(CLV_E_INVALID, "clv_arrays_save needs arrays and a path");
	st_entry *entries = mem_alloc(((size_t)n + 1) * sizeof *entries);
	clv_status st = entries ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		st = to_entry(&arrays[i], &entries[i]);
	if (st == CLV_OK)
		st = save_entries(entries, n, path);
	mem_free(entries);
	return st;
}
