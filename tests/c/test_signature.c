/* Signatures of files. The keys are those of the first examples in RFC 8032, which everybody knows. */
#include "artifacts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "file/signature.h"

#define PEM(kind, base64) "-----BEGIN " kind " KEY-----\n" base64 "\n-----END " kind " KEY-----\n"

static const char my_key[] = PEM("PRIVATE", "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g");
static const char my_pub[] = PEM("PUBLIC", "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
static const char my_name[] = "21fe31dfa154a261626bf854046fd2271b7bed4b6abe45aa58877ef47f9721b9";
static const char other_key[] = PEM("PRIVATE", "MC4CAQAwBQYDK2VwBCIEIEzNCJso/5banbbDRuwRTg9bijGfNaumJNqM9u1PuKb7");
static const char other_pub[] = PEM("PUBLIC", "MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=");
static const char other_name[] = "39f713d0a644253f04529421b9f51b9b08979d08295959c4f3990ee617f5139f";
static const char x25519_key[] = PEM("PRIVATE", "MC4CAQAwBQYDK2VuBCIEIGA+TWoLFOUoF4WhvDG8qByLzOqdBU9KepAdn1hqKAl6");
static const char x25519_pub[] = PEM("PUBLIC", "MCowBQYDK2VuAyEAFtdQqY39EmydVli1eF/jc8D51RmKhGs8UWE4M6KGaXs=");
static const char encrypted[] =
	PEM("ENCRYPTED PRIVATE", "MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjMwjbrYs0fjgICCAAw\n"
                             "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEPdXLLK5cXrDCrbYd3P48WoEQNr5\n"
                             "0OxRu0s+J5Vi8R6zlaosUUitzhXRJAbY3/QuGZX7tG7fsYcr+ezlL4hdV5r6F+3R\n"
                             "G0RABO1ICTFHlhEG0HY=");

enum { BLOCK = 256, BLOCK_AT = 74, KEY_AT = 136, SIGNATURE_AT = 201, BLOCK_END = 330 };

static clv_status open_trusted(image i, const char *key, artifact **out)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	o.trusted_keys = &key;
	o.ntrusted_keys = 1;
	return clv_artifact_parse(i.at, i.n, &o, out);
}

static clv_status try_trusted(image i, const char *key)
{
	artifact *a = NULL;
	clv_status st = open_trusted(i, key, &a);
	artifact_free(a);
	return st;
}

static char folder[] = "/tmp/cleave-signature-XXXXXX", path[64], key_path[64];

