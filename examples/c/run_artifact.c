/* Runs a model that was saved to a file, with no Python in the process.
 *
 *     run_artifact model.clv [input.bin …]
 *     run_artifact prefix.clv -b boundary [input.bin …]
 *
 * Says what the model takes and gives, and runs it: on the bytes of one file per input, row by row, or on zeros. Sizes
 * that may change are those at which the model was recorded first. Of a prefix the boundary can be written to a file, for
 * run_suffix. Without a file there is nothing to run, and it says how it is used. */
#include <cleave.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of a symbol ("B"): at the first point that the file is proven for, or the lowest. */
static int64_t value_of(const clv_artifact *file, const char *name)
{
	const clv_plan *plan = clv_artifact_plan(file, 0);
	clv_plan_info info = {.size = sizeof info};
	clv_artifact_plan_info(file, 0, &info);
	for (uint32_t i = 0, k = 0; i < clv_plan_symbol_count(plan); i++) {
		clv_symbol s = {.size = sizeof s};
		clv_plan_symbol(plan, i, &s);
		if (strcmp(s.name, name) == 0)
			return info.npoints ? info.points[k] : s.lo;
		k += !s.data;
	}
	return -1;
}

static void print_port(const char *what, const clv_port *port)
{
	printf("%s %s %s[", what, port->name, port->dtype);
	for (uint32_t i = 0; i < port->ndim; i++)
		printf("%s%s", i ? "," : "", port->dims[i]);
	printf("] on %s\n", port->device);
}

static void print_tensor(const char *name, const clv_tensor *t)
{
	int64_t bytes = clv_tensor_bytes(t);
	float *copy = malloc(bytes > 0 ? (size_t)bytes : 1);
	printf("%s %s[", name, clv_tensor_dtype(t));
	for (uint32_t i = 0; i < clv_tensor_ndim(t); i++)
		printf("%s%" PRId64, i ? "," : "", clv_tensor_dim(t, i));
	printf("]");
	if (copy && strcmp(clv_tensor_dtype(t), "f32") == 0 && clv_tensor_copy_to(t, copy, (size_t)bytes) == CLV_OK)
		for (int64_t i = 0; i < bytes / 4 && i < 8; i++)
			printf(" %g", (double)copy[i]);
	printf("\n");
	free(copy);
}

/* How many bytes one element takes, from the digits of "f32", "i64", "bf16"; bool takes one. */
static int64_t element_bytes(const char *dtype)
{
	const char *digits = dtype + strcspn(dtype, "0123456789");
	return *digits ? atoi(digits) / 8 : 1;
}

/* Zeros, or the bytes of a file, in memory of our own, which the tensor uses as it is and gives back by free(). */
static clv_status make_input(const clv_artifact *file, const clv_port *port, const char *path, clv_tensor **out)
{
	int64_t shape[16], bytes = element_bytes(port->dtype);
	if (port->ndim > 16)
		return CLV_E_INVALID;
	for (uint32_t i = 0; i < port->ndim; i++) {
		char *end;
		shape[i] = strtoll(port->dims[i], &end, 10);
		if (*end)
			shape[i] = value_of(file, port->dims[i]);
		if (shape[i] < 0) {
			fprintf(stderr, "%s: its size %s is no number and no symbol\n", port->name, port->dims[i]);
			return CLV_E_UNSUPPORTED;
		}
		bytes *= shape[i];
	}
	size_t room = ((size_t)bytes + 64) / 64 * 64;
	void *data = aligned_alloc(64, room);
	if (!data)
		return CLV_E_NOMEM;
	memset(data, 0, room);
	FILE *f = path ? fopen(path, "rb") : NULL;
	if (path && (!f || fread(data, 1, (size_t)bytes, f) != (size_t)bytes)) {
		fprintf(stderr, "%s: %" PRId64 " bytes are needed for %s\n", path, bytes, port->name);
		free(data);
		if (f)
			fclose(f);
		return CLV_E_IO;
	}
	if (f)
		fclose(f);
	clv_status st = clv_tensor_wrap(data, port->dtype, port->ndim, shape, NULL, free, data, out);
	if (st != CLV_OK)
		free(data); /* on failure the memory stays ours */
	return st;
}

