/* `cleave sign`: signs a model file. */
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct request {
	const char *path, *key, *new_key, *output;
	opening opening;
} request;

/* NULL: what went wrong was said. */
static char *fingerprint_of(const char *key)
{
	char *text = NULL;
	if (clv_key_fingerprint(key, &text) != CLV_OK)
		fail_with(NULL);
	return text;
}

static int create_key(const char *path)
{
	if (clv_key_new(path) != CLV_OK) {
		fail_with(NULL);
		if (access(path, F_OK) == 0)
			hint("--key %s signs with the key that is there; a new one takes another name", path);
		return EXIT_FAILED;
	}
	char *fingerprint = fingerprint_of(path);
	if (fingerprint)
		printf("%s (private) and %s.pub (public) are the new key %s\n", path, path, fingerprint);
	clv_free(fingerprint);
	return fingerprint ? EXIT_OK : EXIT_FAILED;
}

static int sign(const request *r, const char *key)
{
	clv_open_options o = open_options(&r->opening);
	clv_status st = clv_artifact_sign(r->path, key, &o, r->output);
	char *fingerprint = st == CLV_OK ? fingerprint_of(key) : NULL;
	if (st != CLV_OK)
		complain_artifact(r->path, st);
	else if (fingerprint)
		printf("%s is signed by key %s\n", r->output ? r->output : r->path, fingerprint);
	clv_free(fingerprint);
	return fingerprint ? EXIT_OK : EXIT_FAILED;
}

static bool is_stream(const char *path)
{
	return path && !strcmp(path, "-");
}

static int check(const request *r)
{
	if (is_stream(r->path) || is_stream(r->output))
		complain("files are signed, not standard input or output");
	else if (r->key && r->new_key)
		complain("--key and --new-key are both given");
	else if (!r->key && !r->new_key)
		complain("--key FILE is missing: the private key to sign with; --new-key FILE makes one");
	else if (!r->path && !r->new_key)
		complain("FILE is missing: the file to sign");
	else
		return EXIT_OK;
	return EXIT_USAGE;
}

static int run_sign(void *given)
{
	const request *r = given;
	int code = check(r);
	if (code == EXIT_OK && r->new_key)
		code = create_key(r->new_key);
	if (code == EXIT_OK && r->path)
		code = sign(r, r->key ? r->key : r->new_key);
	return written() ? code : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file; may be left out with --new-key", .optional = true),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("key", 0, "FILE", key, "the private key (Ed25519, PEM, without a passphrase)"),
	OPT_FILE("new-key", 0, "FILE", new_key,
             "make a key pair and sign with it: FILE is the private key, FILE.pub the public one"),
	OPT_FILE("output", 'o', "FILE", output, "write the signed file here (default: replace FILE)"),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	OPTION_END,
};

const command command_sign = {
	.name = "sign",
	.summary = "sign a model file, so that others can tell that it is yours",
	.description =
		"Checks a .clv file, with all its data, and signs every byte of it with an Ed25519 key. The file is replaced "
		"once the new one is complete; nothing but the signature changes. An existing signature is replaced.\n\n"
		"Anyone with the public key can verify it: `cleave verify --key`, --trusted-key of the other commands, "
		"trusted_keys of clv_open_options and of cleave.load. Saving, cutting or tracing a file again makes a new "
		"file, which is not signed.",
	.examples = "cleave sign --new-key my.key\n"
				"cleave sign model.clv --key my.key\n"
				"cleave verify model.clv --key my.key.pub\n"
				"# keys made by OpenSSL work too\n"
				"openssl genpkey -algorithm ed25519 -out my.key && openssl pkey -in my.key -pubout -out my.pub\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_sign,
};
