/* `cleave sign`: a model file with the signature of whoever vouches for it. */
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *key, *output;
	opening opening;
} request;

static int run_sign(void *given)
{
	const request *r = given;
	clv_open_options o = open_options(&r->opening);
	char *fingerprint;
	if (!r->key) {
		complain("--key FILE is missing: the private key to sign with");
		hint("openssl genpkey -algorithm ed25519 -out my.key; openssl pkey -in my.key -pubout -out my.pub");
		return EXIT_USAGE;
	}
	if (!strcmp(r->path, "-") || (r->output && !strcmp(r->output, "-"))) {
		complain("files are signed, not standard input or output");
		return EXIT_USAGE;
	}
	clv_status st = clv_artifact_sign(r->path, r->key, &o, r->output);
	if (st != CLV_OK) {
		complain_artifact(r->path, st);
		return EXIT_FAILED;
	}
	if (clv_key_fingerprint(r->key, &fingerprint) != CLV_OK)
		return fail_with(NULL);
	printf("%s is signed by key %s\n", r->output ? r->output : r->path, fingerprint);
	clv_string_free(fingerprint);
	return written() ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file"),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("key", 0, "FILE", key, "the private key (Ed25519, PEM, without a passphrase)"),
	OPT_FILE("output", 'o', "FILE", output, "write the signed file here (default: in the place of FILE)"),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	OPTION_END,
};

const command command_sign = {
	.name = "sign",
	.summary = "sign a model file, so that others can tell that it is yours",
	.description =
		"Checks a .clv file, with all its data, and signs every byte of it with an Ed25519 key. The file is replaced "
		"when it "
		"is whole; beyond the signature its content stays as it is. A signature that is there already is replaced.\n\n"
		"Whoever has the public key verifies it: `cleave verify --key`, --trusted-key of the other commands, "
		"trusted_keys of clv_open_options and of cleave.load. A file that is saved, cut or traced again is another "
		"one, "
		"without a signature.",
	.examples = "openssl genpkey -algorithm ed25519 -out my.key\n"
				"openssl pkey -in my.key -pubout -out my.pub\n"
				"cleave sign model.clv --key my.key\n"
				"cleave verify model.clv --key my.pub\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_sign,
};
