/* Runs the suffix of a model on a boundary that a prefix left in a file, with no Python in the process.
 *
 *     run_suffix suffix.clv boundary [output.bin …]
 *
 * Outputs are printed, or written as they are, row by row, one file for each. Without files there is nothing to run, and
 * it says how it is used. */
#include <cleave.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file that has the whole, cut model has its suffix too. */
static clv_status open_suffix(const char *path, clv_runtime **out)
{
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *file = NULL;
	clv_status st = clv_artifact_open(path, NULL, &file);
	options.part = "suffix";
	if (st == CLV_OK)
		st = clv_runtime_create(file, &options, out);
	clv_artifact_free(file); /* the runtime keeps what it needs */
	return st;
}

static clv_status give(const clv_tensor *t, const char *path)
{
	int64_t bytes = clv_tensor_bytes(t);
	void *copy = malloc(bytes > 0 ? (size_t)bytes : 1);
	FILE *f = path ? fopen(path, "wb") : NULL;
	clv_status st = copy ? clv_tensor_copy_to(t, copy, (size_t)bytes) : CLV_E_NOMEM;
	if (st == CLV_OK && path && (!f || fwrite(copy, 1, (size_t)bytes, f) != (size_t)bytes))
		st = CLV_E_IO;
	if (f && fclose(f) != 0)
		st = CLV_E_IO;
	printf("%s[", clv_tensor_dtype(t));
	for (uint32_t i = 0; i < clv_tensor_ndim(t); i++)
		printf("%s%" PRId64, i ? "," : "", clv_tensor_dim(t, i));
	printf("] %" PRId64 " bytes%s%s\n", bytes, path ? " to " : "", path ? path : "");
	if (st == CLV_OK && strcmp(clv_tensor_dtype(t), "f32") == 0)
		for (int64_t i = 0; i < bytes / 4 && i < 8; i++)
			printf("%s%g", i ? " " : "  ", (double)((const float *)copy)[i]);
	printf("\n");
	free(copy);
	return st;
}

static clv_status run(const clv_runtime *suffix, const clv_boundary *boundary, char **paths, int npaths)
{
	uint32_t n = clv_runtime_output_count(suffix);
	clv_tensor **out = calloc(n + 1, sizeof *out);
	clv_status st = out ? clv_runtime_run_suffix(suffix, boundary, out, n) : CLV_E_NOMEM;
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		st = give(out[i], (int)i < npaths ? paths[i] : NULL);
	for (uint32_t i = 0; out && i < n; i++)
		clv_tensor_free(out[i]);
	free(out);
	return st;
}

int main(int argc, char **argv)
{
	clv_runtime *suffix = NULL;
	clv_boundary *boundary = NULL;
	if (argc < 3) {
		printf("usage: %s suffix.clv boundary [output.bin ...]\n", argv[0]);
		return argc != 1;
	}
	clv_status st = open_suffix(argv[1], &suffix);
	if (st == CLV_OK)
		st = clv_boundary_load(argv[2], &boundary);
	if (st == CLV_OK)
		st = run(suffix, boundary, argv + 3, argc - 3);
	if (st != CLV_OK) /* "" where it was not the library that failed */
		fprintf(stderr, "%s %s\n", clv_status_name(st), clv_last_error());
	clv_boundary_free(boundary);
	clv_runtime_free(suffix);
	return st != CLV_OK;
}
