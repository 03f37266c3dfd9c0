/* Seals: how a user's own compiled code in a file is recognized.
 *
 * A seal is a message authentication code over the code, the nodes it replaces and everything it is loaded with, under a
 * key in the user's state folder. Without that key nobody can make a seal, or reuse one for other code or other nodes.
 * With CLEAVE_CACHE=off, or without OpenSSL, there are no seals. */
#define _GNU_SOURCE /* getrandom, explicit_bzero */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment/compile.h"

#ifdef CLEAVE_OPENSSL
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#endif

enum { KEY_BYTES = 32, MAC_BYTES = 32 };
_Static_assert(SEAL_TEXT == 2 * MAC_BYTES + 1, "a seal in hexadecimal digits");

/* ---- the key ------------------------------------------------------------------------------------------------------ */

static const char KEY_NAME[] = "seal.key";

/* It must be ours, and readable by nobody else. */
static bool read_seal_key(int dir, uint8_t key[KEY_BYTES])
{
	struct stat info;
	int fd = openat(dir, KEY_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool good = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
	            !(info.st_mode & (S_IRWXG | S_IRWXO)) && info.st_size == KEY_BYTES &&
	            read(fd, key, KEY_BYTES) == KEY_BYTES;
	close(fd);
	if (!good)
		explicit_bzero(key, KEY_BYTES);
	return good;
}

/* It appears whole, and never takes the place of another. */
static void write_key(int dir, const uint8_t key[KEY_BYTES])
{
	char beside[64];
	uint64_t chance;
	if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance)
		return;
	snprintf(beside, sizeof beside, "seal.key.%016llx.tmp", (unsigned long long)chance);
	int fd = openat(dir, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	bool good = write(fd, key, KEY_BYTES) == KEY_BYTES && fsync(fd) == 0;
	good = close(fd) == 0 && good;
	if (good)
		(void)!linkat(dir, beside, dir, KEY_NAME, 0);
	unlinkat(dir, beside, 0);
}

static void make_seal_key(int dir)
{
	uint8_t key[KEY_BYTES];
	if (getrandom(key, sizeof key, 0) == (ssize_t)sizeof key)
		write_key(dir, key);
	explicit_bzero(key, sizeof key);
}

/* False: there is none. */
static bool find_key(bool make, uint8_t key[KEY_BYTES])
{
	char *path;
	if (state_folder(make, &path) != CLV_OK)
		return false;
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	mem_free(path);
	if (dir < 0)
		return false;
	bool found = read_seal_key(dir, key);
	if (!found && make) {
		make_seal_key(dir);
		found = read_seal_key(dir, key);
	}
	close(dir);
	return found;
}

/* ---- what is sealed ----------------------------------------------------------------------------------------------- */

static void put_counted_text(strbuf *b, const char *s)
{
	strbuf_printf(b, "%zu ", strlen(s));
	strbuf_puts(b, s);
	strbuf_putc(b, '\n');
}

static void put_order(strbuf *b, const uint32_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		strbuf_printf(b, "%u ", at[i]);
	strbuf_putc(b, '\n');
}

static void put_size_ranges(const plan *p, const artifact_segment *s, const plan *part, strbuf *b)
{
	for (symbol_id i = 0; i < part->symbols.n; i++) {
		symbol_id old = plan_find_symbol(p, part, i);
		if (old < s->sizes.n)
			strbuf_printf(b, "%lld..%lld ", (long long)s->sizes.at[old].low, (long long)s->sizes.at[old].high);
	}
	strbuf_putc(b, '\n');
}

/* Everything but the bytes of the members. The nodes are those of the segment alone, so that it keeps its seal in a file of
   its own, and wherever it stands in a plan. */
static clv_status describe_sealed(const plan *p, const artifact_segment *s, const compiled *made, strbuf *b)
{
	plan *part;
	TRY(plan_extract(p, s->first, s->end, &part, NULL));
	for (node_id n = 0; n < part->nodes.n; n++)
		part->nodes.at[n].at = NONE;
	strbuf_puts(b, "cleave seal 1\n");
	put_counted_text(b, s->backend);
	put_size_ranges(p, s, part, b);
	put_order(b, s->in_order.at, s->in_order.n);
	put_order(b, s->out_order.at, s->out_order.n);
	strbuf_printf(b, "%u %u\n", s->needs.n, made->members.n);
	for (uint32_t i = 0; i < s->needs.n; i++) {
		put_counted_text(b, s->needs.at[i].key);
		put_counted_text(b, s->needs.at[i].text);
	}
	for (uint32_t i = 0; i < made->members.n; i++) {
		put_counted_text(b, made->members.at[i].name);
		strbuf_printf(b, "%zu\n", made->members.at[i].n);
	}
	plan_print(part, b);
	plan_free(part);
	return b->failed ? fail_nomem() : CLV_OK;
}

#ifdef CLEAVE_OPENSSL

static bool feed_all(EVP_MAC_CTX *c, const strbuf *text, const compiled *made)
{
	bool good = EVP_MAC_update(c, (const uint8_t *)text->at, text->n) == 1;
	for (uint32_t i = 0; i < made->members.n && good; i++)
		good = made->members.at[i].n == 0 || EVP_MAC_update(c, made->members.at[i].data, made->members.at[i].n) == 1;
	return good;
}

static clv_status mac(const uint8_t key[KEY_BYTES], const strbuf *text, const compiled *made, uint8_t out[MAC_BYTES])
{
	char hash[] = "SHA256";
	OSSL_PARAM how[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, hash, 0), OSSL_PARAM_construct_end()};
	size_t n = 0;
	EVP_MAC *m = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *c = m ? EVP_MAC_CTX_new(m) : NULL;
	bool good = c && EVP_MAC_init(c, key, KEY_BYTES, how) == 1 && feed_all(c, text, made) &&
	            EVP_MAC_final(c, out, &n, MAC_BYTES) == 1 && n == MAC_BYTES;
	EVP_MAC_CTX_free(c);
	EVP_MAC_free(m);
	if (!good)
		ERR_clear_error(); /* the queue is the host's too */
	return good ? CLV_OK : fail(CLV_E_UNSUPPORTED, "OpenSSL cannot compute a seal (HMAC with SHA-256)");
}

