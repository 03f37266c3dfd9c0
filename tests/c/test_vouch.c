/* Who vouches for a file: seals of the user who saved it, what derives from it, and what changes it. */
#include "artifacts.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/artifact_keys.h"
#include "file/folders.h"
#include "file/signature.h"

static char base[] = "/tmp/cleave-vouch-XXXXXX", mine[64], path[64];

/* A user with a state folder and a key of their own. */
static void be_user(const char *name)
{
	char folder[96];
	snprintf(folder, sizeof folder, "%s/%s", base, name);
	setenv("XDG_STATE_HOME", folder, 1);
}

static void key_of(const char *user, char to[128])
{
	snprintf(to, 128, "%s/%s/cleave/seal.key", base, user);
}

static int set_up(void **state)
{
	(void)state;
	new_folder(base);
	snprintf(mine, sizeof mine, "%s/mine.clv", base);
	snprintf(path, sizeof path, "%s/out.clv", base);
	return 0;
}

static int tear_down(void **state)
{
	char command[96];
	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", base);
	return system(command);
}

static image sealed(void)
{
	artifact *a = sample();
	be_user("me");
	return written(a);
}

static void check_vouching(image i, vouching want)
{
	artifact *a = opened(i);
	const char *why = "?";
	assert_int_equal(a->vouching, want);
	assert_int_equal(clv_artifact_vouched(a, &why), want <= VOUCHED_SIGNED);
	assert_int_equal(why == NULL, want <= VOUCHED_SIGNED);
	artifact_free(a);
}

static void the_user_who_saved_a_file_vouches_for_it(void **state)
{
	image i = sealed();
	char key[128];
	struct stat info;
	(void)state;
	check_vouching(i, VOUCHED_SAVED);
	key_of("me", key);
	assert_int_equal(stat(key, &info), 0);
	assert_int_equal(info.st_mode & 0777, 0600);
	be_user("other");
	check_vouching(i, UNVOUCHED_NO_KEY);
	image another = written(sample());
	check_vouching(i, UNVOUCHED_OTHER);
	check_vouching(another, VOUCHED_SAVED);
	be_user("me");
	check_vouching(another, UNVOUCHED_OTHER);
	image_free(&another);
	image_free(&i);
}

static void a_seal_needs_a_key_that_is_safe(void **state)
{
	image i = sealed();
	char key[128], folder[128];
	(void)state;
	setenv("XDG_STATE_HOME", "/dev/null", 1);
	check_vouching(i, UNVOUCHED_NO_KEY);
	image none = written(sample());
	check_vouching(none, UNVOUCHED_NO_SEAL);
	be_user("me");
	check_vouching(none, UNVOUCHED_NO_SEAL);
	key_of("me", key);
	assert_int_equal(chmod(key, 0640), 0); /* others may have read it */
	check_vouching(i, UNVOUCHED_NO_KEY);
	assert_int_equal(chmod(key, 0600), 0);
	check_vouching(i, VOUCHED_SAVED);
	snprintf(folder, sizeof folder, "%s/me/cleave", base);
	assert_int_equal(chmod(folder, 0777), 0);
	check_vouching(i, UNVOUCHED_NO_KEY);
	assert_int_equal(chmod(folder, 0700), 0);
	assert_int_equal(truncate(key, 31), 0);
	check_vouching(i, UNVOUCHED_NO_KEY);
	assert_int_equal(unlink(key), 0);
	check_vouching(i, UNVOUCHED_NO_KEY);
	setenv("XDG_STATE_HOME", "/proc/nowhere", 1);
	image nowhere = written(sample());
	check_vouching(nowhere, UNVOUCHED_NO_SEAL);
	image_free(&nowhere);
	image_free(&none);
	image_free(&i);
}