static clv_status make_inputs(const clv_artifact *file, const clv_runtime *model, char **paths, int npaths,
                              clv_tensor **in)
{
	for (uint32_t i = 0; i < clv_runtime_input_count(model); i++) {
		clv_port port = {.size = sizeof port};
		clv_status st = clv_runtime_input(model, i, &port);
		if (st == CLV_OK) {
			print_port("input ", &port);
			st = make_input(file, &port, (int)i < npaths ? paths[i] : NULL, &in[i]);
		}
		if (st != CLV_OK)
			return st;
	}
	return CLV_OK;
}

/* All outputs, as tensors. */
static clv_status run_whole(const clv_runtime *model, clv_tensor **in)
{
	uint32_t nout = clv_runtime_output_count(model);
	clv_tensor **out = calloc(nout + 1, sizeof *out);
	clv_status st = CLV_E_NOMEM;
	if (out)
		st = clv_runtime_run(model, (const clv_tensor *const *)in, clv_runtime_input_count(model), out, nout);
	for (uint32_t i = 0; st == CLV_OK && i < nout; i++) {
		clv_port port = {.size = sizeof port};
		st = clv_runtime_output(model, i, &port);
		if (st == CLV_OK) {
			print_port("output", &port);
			print_tensor("      ", out[i]);
		}
	}
	for (uint32_t i = 0; out && i < nout; i++)
		clv_tensor_free(out[i]);
	free(out);
	return st;
}

/* What crosses the cut, as a file. */
static clv_status run_prefix(const clv_runtime *model, clv_tensor **in, const char *path)
{
	clv_boundary *boundary = NULL;
	clv_status st =
		clv_runtime_run_prefix(model, (const clv_tensor *const *)in, clv_runtime_input_count(model), &boundary);
	for (uint32_t i = 0; i < clv_boundary_count(boundary); i++)
		print_tensor(clv_boundary_label(boundary, i), clv_boundary_tensor(boundary, i));
	if (st == CLV_OK)
		st = clv_boundary_save(boundary, NULL, path);
	clv_boundary_free(boundary);
	return st;
}

static clv_status run(const clv_artifact *file, const clv_runtime *model, const char *boundary, char **paths,
                      int npaths)
{
	uint32_t n = clv_runtime_input_count(model);
	clv_tensor **in = calloc(n + 1, sizeof *in);
	clv_status st = in ? make_inputs(file, model, paths, npaths, in) : CLV_E_NOMEM;
	if (st == CLV_OK)
		st = boundary ? run_prefix(model, in, boundary) : run_whole(model, in);
	for (uint32_t i = 0; in && i < n; i++)
		clv_tensor_free(in[i]);
	free(in);
	return st;
}

int main(int argc, char **argv)
{
	clv_artifact *file = NULL;
	clv_runtime *model = NULL;
	if (argc < 2) {
		printf("usage: %s model.clv [-b boundary] [input.bin ...]\n", argv[0]);
		return 0;
	}
	bool cut = argc > 3 && strcmp(argv[2], "-b") == 0;
	int first = cut ? 4 : 2;
	clv_status st = clv_artifact_open(argv[1], NULL, &file);
	if (st == CLV_OK)
		st = clv_runtime_create(file, NULL, &model);
	if (st == CLV_OK)
		st = run(file, model, cut ? argv[3] : NULL, argv + first, argc - first);
	if (st != CLV_OK) /* "" where it was not the library that failed */
		fprintf(stderr, "%s %s\n", clv_status_name(st), clv_last_error());
	clv_runtime_free(model);
	clv_artifact_free(file);
	return st != CLV_OK;
}
