/* Signs and verifies artifacts with Ed25519.
 * A signed file is the unsigned one with 256 bytes put in behind the digits of the header's check, and a header that is
 * longer by as many:
 *
 *     8 bytes  {"__metadata__":{"cleave.check":"<32 digits>",   …   "cleave.signature":"ed25519 <64 digits> <128 digits>"
 *     length                                                ^ the 256 bytes                key          signature
 *
 * So alignment and all other bytes stay as they were, and both signing again and taking the signature away are plain.
 * What is signed is SHA-512 of the whole file with zeros for the digits of check and signature: the check also covers the
 * signature, and is verified by itself. */
#include "file/signature.h"

#include <string.h>

#include "base/digest.h"
#include "file/artifact_keys.h"
#include "file/safetensors.h"

enum { LENGTH = 8, KEY_BYTES = 32, SIGNATURE_BYTES = 64, BLOCK = SIGNATURE_BLOCK };
enum {
	CHECK_DIGITS = sizeof ARTIFACT_NO_CHECK - 1,
	KEY_DIGITS = 2 * KEY_BYTES,
	SIGNATURE_DIGITS = 2 * SIGNATURE_BYTES
};

static const char start[] = "{\"__metadata__\":{\"" ARTIFACT_CHECK_KEY "\":\"";
static const char block_start[] = ",                                 \"" SIGNATURE_KEY "\":\"ed25519 ";

enum {
	CHECK_AT = LENGTH + sizeof start - 1,
	BLOCK_AT = CHECK_AT + CHECK_DIGITS + 1,
	KEY_AT = BLOCK_AT + sizeof block_start - 1,
	SIGNATURE_AT = KEY_AT + KEY_DIGITS + 1,
	BLOCK_END = SIGNATURE_AT + SIGNATURE_DIGITS + 1
};
_Static_assert(BLOCK_END - BLOCK_AT == BLOCK, "data of a signed file stays aligned");

/* ---- the bytes ---------------------------------------------------------------------------------------------------- */

static bool starts_as_written(const char *data, size_t n)
{
	return n >= BLOCK_AT && memcmp(data + LENGTH, start, sizeof start - 1) == 0 && data[BLOCK_AT - 1] == '"';
}

bool signature_is_there(const void *data, size_t n)
{
	return starts_as_written(data, n) && n >= BLOCK_END &&
	       memcmp((const char *)data + BLOCK_AT, block_start, sizeof block_start - 1) == 0;
}

#ifdef CLEAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

/* OpenSSL leaves its reasons in a queue of the thread, which the program may share. */
static clv_status fail_openssl(const char *what)
{
	ERR_clear_error();
	return fail(CLV_E_UNSUPPORTED, "OpenSSL cannot %s here", what);
}

static clv_status print_fingerprint(const uint8_t key[KEY_BYTES], char out[FINGERPRINT_TEXT])
{
	uint8_t hash[32];
	if (EVP_Digest(key, KEY_BYTES, hash, NULL, EVP_sha256(), NULL) != 1)
		return fail_openssl("compute SHA-256");
	hex_print(hash, sizeof hash, out);
	out[FINGERPRINT_TEXT - 1] = '\0';
	return CLV_OK;
}

static clv_status read_signature(const char *data, uint8_t key[KEY_BYTES], uint8_t signature[SIGNATURE_BYTES])
{
	if (hex_parse(data + KEY_AT, key, KEY_BYTES) && data[SIGNATURE_AT - 1] == ' ' &&
	    hex_parse(data + SIGNATURE_AT, signature, SIGNATURE_BYTES) && data[BLOCK_END - 1] == '"')
		return CLV_OK;
	return fail(CLV_E_PARSE, "the signature is damaged: it is no key of %d and no signature of %d hexadecimal digits",
	            KEY_DIGITS, SIGNATURE_DIGITS);
}

clv_status signature_claimed(const void *data, size_t n, char fingerprint[FINGERPRINT_TEXT])
{
	uint8_t key[KEY_BYTES], signature[SIGNATURE_BYTES];
	(void)n;
	TRY(read_signature(data, key, signature));
	return print_fingerprint(key, fingerprint);
}