/* Whatever byte of the header is another one: with a check that fits, it is no file of mine any more. */
static void a_header_that_was_changed_is_noticed(void **state)
{
	image i = sealed();
	uint64_t length = 0;
	unsigned opened_ones = 0;
	(void)state;
	memcpy(&length, i.at, 8);
	for (size_t at = 8; at < 8 + length; at++) {
		image other = image_of(i.at, i.n);
		artifact *a = NULL;
		char *digits = seal_place((char *)other.at, 8 + length);
		bool of_seal = at >= (size_t)((uint8_t *)digits - other.at) && at < (size_t)((uint8_t *)digits - other.at) + 80;
		other.at[at] = other.at[at] == '1' ? '2' : other.at[at] == ' ' ? '\n' : (uint8_t)(other.at[at] ^ 1);
		if (artifact_put_check((char *)other.at, 8 + length) == CLV_OK && open_image(other, &a) == CLV_OK) {
			char *check = check_place((char *)i.at, 8 + length);
			bool of_check = at >= (size_t)((uint8_t *)check - i.at) && at < (size_t)((uint8_t *)check - i.at) + 32;
			assert_int_equal(a->vouching <= VOUCHED_SIGNED, of_check); /* digits of the check were put right again */
			opened_ones += !of_check && !of_seal;
		}
		artifact_free(a);
		image_free(&other);
	}
	assert_true(opened_ones > 100); /* spaces, names, texts: not every change breaks the syntax */
	image_free(&i);
}

static void a_seal_does_not_fit_another_file(void **state)
{
	image i = sealed(), other = written(sample_of_two_plans());
	(void)state;
	uint64_t n, m;
	memcpy(&n, i.at, 8);
	memcpy(&m, other.at, 8);
	memcpy(seal_place((char *)other.at, 8 + m), seal_place((char *)i.at, 8 + n), 80);
	OK(artifact_put_check((char *)other.at, 8 + m));
	check_vouching(other, UNVOUCHED_CHANGED);
	image_free(&other);
	other = written(sample());
	assert_true(same_image(i, other)); /* a model has one file */
	image_free(&other);
	image_free(&i);
}

/* ---- what derives from files ---------------------------------------------------------------------------------------- */

static image part_of(const artifact *a)
{
	artifact *part = taken_from(a, "all", (artifact_range[]){{0, a->plans.at[0].p->nodes.n, NONE}});
	return written(part);
}

static image nodes_of(const artifact *a)
{
	artifact *part;
	OK(artifact_take_nodes(a, 0, 0, 1, &part));
	return written(part);
}

static image reordered(const artifact *a)
{
	plan *none[1] = {NULL};
	artifact *again;
	OK(artifact_reordered(a, none, &again));
	return written(again);
}

static void what_derives_from_a_file_is_as_good_as_that(void **state)
{
	image (*const ways[])(const artifact *) = {part_of, nodes_of, reordered};
	(void)state;
	for (int own = 0; own < 2; own++) {
		be_user("stranger");
		image i = own ? sealed() : written(sample());
		be_user("me");
		artifact *a = opened(i);
		assert_int_equal(artifact_unvouched(a) == NULL, own);
		for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
			image derived = ways[k](a);
			check_vouching(derived, own ? VOUCHED_SAVED : UNVOUCHED_NO_SEAL);
			artifact *b = opened(derived);
			image twice = whole_again(b);
			check_vouching(twice, own ? VOUCHED_SAVED : UNVOUCHED_NO_SEAL);
			artifact_free(b);
			image_free(&twice);
			image_free(&derived);
		}
		artifact_free(a);
		image_free(&i);
	}
}

static void put_image(image i, const char *to)
{
	FILE *f = fopen(to, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(i.at, 1, i.n, f), i.n);
	fclose(f);
}

static void halves_of_a_file_are_as_good_as_that(void **state)
{
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	(void)state;
	o.boundary = "after:relu";
	for (int own = 0; own < 2; own++) {
		be_user("stranger");
		image i = own ? sealed() : written(sample());
		be_user("me");
		artifact *a = opened(i);
		OK(clv_artifact_split(a, &o, path, NULL));
		image half = read_image(path);
		check_vouching(half, own ? VOUCHED_SAVED : UNVOUCHED_NO_SEAL);
		image_free(&half);
		artifact_free(a);
		image_free(&i);
	}
}

