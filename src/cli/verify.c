/* `cleave verify`: checks the rules of a plan, and a model file against its digests. */
#include "cli.h"
#include "feed.h"

typedef struct request {
	const char *path;
	const char *engine;
	bool json, header_only, no_sandbox;
	opening opening;
} request;

typedef struct verdict {
	bool ok;
	uint32_t plans;
	uint64_t nodes;
	int64_t checked; /* bytes of data; -1: none were looked at */
	double off;      /* the largest difference between engines; negative: they were not compared */
} verdict;

static uint64_t count_all_nodes(const model *m)
{
	uint64_t n = m->own ? clv_plan_node_count(m->own) : 0;
	for (uint32_t i = 0; i < clv_artifact_plan_count(m->artifact); i++)
		n += clv_plan_node_count(clv_artifact_plan(m->artifact, i));
	return n;
}

static bool has_code(const clv_artifact *a)
{
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		if (clv_artifact_segment_count(a, i))
			return true;
	return false;
}

/* All data against its digests, which reads the whole file. */
static bool check_data(const model *m, int64_t *checked)
{
	progress bar = progress_start("checking");
	clv_status st = CLV_OK;
	*checked = 0;
	for (uint32_t i = 0; st == CLV_OK && i < clv_artifact_entry_count(m->artifact); i++) {
		int64_t bytes = 0;
		st = clv_artifact_check_entry(m->artifact, i, &bytes);
		*checked += bytes;
		progress_step(&bar, (uint64_t)*checked, (uint64_t)m->size);
	}
	progress_end(&bar);
	if (st != CLV_OK)
		fail_with(m->path);
	return st == CLV_OK;
}

static bool wants_torch(const void *given)
{
	return ((const request *)given)->engine != NULL;
}

static bool compare_native(const request *r, const model *m, double *off)
{
	if (!m->artifact) {
		complain("%s: --engine runs models, of .clv files", m->path);
		return false;
	}
	return compare_engines(m->artifact, m->path, r->no_sandbox, off);
}

static void print_verdict(const model *m, const verdict *v)
{
	char bytes[HUMAN_TEXT];
	uint32_t in = clv_plan_input_count(m->plan), out = clv_plan_output_count(m->plan);
	printf("ok: ");
	if (v->plans > 1)
		printf("%u plans, ", v->plans);
	printf("%llu node%s, %u in, %u out", (unsigned long long)v->nodes, v->nodes == 1 ? "" : "s", in, out);
	if (m->artifact && v->checked >= 0)
		printf("; %s of data in %u tensors%s as written", human_bytes(v->checked, bytes),
		       clv_artifact_tensor_count(m->artifact), has_code(m->artifact) ? " and compiled segments" : "");
	else if (m->artifact)
		printf("; header as written, data not looked at");
	if (v->off >= 0)
		printf("; the native engine gives the tape's numbers, off by %.2g at most", v->off);
	if (clv_artifact_signature_verified(m->artifact))
		printf("; signed by key %s", clv_artifact_signer(m->artifact));
	putchar('\n');
}

static void print_json(const request *r, const model *m, const verdict *v)
{
	put_json_open(NULL, '{');
	put_json_text("file", r->path);
	put_json_bool("ok", v->ok);
	put_json_text("error", v->ok ? NULL : last_complaint());
	if (v->ok) {
		put_json_int("nodes", (int64_t)v->nodes);
		put_json_int("inputs", clv_plan_input_count(m->plan));
		put_json_int("outputs", clv_plan_output_count(m->plan));
	}
	if (v->ok && v->off >= 0)
		put_json_number("off_by", v->off);
	if (v->ok && m->artifact) {
		put_json_int("plans", v->plans);
		put_json_int("tensors", clv_artifact_tensor_count(m->artifact));
		put_json_int("data_bytes_checked", v->checked < 0 ? 0 : v->checked);
		put_json_text("signer", clv_artifact_signer(m->artifact));
		put_json_bool("signature_verified", clv_artifact_signature_verified(m->artifact));
	}
	put_json_close();
}

static int run_verify(void *given)
{
	const request *r = given;
	model m = {0};
	verdict v = {.checked = -1, .off = -1};
	v.ok = model_open(r->path, &r->opening, &m); /* opening verifies plans and header */
	if (v.ok && m.artifact && !r->header_only)
		v.ok = check_data(&m, &v.checked);
	if (v.ok && r->engine)
		v.ok = compare_native(r, &m, &v.off);
	v.plans = m.own ? 1 : clv_artifact_plan_count(m.artifact);
	v.nodes = count_all_nodes(&m);
	if (r->json)
		print_json(r, &m, &v);
	else if (v.ok)
		print_verdict(&m, &v);
	model_close(&m);
	return written() && v.ok ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_FLAG("json", 0, json, "the verdict as a JSON object"),
	OPT_FLAG("header-only", 0, header_only, "skip the weights, which are most of a .clv file"),
	OPT_WORD("engine", 0, "NAME", engine, "native",
             "also run the model with this engine on made-up inputs, and compare it with the tape"),
	NO_SANDBOX_OPTION(no_sandbox),
	OPT_FILES("key", 0, "FILE", opening.trusted_keys,
              "public key (Ed25519, PEM) that must have signed the file; may be repeated"),
	ALLOW_OPTION(opening),
	OPTION_END,
};

const command command_verify = {
	.name = "verify",
	.summary = "check a plan, or a model file with its weights",
	.description =
		"Reads a plan and checks its rules: everything defined before its use, results, views, in-place "
		"writes, guards, trees. Says \"ok\", or what is wrong and in which line or node (exit status 1).\n\n"
		"For a .clv file it checks all plans, that plans and tensors fit together, and that header and data "
		"still match the digests stored with them.\n\n"
		"--engine native runs the plans of a .clv file with the native engine and with libtorch, and compares "
		"the results; a difference is traced to the first node that makes it. A stranger's file needs "
		"--no-sandbox for that.\n\n"
		"Digests find damage, but anyone who changes a file on purpose can write new ones. With --key the "
		"file must be signed by that key (`cleave sign`) and not a byte may have changed since; this is "
		"checked first, before anything else in the file is read.",
	.examples = "cleave verify model.clv\ncleave verify model.clv --key publisher.pub\n"
				"cleave verify model.clv --engine native\ncleave verify --json model.plan\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_verify,
	.wants_torch = wants_torch,
};