/* ---- keys --------------------------------------------------------------------------------------------------------- */

enum { KEY_FILE_MAX = 1 << 16 };
static const char pem_start[] = "-----BEGIN ";

static bool is_pem_text(const char *key)
{
	return strstr(key, pem_start) != NULL;
}

static const char *key_name(const char *key)
{
	return is_pem_text(key) ? "the key" : key;
}

/* A NUL-terminated copy of the text; caller cleans it with key_text_free. */
static clv_status load_key_text(const char *key, char **out)
{
	uint8_t *data;
	size_t n;
	if (is_pem_text(key)) {
		*out = mem_strdup(key, strlen(key));
		return *out ? CLV_OK : fail_nomem();
	}
	TRY(file_read_most(key, KEY_FILE_MAX, &data, &n));
	*out = mem_strdup((const char *)data, n);
	OPENSSL_cleanse(data, n);
	mem_free(data);
	return *out ? CLV_OK : fail_nomem();
}

static void key_text_free(char *text)
{
	OPENSSL_cleanse(text, strlen(text));
	mem_free(text);
}

/* Without it OpenSSL would ask at the terminal. */
static int no_passphrase(char *at, int n, int writing, void *given)
{
	(void)at, (void)n, (void)writing, (void)given;
	return -1;
}

static bool has_block(const char *text, const char *label)
{
	for (const char *at = text; (at = strstr(at, pem_start)); at++)
		if (strncmp(at + sizeof pem_start - 1, label, strlen(label)) == 0)
			return true;
	return false;
}

/* What stands against a text as one key of the kind that is wanted; NULL: nothing. */
static const char *wrong_text(const char *text, bool private)
{
	const char *first = strstr(text, pem_start);
	if (!first)
		return "it has no \"-----BEGIN\" as PEM files have; `openssl genpkey -algorithm ed25519` makes a key";
	if (strstr(first + 1, pem_start))
		return "it has more than one block; each key needs a file of its own";
	if (has_block(text, "ENCRYPTED") || strstr(text, "Proc-Type: 4,ENCRYPTED"))
		return "it is encrypted; `openssl pkey -in KEY -out PLAIN` takes the passphrase off";
	if (private && !has_block(text, "PRIVATE KEY") && strstr(text, "PUBLIC KEY-----"))
		return "it is a public key; the private one signs";
	if (!private && !has_block(text, "PUBLIC KEY") && strstr(text, "PRIVATE KEY-----"))
		return "it is a private key, which must stay with the signer; `openssl pkey -in KEY -pubout` writes the public "
			   "one";
	return NULL;
}

static clv_status parse_key(const char *text, const char *name, bool private, EVP_PKEY **out)
{
	const char *wrong = wrong_text(text, private);
	if (wrong)
		return fail(CLV_E_INVALID, "%s cannot be used: %s", name, wrong);
	BIO *bio = BIO_new_mem_buf(text, -1);
	TRY_MEM(bio);
	EVP_PKEY *key = private ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL)
	                        : PEM_read_bio_PUBKEY(bio, NULL, no_passphrase, NULL);
	BIO_free(bio);
	ERR_clear_error();
	if (!key)
		return fail(CLV_E_INVALID, "%s cannot be used: it is no %s key that OpenSSL reads", name,
		            private ? "private" : "public");
	if (EVP_PKEY_id(key) != EVP_PKEY_ED25519) {
		EVP_PKEY_free(key);
		return fail(CLV_E_INVALID,
		            "%s cannot be used: it is a key of another algorithm; signatures are made with Ed25519 keys, "
		            "`openssl genpkey -algorithm ed25519` makes one",
		            name);
	}
	*out = key;
	return CLV_OK;
}

static clv_status load_key(const char *key, bool private, EVP_PKEY **out)
{
	char *text;
	TRY(load_key_text(key, &text));
	clv_status st = parse_key(text, key_name(key), private, out);
	key_text_free(text);
	return st;
}

static clv_status raw_key(const EVP_PKEY *key, uint8_t out[KEY_BYTES])
{
	size_t n = KEY_BYTES;
	return EVP_PKEY_get_raw_public_key(key, out, &n) == 1 && n == KEY_BYTES ? CLV_OK
	                                                                        : fail_openssl("use an Ed25519 key");
}