static int make_folder(void **state)
{
	(void)state;
	new_folder(folder);
	snprintf(path, sizeof path, "%s/model.clv", folder);
	snprintf(key_path, sizeof key_path, "%s/key", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	count_files(folder, true);
	return 0;
}

static void put_file(const char *at, const void *data, size_t n)
{
	FILE *f = fopen(at, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	fclose(f);
}

static void save_sample(void)
{
	artifact *a = sample();
	OK(artifact_save(a, path));
	artifact_free(a);
}

static image signed_sample(const char *key)
{
	save_sample();
	OK(clv_artifact_sign(path, key, NULL, NULL));
	return read_image(path);
}

/* ---- what a signature is ------------------------------------------------------------------------------------------- */

static void a_signed_file_is_the_same_file_with_256_bytes_more(void **state)
{
	(void)state;
	image plain = written(sample()), i = signed_sample(my_key);
	uint64_t before, after;
	memcpy(&before, plain.at, 8);
	memcpy(&after, i.at, 8);
	assert_int_equal(after, before + BLOCK);
	assert_int_equal(i.n, plain.n + BLOCK);
	assert_memory_equal(i.at + 8, plain.at + 8, 32); /* then 32 digits of the check, which are others */
	assert_memory_equal(i.at + BLOCK_AT, ",    ", 5);
	assert_memory_equal(i.at + KEY_AT - 8, "ed25519 ", 8);
	assert_memory_equal(i.at + BLOCK_END, plain.at + BLOCK_AT, plain.n - BLOCK_AT);
	artifact *a = opened(i);
	assert_string_equal(clv_artifact_signer(a), my_name);
	assert_false(clv_artifact_signature_verified(a)); /* nobody looked */
	OK(artifact_check_data(a));
	artifact_free(a);
	image_free(&plain);
	image_free(&i);
}

static void a_trusted_key_opens_its_files(void **state)
{
	(void)state;
	const char *keys[] = {other_pub, my_pub};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	image i = signed_sample(my_key);
	artifact *a;
	OK(open_trusted(i, my_pub, &a));
	assert_true(clv_artifact_signature_verified(a));
	assert_string_equal(clv_artifact_signer(a), my_name);
	artifact_free(a);
	o.trusted_keys = keys;
	o.ntrusted_keys = 2;
	OK(clv_artifact_open(path, &o, &a));
	assert_true(clv_artifact_signature_verified(a));
	artifact_free(a);
	image_free(&i);
}

/* One bit of each byte, which is another one for its neighbours; of the bytes at fixed places two. */
static void a_change_of_any_byte_of_a_signed_file_is_refused(void **state)
{
	(void)state;
	image i = signed_sample(my_key);
	for (size_t k = 0; k < i.n + BLOCK_END; k++) {
		size_t at = k < i.n ? k : k - i.n;
		uint8_t bit = (uint8_t)(1 << (k < i.n ? at % 8 : (at + 5) % 8));
		i.at[at] ^= bit;
		clv_status st = try_trusted(i, my_pub);
		i.at[at] ^= bit;
		if (st != CLV_E_SIGNATURE && st != CLV_E_PARSE)
			fail_msg("bit %u of byte %zu: %d %s", bit, at, st, status_message());
	}
	OK(try_trusted(i, my_pub));
	image_free(&i);
}

/* With a new check, so that nothing but the signature speaks against it. */
static void a_header_that_is_made_consistent_again_is_refused(void **state)
{
	(void)state;
	image i = signed_sample(my_key);
	uint64_t n;
	memcpy(&n, i.at, 8);
	for (size_t at = BLOCK_END; at < n + 8; at += 7) {
		image other = image_of(i.at, i.n);
		other.at[at] ^= 1;
		OK(artifact_put_check((char *)other.at, n + 8));
		FAILS(try_trusted(other, my_pub), CLV_E_SIGNATURE, "changed after key 21fe31df");
		image_free(&other);
	}
	image_free(&i);
}

static void bytes_more_or_less_are_refused(void **state)
{
	(void)state;
	image i = signed_sample(my_key), longer = {calloc(1, i.n + 64), i.n + 1};
	char name[FINGERPRINT_TEXT];
	memcpy(longer.at, i.at, i.n);
	FAILS(signature_verify(longer.at, longer.n, (const char *[]){my_pub}, 1, name), CLV_E_SIGNATURE,
	      "changed after key");
	for (size_t n = 0; n < i.n; n += n < BLOCK_END ? 1 : 61) {
		image part = image_of(i.at, n);
		assert_int_equal(try_trusted(part, my_pub), CLV_E_SIGNATURE);
		image_free(&part);
	}
	image_free(&longer);
	image_free(&i);
}

static void a_file_of_nobody_or_of_another_is_refused_with_the_names_of_both(void **state)
{
	(void)state;
	const char *keys[] = {my_pub, other_pub, my_pub};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	image plain = written(sample()), i = signed_sample(other_key);
	artifact *a;
	char text[512];
	snprintf(text, sizeof text, "the file is not signed; it has to be, by key %s", my_name);
	FAILS(try_trusted(plain, my_pub), CLV_E_SIGNATURE, text);
	snprintf(text, sizeof text, "the file says that it was signed by key %s, which is not trusted; it has to be key %s",
	         other_name, my_name);
	FAILS(try_trusted(i, my_pub), CLV_E_SIGNATURE, text);
	o.trusted_keys = keys;
	o.ntrusted_keys = 3;
	FAILS(clv_artifact_parse(plain.at, plain.n, &o, &a), CLV_E_SIGNATURE, "by key 21fe31dfa154");
	FAILS(clv_artifact_parse(plain.at, plain.n, &o, &a), CLV_E_SIGNATURE, " or 2 others");
	save_sample();
	FAILS(clv_artifact_open(path, &o, &a), CLV_E_SIGNATURE, path);
	image_free(&plain);
	image_free(&i);
}

/* The name of a trusted key in the place of one's own. */
static void a_borrowed_name_is_no_signature(void **state)
{
	(void)state;
	image mine = signed_sample(my_key), i = signed_sample(other_key);
	uint64_t n;
	memcpy(&n, i.at, 8);
	memcpy(i.at + KEY_AT, mine.at + KEY_AT, 64);
	OK(artifact_put_check((char *)i.at, n + 8));
	FAILS(try_trusted(i, my_pub), CLV_E_SIGNATURE, "changed after key 21fe31df");
	memcpy(i.at + SIGNATURE_AT, mine.at + SIGNATURE_AT, 128); /* the same file, so now it is the real one */
	OK(artifact_put_check((char *)i.at, n + 8));
	OK(try_trusted(i, my_pub));
	image_free(&mine);
	image_free(&i);
}

static void a_signature_in_other_letters_is_none(void **state)
{
	(void)state;
	static const struct {
		size_t at;
		char c;
	} cases[] = {{KEY_AT, 'g'},       {KEY_AT, 'D'},           {SIGNATURE_AT, 'F'},
	             {SIGNATURE_AT, ' '}, {SIGNATURE_AT - 1, '0'}, {BLOCK_END - 1, '0'}};
	image i = signed_sample(my_key);
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		image other = image_of(i.at, i.n);
		other.at[cases[k].at] = (uint8_t)cases[k].c;
		FAILS(try_image(other), CLV_E_PARSE, "the signature is damaged");
		FAILS(try_trusted(other, my_pub), CLV_E_PARSE, "the signature is damaged");
		image_free(&other);
	}
	image_free(&i);
}

static void a_signature_elsewhere_in_the_header_is_refused(void **state)
{
	(void)state;
	image plain = written(sample());
	opened_up o = open_up(plain);
	json_object_set_new(metadata_of(&o), SIGNATURE_KEY, json_string("ed25519 00"));
	image i = closed_again(&o);
	FAILS(try_image(i), CLV_E_PARSE, "not where signatures are");
	FAILS(try_trusted(i, my_pub), CLV_E_SIGNATURE, "is not signed");
	image_free(&i);
	image_free(&plain);
}

/* ---- signing ------------------------------------------------------------------------------------------------------- */

static void signing_again_replaces_the_signature(void **state)
{
	(void)state;
	image first = signed_sample(my_key);
	OK(clv_artifact_sign(path, other_key, NULL, NULL));
	image second = read_image(path);
	assert_int_equal(second.n, first.n);
	OK(try_trusted(second, other_pub));
	FAILS(try_trusted(second, my_pub), CLV_E_SIGNATURE, "is not trusted");
	OK(clv_artifact_sign(path, my_key, NULL, NULL));
	image third = read_image(path);
	assert_true(same_image(first, third)); /* Ed25519 draws nothing */
	image_free(&first);
	image_free(&second);
	image_free(&third);
}

static void what_is_signed_goes_elsewhere_where_that_is_asked_for(void **state)
{
	(void)state;
	char output[80];
	snprintf(output, sizeof output, "%s/signed.clv", folder);
	save_sample();
	image before = read_image(path);
	OK(clv_artifact_sign(path, my_key, NULL, output));
	image after = read_image(path), i = read_image(output);
	assert_true(same_image(before, after));
	OK(try_trusted(i, my_pub));
	unlink(output);
	image_free(&before);
	image_free(&after);
	image_free(&i);
}

static void damaged_files_and_those_of_strangers_are_not_signed(void **state)
{
	(void)state;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	const char *keys[] = {other_pub};
	image i = written(sample());
	i.at[i.n - 1] ^= 1;
	put_file(path, i.at, i.n);
	FAILS(clv_artifact_sign(path, my_key, NULL, NULL), CLV_E_PARSE, "was changed or damaged");
	image after = read_image(path);
	assert_true(same_image(i, after));
	o.trusted_keys = keys;
	o.ntrusted_keys = 1;
	save_sample();
	FAILS(clv_artifact_sign(path, my_key, &o, NULL), CLV_E_SIGNATURE, "is not signed");
	image_free(&i);
	image_free(&after);
}

static void a_write_that_fails_leaves_the_file_as_it_was(void **state)
{
	(void)state;
	save_sample();
	image before = read_image(path);
	for (uint64_t n = 1;; n++) {
		disk_fault_after(n, ENOSPC);
		clv_status st = clv_artifact_sign(path, my_key, NULL, NULL);
		bool waits = disk_fault_waits();
		disk_fault_after(0, 0);
		if (st == CLV_OK) /* the last step is after the file has its name */
			break;
		assert_false(waits);
		assert_int_equal(st, CLV_E_IO);
		image after = read_image(path);
		assert_true(same_image(before, after));
		image_free(&after);
	}
	image i = read_image(path);
	OK(try_trusted(i, my_pub));
	image_free(&before);
	image_free(&i);
}

/* ---- keys ---------------------------------------------------------------------------------------------------------- */

static void keys_are_texts_or_files(void **state)
{
	(void)state;
	image i = signed_sample(my_key);
	char *text;
	put_file(key_path, my_pub, sizeof my_pub - 1);
	OK(try_trusted(i, key_path));
	OK(clv_key_fingerprint(key_path, &text));
	assert_string_equal(text, my_name);
	clv_free(text);
	OK(clv_key_fingerprint(my_key, &text)); /* a private key has the fingerprint of its public one */
	assert_string_equal(text, my_name);
	clv_free(text);
	image_free(&i);
}

static void what_is_no_key_is_refused_and_says_why(void **state)
{
	(void)state;
	char two[2 * sizeof my_pub], huge_path[80], fifo[80];
	image i = signed_sample(my_key);
	snprintf(two, sizeof two, "%s%s", my_pub, other_pub);
	snprintf(huge_path, sizeof huge_path, "%s/huge", folder);
	snprintf(fifo, sizeof fifo, "%s/fifo", folder);
	const struct {
		const char *key;
		clv_status st;
		const char *why;
	} cases[] = {
		{my_key, CLV_E_INVALID, "the key cannot be used: it is a private key"},
		{x25519_pub, CLV_E_INVALID, "a key of another algorithm"},
		{x25519_key, CLV_E_INVALID, "it is a private key"},
		{two, CLV_E_INVALID, "more than one block"},
		{PEM("PUBLIC", "MCowBQYDK2Vw"), CLV_E_INVALID, "no public key that OpenSSL reads"},
		{PEM("PUBLIC", ""), CLV_E_INVALID, "no public key that OpenSSL reads"},
		{"-----BEGIN ", CLV_E_INVALID, "no public key that OpenSSL reads"},
		{"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", CLV_E_INVALID, "no public key"},
		{"", CLV_E_IO, "cannot open"},
		{"/nowhere/key", CLV_E_IO, "cannot open /nowhere/key"},
		{folder, CLV_E_IO, "no regular file"},
		{fifo, CLV_E_IO, "no regular file"},
		{"/dev/zero", CLV_E_IO, "no regular file"},
		{huge_path, CLV_E_IO, "65536 at most"},
		{path, CLV_E_INVALID, "no \"-----BEGIN\""},
	};
	assert_int_equal(mkfifo(fifo, 0600), 0);
	put_file(huge_path, "", 0);
	assert_int_equal(truncate(huge_path, (off_t)1 << 40), 0);
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
		FAILS(try_trusted(i, cases[k].key), cases[k].st, cases[k].why);
	FAILS(clv_artifact_sign(path, my_pub, NULL, NULL), CLV_E_INVALID, "it is a public key");
	FAILS(clv_artifact_sign(path, encrypted, NULL, NULL), CLV_E_INVALID, "it is encrypted");
	FAILS(clv_artifact_sign(path, x25519_key, NULL, NULL), CLV_E_INVALID, "a key of another algorithm");
	image after = read_image(path);
	assert_true(same_image(i, after));
	unlink(fifo);
	unlink(huge_path);
	image_free(&after);
	image_free(&i);
}

/* A list with a bad key is refused, wherever it is in the list, and also where another key would do. */
static void a_bad_key_among_good_ones_is_not_passed_over(void **state)
{
	(void)state;
	const char *keys[] = {my_pub, "/nowhere/key"}, *none[] = {my_pub, NULL};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	image i = signed_sample(my_key), plain = written(sample());
	artifact *a;
	o.trusted_keys = keys;
	o.ntrusted_keys = 2;
	FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_IO, "/nowhere/key");
	FAILS(clv_artifact_parse(plain.at, plain.n, &o, &a), CLV_E_IO, "/nowhere/key");
	o.trusted_keys = none;
	FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_INVALID, "trusted_keys[1] is NULL");
	o.ntrusted_keys = 0;
	FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_INVALID, "trusted_keys has no key");
	o.trusted_keys = NULL;
	o.ntrusted_keys = 1;
	FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_INVALID, "trusted_keys is NULL");
	image_free(&i);
	image_free(&plain);
}