static bool same_seal(const char a[SEAL_TEXT], const char b[SEAL_TEXT])
{
	return CRYPTO_memcmp(a, b, SEAL_TEXT) == 0;
}

#else

static clv_status mac(const uint8_t key[KEY_BYTES], const strbuf *text, const compiled *made, uint8_t out[MAC_BYTES])
{
	(void)key, (void)text, (void)made, (void)out;
	return fail(CLV_E_UNSUPPORTED, "this build has no OpenSSL, and so no seals");
}

static bool same_seal(const char a[SEAL_TEXT], const char b[SEAL_TEXT])
{
	return memcmp(a, b, SEAL_TEXT) == 0;
}

#endif

static clv_status seal_with(const uint8_t key[KEY_BYTES], const plan *p, const artifact_segment *s,
                            const compiled *made, char out[SEAL_TEXT])
{
	strbuf text = STRBUF_INIT;
	uint8_t bytes[MAC_BYTES];
	clv_status st = describe_sealed(p, s, made, &text);
	if (st == CLV_OK)
		st = mac(key, &text, made, bytes);
	strbuf_free(&text);
	if (st == CLV_OK) {
		hex_print(bytes, MAC_BYTES, out);
		out[SEAL_TEXT - 1] = '\0';
	}
	return st;
}

/* A segment that cannot be sealed has no seal: that is no error. */
static clv_status seal_of(bool make, const plan *p, const artifact_segment *s, const compiled *made,
                          char out[SEAL_TEXT])
{
	uint8_t key[KEY_BYTES];
	out[0] = '\0';
	if (!find_key(make, key))
		return CLV_OK;
	clv_status st = seal_with(key, p, s, made, out);
	explicit_bzero(key, sizeof key);
	if (st != CLV_OK)
		out[0] = '\0';
	return st == CLV_E_NOMEM ? st : CLV_OK;
}

clv_status seal_make(const plan *p, const artifact_segment *s, const compiled *made, char out[SEAL_TEXT])
{
	return seal_of(true, p, s, made, out);
}

clv_status seal_check(const plan *p, const artifact_segment *s, const compiled *made, bool *ours)
{
	char want[SEAL_TEXT];
	*ours = false;
	if (!s->seal)
		return CLV_OK;
	TRY(seal_of(false, p, s, made, want));
	*ours = want[0] && same_seal(want, s->seal);
	return CLV_OK;
}