clv_status signature_fingerprint(const char *key, char out[FINGERPRINT_TEXT])
{
	EVP_PKEY *read;
	uint8_t raw[KEY_BYTES];
	char *text;
	TRY(load_key_text(key, &text));
	clv_status st = parse_key(text, key_name(key), has_block(text, "PRIVATE KEY"), &read);
	key_text_free(text);
	TRY(st);
	st = raw_key(read, raw);
	EVP_PKEY_free(read);
	return st == CLV_OK ? print_fingerprint(raw, out) : st;
}

static clv_status generate_key(EVP_PKEY **out)
{
	EVP_PKEY_CTX *c = EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, NULL);
	*out = NULL;
	bool ok = c && EVP_PKEY_keygen_init(c) == 1 && EVP_PKEY_keygen(c, out) == 1;
	EVP_PKEY_CTX_free(c);
	return ok ? CLV_OK : fail_openssl("make an Ed25519 key");
}

static clv_status save_key(EVP_PKEY *key, bool private, const char *path)
{
	char *text;
	BIO *bio = BIO_new(BIO_s_mem());
	TRY_MEM(bio);
	bool ok = private ? PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1
	                  : PEM_write_bio_PUBKEY(bio, key) == 1;
	long n = BIO_get_mem_data(bio, &text);
	clv_status st = ok ? file_create(path, text, (size_t)n, private) : fail_openssl("write a key");
	OPENSSL_cleanse(text, (size_t)n);
	BIO_free(bio);
	return st;
}

/* The public one first: a private key is there only with it. */
static clv_status save_pair(EVP_PKEY *key, const char *path, const char *public_path)
{
	TRY(save_key(key, false, public_path));
	clv_status st = save_key(key, true, path);
	if (st != CLV_OK)
		unlink(public_path);
	return st;
}

clv_status signature_new_key(const char *path)
{
	EVP_PKEY *key;
	strbuf b = STRBUF_INIT;
	char *public_path;
	strbuf_printf(&b, "%s.pub", path);
	TRY(strbuf_take(&b, &public_path));
	clv_status st = generate_key(&key);
	if (st == CLV_OK)
		st = save_pair(key, path, public_path);
	EVP_PKEY_free(key);
	mem_free(public_path);
	return st;
}

/* ---- what is signed ------------------------------------------------------------------------------------------------ */

static const char domain[] = "cleave-signature-1"; /* its NUL is signed too */
enum { MESSAGE = sizeof domain + 64 };

static bool hash_file(EVP_MD_CTX *c, const char *head, size_t head_n, const void *rest, size_t rest_n)
{
	static const char zeros[] = ARTIFACT_NO_CHECK ARTIFACT_NO_CHECK ARTIFACT_NO_CHECK ARTIFACT_NO_CHECK;
	_Static_assert(sizeof zeros - 1 == SIGNATURE_DIGITS, "four checks are as long as a signature");
	const size_t check_end = CHECK_AT + CHECK_DIGITS, end = SIGNATURE_AT + SIGNATURE_DIGITS;
	return EVP_DigestInit_ex(c, EVP_sha512(), NULL) == 1 && EVP_DigestUpdate(c, head, CHECK_AT) == 1 &&
	       EVP_DigestUpdate(c, zeros, CHECK_DIGITS) == 1 &&
	       EVP_DigestUpdate(c, head + check_end, SIGNATURE_AT - check_end) == 1 &&
	       EVP_DigestUpdate(c, zeros, SIGNATURE_DIGITS) == 1 && EVP_DigestUpdate(c, head + end, head_n - end) == 1 &&
	       EVP_DigestUpdate(c, rest, rest_n) == 1;
}

/* Of a file in two pieces; the first has the signature. */
static clv_status make_message(const char *head, size_t head_n, const void *rest, size_t rest_n, uint8_t out[MESSAGE])
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	TRY_MEM(c);
	memcpy(out, domain, sizeof domain);
	bool ok = hash_file(c, head, head_n, rest, rest_n) && EVP_DigestFinal_ex(c, out + sizeof domain, NULL) == 1;
	EVP_MD_CTX_free(c);
	return ok ? CLV_OK : fail_openssl("compute SHA-512");
}