static unsigned mode_of(const char *at)
{
	struct stat info;
	assert_int_equal(stat(at, &info), 0);
	return info.st_mode & 0777;
}

static void a_new_key_is_its_owners_alone_and_replaces_nothing(void **state)
{
	(void)state;
	char pub[80], private[80];
	snprintf(private, sizeof private, "%s/new.key", folder);
	snprintf(pub, sizeof pub, "%s/new.key.pub", folder);
	mode_t mask = umask(0);
	OK(clv_key_new(private));
	umask(mask);
	assert_int_equal(mode_of(private), 0600);
	assert_int_equal(mode_of(pub), 0666);
	image i = signed_sample(private), before = read_image(private), pub_before = read_image(pub);
	OK(try_trusted(i, pub));
	FAILS(clv_key_new(private), CLV_E_IO, "exists already");
	unlink(pub);
	FAILS(clv_key_new(private), CLV_E_IO, "exists already");
	assert_int_equal(access(pub, F_OK), -1); /* no public key of a private one that nobody has */
	image after = read_image(private);
	assert_true(same_image(before, after));
	unlink(private);
	OK(clv_key_new(private));
	image other = read_image(pub);
	assert_false(same_image(other, pub_before));
	FAILS(try_trusted(i, pub), CLV_E_SIGNATURE, "is not trusted");
	unlink(private);
	unlink(pub);
	for (uint64_t n = 1; n <= 6; n++) { /* open, write and flush, twice */
		disk_fault_after(n, ENOSPC);
		clv_status st = clv_key_new(private);
		disk_fault_after(0, 0);
		assert_int_equal(st, CLV_E_IO);
		assert_int_equal(access(private, F_OK), -1);
		assert_int_equal(access(pub, F_OK), -1);
	}
	FAILS(clv_key_new("/nowhere/key"), CLV_E_IO, "cannot write /nowhere/key");
	image_free(&i);
	image_free(&before);
	image_free(&pub_before);
	image_free(&after);
	image_free(&other);
}

