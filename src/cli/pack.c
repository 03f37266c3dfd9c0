/* `cleave pack`: puts weights into a model file as the native engine wants them. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "feed.h"

typedef struct request {
	const char *path, *output, *sets;
	bool no_sandbox, compare;
	opening opening;
} request;

/* Words between commas: *at has them in *copy, both of which the caller frees. */
static uint32_t read_sets(const char *text, char **copy, const char ***at)
{
	uint32_t n = 0;
	size_t length = strlen(text);
	*copy = grab(length + 1);
	*at = grab((length + 1) * sizeof **at);
	memcpy(*copy, text, length + 1);
	for (char *word = strtok(*copy, ","); word; word = strtok(NULL, ","))
		(*at)[n++] = word;
	return n;
}

static bool wants_torch(const void *given)
{
	return ((const request *)given)->compare;
}

/* What was written. */
static bool compare_packed(const request *r, const char *path)
{
	clv_artifact *a = NULL;
	double off;
	if (clv_artifact_open(path, NULL, &a) != CLV_OK) {
		fail_with(path);
		return false;
	}
	bool ok = compare_engines(a, path, r->no_sandbox, &off);
	if (ok && off >= 0)
		printf("%s: the native engine gives the tape's numbers, off by %.2g at most\n", path, off);
	clv_artifact_free(a);
	return ok;
}

static void show_packed(const char *path)
{
	clv_artifact *a = NULL;
	const char *isa;
	char text[HUMAN_TEXT];
	uint32_t pieces;
	int64_t bytes;
	if (clv_artifact_open(path, NULL, &a) != CLV_OK)
		return;
	for (uint32_t i = 0; clv_artifact_packed(a, i, &isa, &pieces, &bytes); i++)
		printf("%s: %u pieces for %s, %s\n", path, pieces, isa, human_bytes(bytes, text));
	clv_artifact_free(a);
}

static int pack_model(void *given, const model *m)
{
	const request *r = given;
	const char *to = r->output ? r->output : r->path;
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	char *copy = NULL;
	const char **at = NULL;
	if (r->sets) {
		o.nisas = read_sets(r->sets, &copy, &at);
		o.isas = at;
	}
	o.sandbox = r->no_sandbox ? CLV_SANDBOX_OFF : CLV_SANDBOX_AUTO;
	clv_status st = clv_artifact_pack(m->artifact, &o, to);
	free(copy);
	free(at);
	if (st != CLV_OK) {
		fail_with(r->path);
		if (st == CLV_E_UNSUPPORTED)
			hint("cleave inspect --engine native shows what the native engine does not take");
		return EXIT_FAILED;
	}
	show_packed(to);
	if (r->compare && !compare_packed(r, to))
		return EXIT_FAILED;
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int check_pack(void *given)
{
	const request *r = given;
	if (!strcmp(r->path, "-") || (r->output && !strcmp(r->output, "-"))) {
		complain("files are packed, not standard input or output");
		return EXIT_USAGE;
	}
	if (r->sets && !r->sets[strspn(r->sets, ",")]) {
		complain("--for names no instruction set; base, avx2, avx512 and neon are");
		return EXIT_USAGE;
	}
	return EXIT_OK;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file with weights"),
	OPTION_END,
};

static const option options[] = {
	OPT_TEXT("for", 0, "SETS", sets,
             "instruction sets of the machines that will run it: avx2,avx512,neon (default: this machine's)"),
	OPT_FILE("output", 'o', "FILE", output, "write the packed file here (default: replace FILE)"),
	OPT_FLAG("compare", 0, compare, "then run it with the native engine and with libtorch, and compare the results"),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	NO_SANDBOX_OPTION(no_sandbox),
	OPTION_END,
};

const command command_pack = {
	.name = "pack",
	.summary = "pack the weights of a model file for the native engine",
	.description =
		"Stores a model's weights in its .clv file in the layout that the kernels of the native engine use, along with "
		"values computed from weights. A runtime then starts without that work, and processes that run the file share "
		"its memory. Any machine can pack for any other: --for names the instruction sets.\n\n"
		"The model itself does not change: other engines still run the file, and a machine for which nothing is packed "
		"packs in memory at start, as for any file. Existing packed weights are replaced. Pack a file before you sign "
		"it; cutting or tracing it again makes a new file without packed weights.",
	.examples = "cleave pack prefix.clv\n"
				"# for a board with a 64-bit ARM processor, and for servers\n"
				"cleave pack prefix.clv --for neon,avx2,avx512 -o packed.clv\n"
				"cleave run packed.clv --engine native --input random\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.artifact = true,
	.check = check_pack,
	.wants_torch = wants_torch,
	ON_MODEL(pack_model),
};