/* ---- verifying ----------------------------------------------------------------------------------------------------- */

/* The trusted key with these bytes, or NULL. Every one is read: one that is no key is never passed over. */
static clv_status find_key(const char *const *keys, uint32_t nkeys, const uint8_t wanted[KEY_BYTES], EVP_PKEY **out)
{
	clv_status st = CLV_OK;
	*out = NULL;
	for (uint32_t i = 0; i < nkeys && st == CLV_OK; i++) {
		EVP_PKEY *key;
		uint8_t raw[KEY_BYTES];
		st = load_key(keys[i], false, &key);
		if (st != CLV_OK)
			break;
		st = raw_key(key, raw);
		if (st == CLV_OK && !*out && memcmp(raw, wanted, KEY_BYTES) == 0)
			*out = key;
		else
			EVP_PKEY_free(key);
	}
	if (st != CLV_OK) {
		EVP_PKEY_free(*out);
		*out = NULL;
	}
	return st;
}

/* "0f3a…", "0f3a… or 2 others". */
static clv_status name_trusted(const char *const *keys, uint32_t nkeys, char out[FINGERPRINT_TEXT + 32])
{
	TRY(signature_fingerprint(keys[0], out));
	if (nkeys > 1)
		snprintf(out + FINGERPRINT_TEXT - 1, 32, " or %u other%s", nkeys - 1, nkeys == 2 ? "" : "s");
	return CLV_OK;
}

static clv_status not_signed(const char *const *keys, uint32_t nkeys)
{
	static const uint8_t none[KEY_BYTES];
	char trusted[FINGERPRINT_TEXT + 32];
	EVP_PKEY *key;
	TRY(find_key(keys, nkeys, none, &key)); /* what is wrong with a key comes first */
	EVP_PKEY_free(key);
	TRY(name_trusted(keys, nkeys, trusted));
	return fail(CLV_E_SIGNATURE, "the file is not signed; it has to be, by key %s", trusted);
}

static clv_status signed_by_another(const char *claimed, const char *const *keys, uint32_t nkeys)
{
	char trusted[FINGERPRINT_TEXT + 32];
	TRY(name_trusted(keys, nkeys, trusted));
	return fail(CLV_E_SIGNATURE,
	            "the file says that it was signed by key %s, which is not trusted; it has to be key %s", claimed,
	            trusted);
}

static clv_status verify_with(EVP_PKEY *key, const uint8_t *message, const uint8_t *signature, bool *same)
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	TRY_MEM(c);
	bool ready = EVP_DigestVerifyInit(c, NULL, NULL, NULL, key) == 1;
	*same = ready && EVP_DigestVerify(c, signature, SIGNATURE_BYTES, message, MESSAGE) == 1;
	EVP_MD_CTX_free(c);
	ERR_clear_error();
	return ready ? CLV_OK : fail_openssl("verify an Ed25519 signature");
}

clv_status signature_verify(const void *data, size_t n, const char *const *keys, uint32_t nkeys,
                            char fingerprint[FINGERPRINT_TEXT])
{
	uint8_t raw[KEY_BYTES], signature[SIGNATURE_BYTES], message[MESSAGE];
	EVP_PKEY *key;
	bool same = false;
	if (!signature_is_there(data, n))
		return not_signed(keys, nkeys);
	TRY(read_signature(data, raw, signature));
	TRY(print_fingerprint(raw, fingerprint));
	TRY(find_key(keys, nkeys, raw, &key));
	if (!key)
		return signed_by_another(fingerprint, keys, nkeys);
	clv_status st = make_message(data, n, NULL, 0, message);
	if (st == CLV_OK)
		st = verify_with(key, message, signature, &same);
	EVP_PKEY_free(key);
	TRY(st);
	return same ? CLV_OK : fail(CLV_E_SIGNATURE, "the file was changed after key %s signed it", fingerprint);
}

/* ---- signing ------------------------------------------------------------------------------------------------------- */

