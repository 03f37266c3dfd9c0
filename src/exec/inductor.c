/* The back end `inductor`: shared objects of AOTInductor. The compiler is python/cleave/compilers/inductor.py, which also
 * says what its arguments mean; here they are only looked at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/backend.h"

static const char *const MEMBER = "model.so";

static clv_status inductor_support(void *ctx, const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)ctx;
	return support_of("inductor", p, s, no, a);
}

static bool is_setting(const char *s) /* KEY=VALUE, KEY of words and dots; which ones there are is torch's to say */
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
	return n > 0 && s[n] == '=';
}

static bool is_argument(const char *s)
{
	static const char option[] = "--option=";
	return strcmp(s, "--freezing=on") == 0 || strcmp(s, "--freezing=off") == 0 || strcmp(s, "--max-autotune") == 0 ||
	       (strncmp(s, option, sizeof option - 1) == 0 && is_setting(s + sizeof option - 1));
}

static clv_status inductor_check_args(void *ctx, const char *const *args, uint32_t n)
{
	(void)ctx;
	for (uint32_t i = 0; i < n; i++)
		if (!is_argument(args[i]))
			return fail(
				CLV_E_INVALID,
				"inductor has no argument \"%s\"; it takes --freezing=on|off, --max-autotune, --option=KEY=VALUE "
				"with a setting of torch._inductor.config",
				args[i]);
	return CLV_OK;
}

/* The C++ compiler that inductor asks, by its first line; "": none that we find. */
static void put_compiler(strbuf *out)
{
	const char *name = getenv("CXX");
	char line[256] = "";
	strbuf command = STRBUF_INIT;
	strbuf_printf(&command, "%s --version 2>/dev/null", name && name[0] ? "\"$CXX\"" : "g++");
	FILE *f = command.failed ? NULL : popen(command.at, "r");
	if (f && !fgets(line, sizeof line, f))
		line[0] = 0;
	if (f)
		pclose(f);
	line[strcspn(line, "\n")] = 0;
	strbuf_puts(out, line[0] ? line : "");
	strbuf_free(&command);
}

static clv_status inductor_version(void *ctx, strbuf *out)
{
	(void)ctx;
	strbuf_printf(out, "torch %s, ", br_torch_version());
	put_compiler(out);
	return out->failed ? fail_nomem() : CLV_OK;
}

/* "cpu", or the architecture of a GPU, is checked by its code when that is loaded. */
static bool same_device_kind(const char *needed, const char *device)
{
	size_t n = strcspn(needed, " ");
	return strncmp(needed, device, n) == 0 && (device[n] == 0 || device[n] == ':');
}

static clv_status inductor_fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	const char *torch = compiled_need_of(c, "torch"), *cpu = compiled_need_of(c, "cpu");
	const char *device = compiled_need_of(c, "device"), *lacks;
	size_t n;
	bool yes = true;
	strbuf b = STRBUF_INIT;
	(void)ctx;
	*reason = NULL;
	if (!compiled_find(c, MEMBER) || !torch || !cpu || !device)
		strbuf_puts(&b, "it is incomplete: model.so or a file it needs is missing");
	else if (strcmp(torch, br_torch_version()) != 0)
		strbuf_printf(&b, "it was compiled for torch %s, this is %s", torch, br_torch_version());
	else if (!same_device_kind(device, s->device))
		strbuf_printf(&b, "it was compiled for %s, not for %s", device, s->device);
	if (b.n || b.failed)
		return arena_take(a, &b, reason);
	TRY(machine_has(cpu, &yes, &lacks, &n));
	if (yes)
		return CLV_OK;
	strbuf_printf(&b, "it was compiled for CPUs with %.*s, which this one has not", (int)n, lacks);
	return arena_take(a, &b, reason);
}

static clv_status inductor_load(void *ctx, const compiled *c, const code_spec *s, void **code)
{
	const compiled_member *m = compiled_find(c, MEMBER);
	br_aoti *made;
	uint32_t ninputs, noutputs;
	(void)ctx;
	if (!m)
		return fail(CLV_E_INVALID, "there is no %s in what was compiled", MEMBER);
	TRY(br_aoti_load(m->data, m->n, s->device, &made));
	br_aoti_count(made, &ninputs, &noutputs);
	if (ninputs != s->ninputs || noutputs != s->noutputs) {
		br_aoti_free(made);
		return fail(CLV_E_INVALID, "compiled code takes %u tensors and gives %u, the segment has %u and %u", ninputs,
		            noutputs, s->ninputs, s->noutputs);
	}
	*code = made;
	return CLV_OK;
}

static clv_status inductor_run(void *ctx, void *code, const code_run *r)
{
	(void)ctx;
	return br_aoti_run(code, r->inputs, r->outputs);
}

static void inductor_unload(void *ctx, void *code)
{
	(void)ctx;
	br_aoti_free(code);
}

const backend backend_inductor = {.name = "inductor",
                                  .support = inductor_support,
                                  .check_args = inductor_check_args,
                                  .version = inductor_version,
                                  .fits = inductor_fits,
                                  .load = inductor_load,
                                  .run = inductor_run,
                                  .unload = inductor_unload};