/* ---- afterwards ---------------------------------------------------------------------------------------------------- */

static void a_file_that_changes_in_place_after_it_was_verified_changes_nothing(void **state)
{
	(void)state;
	const char *keys[] = {my_pub};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	image i = signed_sample(my_key);
	artifact *a;
	o.trusted_keys = keys;
	o.ntrusted_keys = 1;
	OK(clv_artifact_open(path, &o, &a));
	memset(i.at + i.n - 16, 0x55, 16);
	int fd = open(path, O_WRONLY); /* the same inode */
	assert_int_equal(pwrite(fd, i.at, i.n, 0), i.n);
	OK(artifact_check_data(a));
	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	OK(artifact_check_data(a));
	artifact_free(a);
	image_free(&i);
}

static void what_is_made_of_a_signed_file_is_not_signed(void **state)
{
	(void)state;
	image i = signed_sample(my_key);
	artifact *a;
	OK(open_trusted(i, my_pub, &a));
	artifact_range whole = {0, a->plans.at[0].p->nodes.n, NONE};
	artifact *copy = taken_from(a, "all", &whole);
	assert_false(artifact_signature_verified(copy));
	image again = written(copy), plain = written(sample());
	assert_true(same_image(again, plain));
	artifact_free(a);
	image_free(&i);
	image_free(&again);
	image_free(&plain);
}