static const char private_key[] = "-----BEGIN PRIVATE KEY-----\n"
								  "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
								  "-----END PRIVATE KEY-----\n";
static const char public_key[] = "-----BEGIN PUBLIC KEY-----\n"
								 "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
								 "-----END PUBLIC KEY-----\n";

/* Signing neither breaks a seal nor makes one; a trusted key vouches for what is made of the file, too. */
static void signing_leaves_the_seal_as_it_is(void **state)
{
	const char *keys[] = {public_key};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	(void)state;
	o.trusted_keys = keys;
	o.ntrusted_keys = 1;
	for (int own = 0; own < 2; own++) {
		artifact *a;
		be_user("stranger");
		image i = own ? sealed() : written(sample());
		be_user("me");
		put_image(i, mine);
		OK(clv_artifact_sign(mine, private_key, NULL, path));
		image with_signature = read_image(path);
		assert_int_equal(with_signature.n, i.n + SIGNATURE_BLOCK);
		check_vouching(with_signature, own ? VOUCHED_SAVED : UNVOUCHED_OTHER);
		OK(clv_artifact_open(path, &o, &a));
		assert_int_equal(a->vouching, VOUCHED_SIGNED);
		image derived = part_of(a);
		check_vouching(derived, VOUCHED_SAVED);
		artifact_free(a);
		image_free(&derived);
		image_free(&with_signature);
		image_free(&i);
	}
}

/* ---- files that change ------------------------------------------------------------------------------------------------ */

static void a_mapped_header_is_a_copy(void **state)
{
	image i = sealed();
	artifact *a;
	(void)state;
	put_image(i, mine);
	OK(clv_artifact_open(mine, NULL, &a));
	uint8_t *before = malloc(a->data_n);
	memcpy(before, a->data, a->data_n);
	FILE *f = fopen(mine, "r+b");
	for (size_t at = 0; at < 64; at++)
		fputc('x', f);
	fclose(f);
	assert_memory_equal(a->data, before, st_header_size(a->file));
	free(before);
	artifact_free(a);
	image_free(&i);
}

static void a_settled_file_does_not_change(void **state)
{
	image i = sealed();
	artifact *a;
	(void)state;
	put_image(i, mine);
	OK(clv_artifact_open(mine, NULL, &a));
	assert_true(a->changes);
	OK(artifact_settle(a));
	assert_false(a->changes);
	assert_int_equal(truncate(mine, 0), 0);
	assert_memory_equal(a->data, i.at, i.n);
	artifact_free(a);
	image_free(&i);
}

static void a_file_that_was_cut_off_is_not_settled(void **state)
{
	uint8_t *data = calloc(16, 4096);
	mapping m;
	(void)state;
	put_image((image){data, 16 * 4096}, mine);
	OK(file_map(mine, false, &m));
	assert_int_equal(truncate(mine, 3 * 4096), 0);
	FAILS(mapping_settle(&m), CLV_E_IO, "became shorter");
	file_unmap(&m);
	OK(mapping_settle(&m));
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_user_who_saved_a_file_vouches_for_it),
		cmocka_unit_test(a_seal_needs_a_key_that_is_safe),
		cmocka_unit_test(a_header_that_was_changed_is_noticed),
		cmocka_unit_test(a_seal_does_not_fit_another_file),
		cmocka_unit_test(what_derives_from_a_file_is_as_good_as_that),
		cmocka_unit_test(halves_of_a_file_are_as_good_as_that),
		cmocka_unit_test(signing_leaves_the_seal_as_it_is),
		cmocka_unit_test(a_mapped_header_is_a_copy),
		cmocka_unit_test(a_settled_file_does_not_change),
		cmocka_unit_test(a_file_that_was_cut_off_is_not_settled),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