static clv_status sign_with(EVP_PKEY *key, const uint8_t *message, uint8_t out[SIGNATURE_BYTES])
{
	EVP_MD_CTX *c = EVP_MD_CTX_new();
	size_t n = SIGNATURE_BYTES;
	TRY_MEM(c);
	bool ok = EVP_DigestSignInit(c, NULL, NULL, NULL, key) == 1 && EVP_DigestSign(c, out, &n, message, MESSAGE) == 1 &&
	          n == SIGNATURE_BYTES;
	EVP_MD_CTX_free(c);
	return ok ? CLV_OK : fail_openssl("sign with an Ed25519 key");
}

/* The start of the file with room for the signature; the length of the header says so. */
static clv_status make_signature_room(const char *data, size_t n, strbuf *head, size_t *rest)
{
	uint64_t length;
	char block[BLOCK];
	if (!starts_as_written(data, n))
		return fail(CLV_E_PARSE, "the header does not start as Cleave writes it: save the model again, then sign it");
	bool again = signature_is_there(data, n);
	memcpy(&length, data, sizeof length);
	length += again ? 0 : BLOCK;
	if (length > ST_HEADER_MAX)
		return fail(CLV_E_OVERFLOW, "with a signature the header is over the format's limit of %d bytes",
		            ST_HEADER_MAX);
	memset(block, '0', sizeof block);
	memcpy(block, block_start, sizeof block_start - 1);
	block[SIGNATURE_AT - 1 - BLOCK_AT] = ' ';
	block[BLOCK - 1] = '"';
	strbuf_add(head, (const char *)&length, sizeof length);
	strbuf_add(head, data + LENGTH, BLOCK_AT - LENGTH);
	strbuf_add(head, block, sizeof block);
	size_t end = LENGTH + (size_t)length - (again ? 0 : BLOCK), from = again ? BLOCK_END : BLOCK_AT;
	strbuf_add(head, data + from, end - from);
	*rest = end;
	return head->failed ? fail_nomem() : CLV_OK;
}

static clv_status sign_head(EVP_PKEY *key, strbuf *head, const char *rest, size_t rest_n)
{
	uint8_t raw[KEY_BYTES], signature[SIGNATURE_BYTES], message[MESSAGE];
	TRY(raw_key(key, raw));
	hex_print(raw, KEY_BYTES, head->at + KEY_AT);
	TRY(make_message(head->at, head->n, rest, rest_n, message));
	TRY(sign_with(key, message, signature));
	hex_print(signature, SIGNATURE_BYTES, head->at + SIGNATURE_AT);
	return artifact_put_check(head->at, head->n);
}

clv_status signature_make(const void *data, size_t n, const char *key, strbuf *head, size_t *rest)
{
	EVP_PKEY *read;
	TRY(load_key(key, true, &read));
	clv_status st = make_signature_room(data, n, head, rest);
	if (st == CLV_OK)
		st = sign_head(read, head, (const char *)data + *rest, n - *rest);
	EVP_PKEY_free(read);
	return st;
}

#else

static clv_status no_openssl(void)
{
	return fail(CLV_E_UNSUPPORTED, "this Cleave was built without OpenSSL, which signs and verifies files");
}

clv_status signature_claimed(const void *data, size_t n, char fingerprint[FINGERPRINT_TEXT])
{
	(void)data, (void)n;
	strcpy(fingerprint, "unknown"); /* a fingerprint is a hash of OpenSSL's */
	return CLV_OK;
}

clv_status signature_verify(const void *data, size_t n, const char *const *keys, uint32_t nkeys,
                            char fingerprint[FINGERPRINT_TEXT])
{
	(void)data, (void)n, (void)keys, (void)nkeys, (void)fingerprint;
	return no_openssl();
}

clv_status signature_make(const void *data, size_t n, const char *key, strbuf *head, size_t *rest)
{
	(void)data, (void)n, (void)key, (void)head, (void)rest;
	return no_openssl();
}

clv_status signature_fingerprint(const char *key, char out[FINGERPRINT_TEXT])
{
	(void)key, (void)out;
	return no_openssl();
}

clv_status signature_new_key(const char *path)
{
	(void)path;
	return no_openssl();
}

#endif
