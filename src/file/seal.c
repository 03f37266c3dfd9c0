/* Seals: how a user recognizes what is their own: files (artifact_seal.c) and compiled code (segment/seal.c).
 *
 * A seal is a message authentication code (HMAC-SHA256) under a key in the user's state folder. Without that key nobody can
 * make one. Each kind of seal starts with a text of its own, so that none passes for another. Without OpenSSL there
 * are no seals. */
#define _GNU_SOURCE /* getrandom, explicit_bzero */
#include "file/seal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/mem.h"
#include "file/folders.h"

#ifdef CLEAVE_OPENSSL
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#endif

enum { KEY_BYTES = 32, MAC_BYTES = 32 };
_Static_assert(SEAL_TEXT == 2 * MAC_BYTES + 1, "a seal in hexadecimal digits");

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
	char temporary[64];
	uint64_t chance;
	if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance)
		return;
	snprintf(temporary, sizeof temporary, "seal.key.%016llx.tmp", (unsigned long long)chance);
	int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	bool good = write(fd, key, KEY_BYTES) == KEY_BYTES && fsync(fd) == 0;
	good = close(fd) == 0 && good;
	if (good)
		(void)!linkat(dir, temporary, dir, KEY_NAME, 0);
	unlinkat(dir, temporary, 0);
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

#ifdef CLEAVE_OPENSSL

static bool feed_all(EVP_MAC_CTX *c, const seal_piece *pieces, uint32_t n)
{
	bool good = true;
	for (uint32_t i = 0; i < n && good; i++)
		good = pieces[i].n == 0 || EVP_MAC_update(c, pieces[i].at, pieces[i].n) == 1;
	return good;
}

static bool mac(const uint8_t key[KEY_BYTES], const seal_piece *pieces, uint32_t npieces, uint8_t out[MAC_BYTES])
{
	char hash[] = "SHA256";
	OSSL_PARAM how[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, hash, 0), OSSL_PARAM_construct_end()};
	size_t n = 0;
	EVP_MAC *m = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *c = m ? EVP_MAC_CTX_new(m) : NULL;
	bool good = c && EVP_MAC_init(c, key, KEY_BYTES, how) == 1 && feed_all(c, pieces, npieces) &&
	            EVP_MAC_final(c, out, &n, MAC_BYTES) == 1 && n == MAC_BYTES;
	EVP_MAC_CTX_free(c);
	EVP_MAC_free(m);
	if (!good)
		ERR_clear_error(); /* the queue is the host's too */
	return good;
}

bool seal_same(const char *a, const char *b, size_t n)
{
	return CRYPTO_memcmp(a, b, n) == 0;
}

#else

static bool mac(const uint8_t key[KEY_BYTES], const seal_piece *pieces, uint32_t npieces, uint8_t out[MAC_BYTES])
{
	(void)key, (void)pieces, (void)npieces, (void)out;
	return false;
}

bool seal_same(const char *a, const char *b, size_t n)
{
	return memcmp(a, b, n) == 0;
}

#endif

bool seal_compute(bool make, const seal_piece *pieces, uint32_t n, char out[SEAL_TEXT])
{
	uint8_t key[KEY_BYTES], bytes[MAC_BYTES];
	bool made = find_key(make, key) && mac(key, pieces, n, bytes);
	explicit_bzero(key, sizeof key);
	if (made)
		hex_print(bytes, MAC_BYTES, out);
	out[made ? SEAL_TEXT - 1 : 0] = '\0';
	return made;
}