/* A build without OpenSSL refuses instead of opening. */
static void without_openssl_nothing_is_trusted(void **state)
{
	(void)state;
	image plain = written(sample());
	FAILS(try_trusted(plain, my_pub), CLV_E_UNSUPPORTED, "without OpenSSL");
	image_free(&plain);
}

int main(void)
{
	static const struct CMUnitTest none[] = {cmocka_unit_test(without_openssl_nothing_is_trusted)};
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_signed_file_is_the_same_file_with_256_bytes_more),
		cmocka_unit_test(a_trusted_key_opens_its_files),
		cmocka_unit_test(a_change_of_any_byte_of_a_signed_file_is_refused),
		cmocka_unit_test(a_header_that_is_made_consistent_again_is_refused),
		cmocka_unit_test(bytes_more_or_less_are_refused),
		cmocka_unit_test(a_file_of_nobody_or_of_another_is_refused_with_the_names_of_both),
		cmocka_unit_test(a_borrowed_name_is_no_signature),
		cmocka_unit_test(a_signature_in_other_letters_is_none),
		cmocka_unit_test(a_signature_elsewhere_in_the_header_is_refused),
		cmocka_unit_test(signing_again_replaces_the_signature),
		cmocka_unit_test(what_is_signed_goes_elsewhere_where_that_is_asked_for),
		cmocka_unit_test(damaged_files_and_those_of_strangers_are_not_signed),
		cmocka_unit_test(a_write_that_fails_leaves_the_file_as_it_was),
		cmocka_unit_test(keys_are_texts_or_files),
		cmocka_unit_test(what_is_no_key_is_refused_and_says_why),
		cmocka_unit_test(a_new_key_is_its_owners_alone_and_replaces_nothing),
		cmocka_unit_test(a_bad_key_among_good_ones_is_not_passed_over),
		cmocka_unit_test(a_file_that_changes_in_place_after_it_was_verified_changes_nothing),
		cmocka_unit_test(what_is_made_of_a_signed_file_is_not_signed),
	};
	char *text;
	if (clv_key_fingerprint(my_pub, &text) == CLV_E_UNSUPPORTED)
		return cmocka_run_group_tests(none, NULL, NULL);
	clv_free(text);
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
