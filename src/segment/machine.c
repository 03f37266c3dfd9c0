/* The CPU features of this machine that compilers use, as the kernel names them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment/compile.h"

/* Sorted words. */
static const char features[] =
#if defined(__x86_64__) || defined(__i386__)
	"3dnowprefetch abm adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx avx10 avx2 "
	"avx512_4fmaps avx512_4vnniw avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni "
	"avx512_vp2intersect avx512_vpopcntdq avx512bw avx512cd avx512dq avx512er avx512f avx512ifma "
	"avx512pf avx512vbmi avx512vl avx_ifma avx_ne_convert avx_vnni avx_vnni_int16 avx_vnni_int8 bmi1 "
	"bmi2 cldemote clflushopt clwb cmpccxadd cx16 f16c fma fma4 fsgsbase gfni lahf_lm movbe movdir64b "
	"movdiri pclmulqdq pni popcnt prefetchwt1 ptwrite rdpid rdrand rdseed serialize sha512 sha_ni sm3 "
	"sm4 sse sse2 sse4_1 sse4_2 sse4a ssse3 tbm vaes vpclmulqdq waitpkg xop xsave xsavec xsaveopt"
#elif defined(__aarch64__) || defined(__arm__)
	"aes asimd asimddp asimdfhm asimdhp asimdrdm atomics bf16 crc32 dcpodp dcpop fcma flagm flagm2 fp "
	"fphp frint i8mm ilrcpc jscvt lrcpc lse128 mops neon pmull rng sb sha1 sha2 sha3 sha512 sm3 sm4 sme "
	"sme2 smef16f16 smef32f32 smei16i64 smei8i32 sve sve2 sve2p1 sveaes svebf16 svebitperm svef32mm "
	"svef64mm svei8mm svepmull svesha3 svesm4 uscat vfpv4"
#else
	""
#endif
	;
enum { MOST_FEATURES = sizeof features / 2 };

/* The next word of *text, which goes on behind it; NULL: there is none. */
static const char *next_word(const char **text, size_t *n)
{
	const char *word = *text + strspn(*text, " \t\n");
	*n = strcspn(word, " \t\n");
	*text = word + *n;
	return *n ? word : NULL;
}

static bool has_word(const char *text, const char *word, size_t n)
{
	size_t k;
	for (const char *here; (here = next_word(&text, &k));)
		if (k == n && memcmp(here, word, n) == 0)
			return true;
	return false;
}

/* The list after "flags : " (x86) or "Features : " (Arm); NULL: it is another line. */
static const char *list_in(const char *line)
{
	const char *colon = strchr(line, ':');
	size_t n = strcspn(line, " \t:");
	bool flags = (n == 5 && memcmp(line, "flags", 5) == 0) || (n == 8 && memcmp(line, "Features", 8) == 0);
	return flags && colon ? colon + 1 : NULL;
}

/* A process may run on every processor, so what counts is what all of them have. */
static bool scan_cpuinfo(FILE *f, bool *here)
{
	char *line = NULL;
	size_t cap = 0;
	bool seen = false;
	while (getline(&line, &cap, f) > 0) {
		const char *list = list_in(line), *at = features, *word;
		size_t n;
		for (size_t i = 0; list && (word = next_word(&at, &n)); i++)
			here[i] = (here[i] || !seen) && has_word(list, word, n);
		seen = seen || list;
	}
	free(line);
	return seen;
}

clv_status machine_features(strbuf *out)
{
	bool here[MOST_FEATURES] = {false};
	const char *at = features, *word;
	size_t n, shown = 0;
	FILE *f = fopen("/proc/cpuinfo", "re");
	if (!f)
		return fail(CLV_E_IO, "cannot read the features of this CPU: /proc/cpuinfo: %s", strerror(errno));
	scan_cpuinfo(f, here);
	fclose(f);
	for (size_t i = 0; (word = next_word(&at, &n)); i++)
		if (here[i])
			strbuf_printf(out, "%s%.*s", shown++ ? " " : "", (int)n, word);
	return out->failed ? fail_nomem() : CLV_OK;
}

clv_status machine_has(const char *needed, bool *yes, const char **lacks, size_t *n)
{
	strbuf b = STRBUF_INIT;
	char *here;
	clv_status st = machine_features(&b);
	if (st != CLV_OK) {
		strbuf_free(&b);
		return st;
	}
	TRY(strbuf_take(&b, &here));
	*yes = true;
	for (const char *word; *yes && (word = next_word(&needed, n)); *lacks = word)
		*yes = has_word(here, word, *n);
	mem_free(here);
	return CLV_OK;
}
