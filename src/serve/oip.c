/* The Open Inference Protocol: its words for types and shapes, and what it says about a model. */
#include <stdio.h>

#include "base/member.h"
#include "serve/batch.h"
#include "serve/oip.h"

const char *const oip_extensions[] = {"model_repository",
                                      "model_repository(unload_dependents)",
                                      "model_configuration",
                                      "statistics",
                                      "binary_tensor_data",
                                      "cleave_boundary",
                                      NULL};

int64_t oip_dim(const char *text)
{
	int64_t n;
	return http_number(text, &n) ? n : -1;
}

clv_status served_port(const served *m, bool output, uint32_t i, clv_port *out)
{
	*out = (clv_port){.size = sizeof *out};
	return output ? clv_runtime_output(m->runtime, i, out) : clv_runtime_input(m->runtime, i, out);
}

uint32_t oip_batch_size(const served *m)
{
	const batching *b = &m->batching;
	bool all = b->on && clv_runtime_input_count(m->runtime);
	for (uint32_t i = 0; all && i < clv_runtime_output_count(m->runtime); i++)
		all = b->of_rows[i];
	return all ? batch_largest(b) : 0;
}

clv_status oip_describe(exchange *x, describe_fn fn, strbuf *out)
{
	served *m = NULL;
	TRY(models_find(x->s, x->model, x->version, &m));
	clv_status st = fn(x, m, out);
	served_free(m);
	return st;
}

/* ---- metadata ------------------------------------------------------------------------------------------------------------ */

uint32_t served_port_count(const served *m, bool output)
{
	return output ? clv_runtime_output_count(m->runtime) : clv_runtime_input_count(m->runtime);
}

/* In the configuration types have a prefix, and shapes of what is batched are those of one row. */
static clv_status put_ports(const served *m, bool output, bool config, strbuf *b)
{
	static const char *const lists[2][2] = {{"inputs", "outputs"}, {"input", "output"}};
	uint32_t first = config && oip_batch_size(m) ? 1 : 0;
	member_open(b, lists[config][output], '[');
	for (uint32_t i = 0; i < served_port_count(m, output); i++) {
		clv_port p;
		char type[32];
		TRY(served_port(m, output, i, &p));
		const char *known = oip_datatype(p.dtype);
		snprintf(type, sizeof type, "%s%s", config ? "TYPE_" : "", known ? known : config ? "INVALID" : p.dtype);
		member_open(b, NULL, '{');
		member_text(b, "name", p.name);
		member_text(b, config ? "data_type" : "datatype", type);
		member_open(b, config ? "dims" : "shape", '[');
		for (uint32_t d = first; d < p.ndim; d++)
			member_int(b, NULL, oip_dim(p.dims[d]));
		strbuf_puts(b, "]}");
	}
	strbuf_putc(b, ']');
	return CLV_OK;
}

static const char *kind_names[] = {"all", "prefix", "suffix", "training"};

static void put_sizes(const batching *x, const char *name, strbuf *b)
{
	member_open(b, name, '[');
	for (uint32_t size = 0, next; (next = batch_size_above(x, size)) != 0; size = next)
		member_int(b, NULL, next);
	strbuf_putc(b, ']');
}

static void put_batching(const batching *x, strbuf *b)
{
	member_bool(b, "batching", x->on);
	if (x->why)
		member_text(b, "batching_reason", x->why);
	if (!x->on)
		return;
	put_sizes(x, "batching_sizes", b);
	member_int(b, "batching_shapes", x->npoints);
	member_number(b, "batching_max_error", x->max_error);
}

static void put_version(void *b, const char *version)
{
	member_text(b, NULL, version);
}

clv_status oip_metadata(exchange *x, const served *m, strbuf *b)
{
	member_open(b, NULL, '{');
	member_text(b, "name", m->name);
	member_open(b, "versions", '[');
	models_versions(x->s, m->name, put_version, b);
	strbuf_putc(b, ']');
	member_text(b, "platform", "cleave");
	TRY(put_ports(m, false, false, b));
	TRY(put_ports(m, true, false, b));
	member_open(b, "parameters", '{');
	member_text(b, "part", kind_names[m->kind]);
	member_text(b, "engine", clv_runtime_engine(m->runtime));
	member_bool(b, "sandbox", clv_runtime_sandboxed(m->runtime));
	if (m->kind != SERVES_WHOLE) {
		member_text(b, "split_id", clv_artifact_split_id(m->artifact));
		member_text(b, "boundary", clv_artifact_boundary(m->artifact));
	}
	put_batching(&m->batching, b);
	if (m->unused)
		member_text(b, "config_ignored", m->unused);
	strbuf_puts(b, "}}");
	return CLV_OK;
}

/* ---- the configuration ----------------------------------------------------------------------------------------------------- */

clv_status oip_config(exchange *x, const served *m, strbuf *b)
{
	(void)x;
	member_open(b, NULL, '{');
	member_text(b, "name", m->name);
	member_text(b, "platform", "cleave");
	member_text(b, "backend", "cleave");
	member_int(b, "max_batch_size", oip_batch_size(m));
	TRY(put_ports(m, false, true, b));
	TRY(put_ports(m, true, true, b));
	if (oip_batch_size(m)) {
		member_open(b, "dynamic_batching", '{');
		put_sizes(&m->batching, "preferred_batch_size", b);
		strbuf_putc(b, '}');
	}
	member_open(b, "instance_group", '[');
	strbuf_puts(b, "]}");
	return CLV_OK;
}

/* ---- statistics -------------------------------------------------------------------------------------------------------------- */

static void put_duration(strbuf *b, const char *name, const duration *d)
{
	member_open(b, name, '{');
	member_int(b, "count", (int64_t)atomic_load(&d->count));
	member_int(b, "ns", (int64_t)atomic_load(&d->ns));
	strbuf_putc(b, '}');
}

clv_status oip_statistics(const served *m, strbuf *b)
{
	const tally *t = &m->tally;
	static const duration none;
	member_open(b, NULL, '{');
	member_text(b, "name", m->name);
	member_text(b, "version", m->version);
	member_int(b, "last_inference", atomic_load(&t->last_ms));
	member_int(b, "inference_count", (int64_t)atomic_load(&t->inferences));
	member_int(b, "execution_count", (int64_t)atomic_load(&t->executions));
	member_open(b, "inference_stats", '{');
	put_duration(b, "success", &t->success);
	put_duration(b, "fail", &t->failure);
	put_duration(b, "queue", &t->queue);
	put_duration(b, "compute_input", &t->compute_input);
	put_duration(b, "compute_infer", &t->compute_infer);
	put_duration(b, "compute_output", &t->compute_output);
	put_duration(b, "cache_hit", &none);
	put_duration(b, "cache_miss", &none);
	strbuf_putc(b, '}');
	member_open(b, "batch_stats", '[');
	for (uint32_t i = 0; i < m->nbatches; i++) {
		if (!atomic_load(&m->batches[i].infer.count))
			continue;
		member_open(b, NULL, '{');
		member_int(b, "batch_size", i + 1);
		put_duration(b, "compute_input", &m->batches[i].input);
		put_duration(b, "compute_infer", &m->batches[i].infer);
		put_duration(b, "compute_output", &m->batches[i].output);
		strbuf_putc(b, '}');
	}
	strbuf_puts(b, "]}");
	return CLV_OK;
}
