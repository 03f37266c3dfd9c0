/* Runs the first half of a model here and the second on a server. While the server is away, boundaries wait in a file.
 *
 *     remote prefix.clv input.npy http://host:8000/suffix waiting.safetensors
 *
 * The boundary of the input is sent; if the server cannot be reached it is kept in the last file, and the exit status is 3.
 * The next call sends what waits there first. A token is taken from the environment, CLEAVE_TOKEN. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <stdlib.h>

enum { DONE, FAILED, USAGE, WAITS };

static int complain(void)
{
	fprintf(stderr, "%s\n", clv_last_error());
	return FAILED;
}

/* What the server's model takes, for people. False: it is no suffix. */
static bool show_server(clv_remote *server)
{
	const char *metadata;
	if (clv_remote_metadata(server, &metadata)) /* asks it, if nobody did yet */
		return complain(), false;
	for (uint32_t i = 0; i < clv_remote_input_count(server); i++) {
		clv_port p = {.size = sizeof p};
		if (clv_remote_input(server, i, &p) == CLV_OK)
			printf("the server takes %s, %s with %u dimensions\n", p.name, p.dtype, p.ndim);
	}
	if (!clv_remote_is_suffix(server))
		fprintf(stderr, "the server's model is no suffix: it takes inputs, not a boundary\n");
	return clv_remote_is_suffix(server);
}

static void show_output(const clv_port *p, const clv_tensor *t)
{
	const float *at = clv_tensor_data(t);
	int64_t n = clv_tensor_bytes(t) / (int64_t)sizeof *at, best = 0;
	for (int64_t i = 1; i < n; i++)
		best = at[i] > at[best] ? i : best;
	printf("%s: %lld numbers, the largest is number %lld\n", p->name, (long long)n, (long long)best);
}

/* The status of the call: CLV_E_IO means that it may go well later. */
static clv_status send(clv_remote *server, const clv_boundary *b)
{
	clv_remote_times times = {.size = sizeof times};
	uint32_t n = clv_remote_output_count(server);
	clv_tensor **outputs = calloc(n + 1, sizeof *outputs);
	clv_status st = outputs ? clv_remote_run_suffix(server, b, NULL, outputs, n, &times) : CLV_E_NOMEM;
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		clv_port p = {.size = sizeof p};
		if (clv_remote_output(server, i, &p) == CLV_OK)
			show_output(&p, outputs[i]);
		clv_tensor_free(outputs[i]);
	}
	if (st == CLV_OK)
		printf("sent %lld bytes, answered in %.1f ms\n", (long long)times.sent_bytes, 1e3 * times.total);
	free(outputs);
	return st;
}

/* ---- boundaries that wait ---------------------------------------------------------------------------------------- */

static int keep(const clv_boundary *b, const char *path)
{
	clv_pack_options pack = CLV_PACK_OPTIONS_INIT;
	void *data;
	size_t n;
	if (clv_boundary_pack(b, &pack, &data, &n))
		return complain();
	FILE *f = fopen(path, "wb");
	bool good = f && fwrite(data, 1, n, f) == n;
	good = f && fclose(f) == 0 && good;
	clv_free(data);
	if (!good)
		return fprintf(stderr, "cannot write %s\n", path), FAILED;
	printf("%zu bytes wait in %s\n", n, path);
	return WAITS;
}

/* *out is NULL where none waits. */
static bool read_waiting(const char *path, clv_boundary **out)
{
	FILE *f = fopen(path, "rb");
	*out = NULL;
	if (!f)
		return true;
	size_t n = 0, room = 1 << 20, got;
	char *data = malloc(room);
	while (data && (got = fread(data + n, 1, room - n, f)) > 0)
		if ((n += got) == room) {
			char *more = realloc(data, room *= 2);
			if (!more)
				free(data);
			data = more;
		}
	fclose(f);
	clv_status st =
		data ? clv_boundary_unpack(data, n, out) : CLV_E_NOMEM; /* compares digests: a torn file is noticed */
	free(data);
	return st == CLV_OK;
}

static int send_waiting(clv_remote *server, const char *path)
{
	clv_boundary *b;
	if (!read_waiting(path, &b))
		return complain();
	clv_status st = b ? send(server, b) : CLV_OK;
	if (b && st == CLV_OK)
		remove(path);
	clv_boundary_free(b);
	return st == CLV_OK ? DONE : complain();
}

/* ---- the prefix -------------------------------------------------------------------------------------------------- */

static clv_boundary *run_prefix(const char *model_path, const char *input_path)
{
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *file = NULL;
	clv_runtime *model = NULL;
	clv_arrays *arrays = NULL;
	clv_array x = {.size = sizeof x};
	clv_tensor *input = NULL;
	clv_boundary *b = NULL;
	options.engine = "native";
	options.sandbox = CLV_SANDBOX_OFF; /* the file is as trusted as this program, which came with it */
	if (clv_arrays_load(input_path, &arrays) || clv_arrays_get(arrays, 0, &x) ||
	    clv_tensor_from_data(x.data, x.dtype, x.ndim, x.shape, &input) || clv_artifact_open(model_path, NULL, &file) ||
	    clv_runtime_create(file, &options, &model) ||
	    clv_runtime_run_prefix(model, (const clv_tensor *const[]){input}, 1, &b))
		complain();
	clv_tensor_free(input);
	clv_arrays_free(arrays);
	clv_runtime_free(model);
	clv_artifact_free(file);
	return b;
}

static int serve(clv_remote *server, const clv_boundary *b, const char *waiting)
{
	const char *metadata;
	if (clv_remote_metadata(server, &metadata) == CLV_E_IO)
		return complain(), keep(b, waiting);
	if (!show_server(server))
		return FAILED;
	int code = send_waiting(server, waiting);
	if (code != DONE)
		return code;
	clv_status st = send(server, b);
	return st == CLV_OK ? DONE : st == CLV_E_IO ? keep(b, waiting) : complain();
}

int main(int argc, char **argv)
{
	clv_remote_options options = CLV_REMOTE_OPTIONS_INIT;
	clv_remote *server = NULL;
	if (argc != 5)
		return fprintf(stderr, "usage: %s prefix.clv input.npy http://host:8000/suffix waiting.safetensors\n", argv[0]),
		       USAGE;
	options.token = getenv("CLEAVE_TOKEN");
	options.timeout = 10;
	options.lazy = true; /* it may be away */
	if (clv_remote_connect(argv[3], &options, &server))
		return complain();
	clv_boundary *b = run_prefix(argv[1], argv[2]);
	int code = b ? serve(server, b, argv[4]) : FAILED;
	clv_boundary_free(b);
	clv_remote_free(server);
	return code;
}
