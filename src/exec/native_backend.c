/* The back end native: a segment is run by the native engine. Nothing is compiled: the code is segment.clv itself, the nodes and
 * the weights they read, which the engine packs in the first run. */
#include <string.h>

#include "exec/native_part.h"
#include "file/safetensors.h"
#include "runtime/runtime.h"

static const char MEMBER[] = "segment.clv";
static const size_t MOST_BYTES = (size_t)1 << 40;

static clv_status native_support(void *ctx, const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)ctx;
	return support_of("native", p, s, no, a);
}

static clv_status native_check_args(void *ctx, const char *const *args, uint32_t n)
{
	(void)ctx;
	return n ? fail(CLV_E_INVALID, "native takes no compiler arguments, not \"%.100s\"", args[0]) : CLV_OK;
}

static clv_status native_compile(void *ctx, const char *dir, compiled *out)
{
	uint8_t *data;
	size_t n;
	(void)ctx;
	TRY(folder_read(dir, MEMBER, MOST_BYTES, &data, &n));
	return compiled_add(out, MEMBER, data, n);
}

static clv_status native_version(void *ctx, strbuf *out)
{
	(void)ctx;
	strbuf_printf(out, "cleave %s", clv_version());
	return CLV_OK;
}

static clv_status native_fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	strbuf b = STRBUF_INIT;
	(void)ctx, (void)c;
	*reason = NULL;
	if (strcmp(s->device, "cpu") == 0)
		return CLV_OK;
	strbuf_printf(&b, "the native engine runs on the CPU, not on %s", s->device);
	return arena_take(a, &b, reason);
}

/* ---- loading and running -------------------------------------------------------------------------------------------------- */

typedef struct loaded {
	clv_runtime *r;        /* has the plan and the weights */
	native_part *part;     /* that runs */
	br_tensor **externals; /* of it: the weights; borrowed from the runtime */
	uint8_t *bytes;        /* of the file, which the tensors lie on */
} loaded;

static void native_unload(void *ctx, void *own)
{
	loaded *x = own;
	(void)ctx;
	native_part_free(x->part);
	mem_free(x->externals);
	clv_runtime_free(x->r);
	mem_free(x->bytes);
	mem_free(x);
}

static clv_status copy_aligned(const compiled_member *m, loaded *x, void **at)
{
	x->bytes = mem_alloc(m->n + ST_MAPPED_ALIGN);
	TRY_MEM(x->bytes);
	*at = x->bytes + (ST_MAPPED_ALIGN - (uintptr_t)x->bytes % ST_MAPPED_ALIGN) % ST_MAPPED_ALIGN;
	memcpy(*at, m->data, m->n);
	return CLV_OK;
}

static clv_status make_runtime(loaded *x, const compiled_member *m, const code_spec *s)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *a;
	void *at;
	o.engine = engine_native.name;
	o.unproven = true; /* the plan that has the segment says which sizes it serves */
	o.threads = 1;     /* the part has its own */
	TRY(copy_aligned(m, x, &at));
	TRY(clv_artifact_parse(at, m->n, NULL, &a));
	clv_status st = clv_runtime_create(a, &o, &x->r);
	clv_artifact_free(a);
	TRY(st);
	uint32_t in = clv_runtime_input_count(x->r), out = clv_runtime_output_count(x->r);
	return in == s->ninputs && out == s->noutputs
	           ? CLV_OK
	           : fail(CLV_E_PARSE, "%s has %u inputs and %u outputs, the segment has %u and %u", MEMBER, in, out,
	                  s->ninputs, s->noutputs);
}

static clv_status make_part(loaded *x)
{
	const runtime_plan *e = &x->r->plans.at[0];
	uint32_t n = e->of.v.externals.n;
	x->externals = mem_alloc((n + 1) * sizeof *x->externals);
	TRY_MEM(x->externals);
	TRY(br_of_all((const clv_tensor *const *)e->externals, n, x->externals));
	return native_part_new(&engine_native, e->of.p, 0, e->of.p->nodes.n, "fast", &x->part);
}

static clv_status native_load(void *ctx, const compiled *c, const code_spec *s, void **own)
{
	const compiled_member *m = compiled_find(c, MEMBER);
	if (!m)
		return fail(CLV_E_PARSE, "a segment of the native engine has no %s", MEMBER);
	loaded *x = mem_alloc(sizeof *x);
	TRY_MEM(x);
	clv_status st = make_runtime(x, m, s);
	if (st == CLV_OK)
		st = make_part(x);
	if (st == CLV_OK)
		*own = x;
	else
		native_unload(ctx, x);
	return st;
}

static clv_status native_run(void *ctx, void *own, const code_run *run)
{
	const loaded *x = own;
	(void)ctx;
	return native_part_run(x->part,
	                       &(run_spec){.inputs = run->inputs, .externals = x->externals, .outputs = run->outputs});
}

const backend backend_native = {.name = "native",
                                .support = native_support,
                                .check_args = native_check_args,
                                .compile = native_compile,
                                .version = native_version,
                                .fits = native_fits,
                                .load = native_load,
                                .run = native_run,
                                .unload = native_unload};
