/* Inputs of a model from files or random numbers, for commands that run models.
 * For commands that run models. */
#ifndef CLI_FEED_H
#define CLI_FEED_H

#include "cli.h"

typedef struct feeding {
	text_list inputs; /* x=file.npy, random */
	const char *fill; /* of inputs that are not named; NULL: all have to be */
	const char *int_range;
	int64_t seed, plan;
	bool resize; /* data of files is repeated or cut off, where it has not the sizes that are given; no option */
} feeding;

#define FEEDING_OPTIONS(field)                                                                                         \
	OPT_TEXTS(                                                                                                         \
		"input", 'i', "NAME=WHAT", field.inputs,                                                                       \
		"an input: file.npy, file.safetensors, file.safetensors:name, random, zeros or ones; without a name the "      \
		"next one; may be repeated"),                                                                                  \
		OPT_WORD("fill", 0, "WHAT", field.fill, "random|zeros|ones",                                                   \
	             "what inputs that are not given are filled with"),                                                    \
		OPT_TEXT("int-range", 0, "LO:HI", field.int_range, "random integers are LO to HI", .preset = "0:1"),           \
		OPT_INT("seed", 0, "N", field.seed, "of random inputs, and of models that draw random numbers",                \
	            .preset = "0"),                                                                                        \
		OPT_INT("plan", 0, "N", field.plan, "plan of the file whose sizes inputs get that are made up", .preset = "0")

/* How a model is made ready. */
typedef struct loading {
	const char *device, *part, *weights, *optimize;
	int64_t threads;
	bool unproven, debug, allow_compiled, allow_signed, tape_only, sandbox;
	double timeout;
	int64_t max_memory;
} loading;

#define LOADING_OPTIONS(field)                                                                                         \
	OPT_GROUP("running"),                                                                                              \
		OPT_TEXT("device", 0, "DEVICE", field.device, "cpu, cuda:0: where it runs (default: where it was captured)"),  \
		OPT_WORD("part", 0, "PART", field.part, "all|prefix|suffix", "of a file with a whole model that is cut"),      \
		OPT_FILE(                                                                                                      \
			"weights", 0, "FILE", field.weights,                                                                       \
			"parameters and buffers by name, a safetensors file: for a file that has none, or instead of its own"),    \
		OPT_COUNT("threads", 0, "N", field.threads, "threads that an operator may use (default: all cores)"),          \
		OPT_WORD("optimize", 0, "LEVEL", field.optimize, "safe|none|fast",                                             \
	             "what may be rewritten to run faster; fast: numbers within a tolerance, chosen by the first run"),    \
		OPT_FLAG("unproven", 0, field.unproven,                                                                        \
	             "also run sizes at which the model was never recorded, by the formulas of the plan"),                 \
		OPT_FLAG("debug", 0, field.debug, "check every result against the plan and name the first that differs"),      \
		OPT_FLAG("allow-compiled", 0, field.allow_compiled,                                                            \
	             "compiled parts may run that are not yours: they are code of whoever made the file"),                 \
		OPT_FLAG("allow-signed", 0, field.allow_signed, "the same, but only of a file that a --trusted-key signed"),   \
		OPT_FLAG("tape-only", 0, field.tape_only, "use no compiled part of the file"),                                 \
		OPT_FLOAT("timeout", 0, "S", field.timeout,                                                                    \
	              "seconds that a run may take, asked between operators (default: as long as it takes)"),              \
		OPT_SIZE("max-memory", 0, "BYTES", field.max_memory,                                                           \
	             "of tensors that a run may have at once, and that one may come to: 512M, 2G (default: no limit)")

#ifdef CLEAVE_CLI_TORCH
/* A runtime of an open model with its weights; says what is wrong and gives NULL. */
clv_runtime *load_runtime(const model *m, const loading *o);
bool is_part(const model *m, const loading *o, const char *part); /* what runs is the prefix, the suffix */

typedef struct feed {
	clv_tensor **at;
	uint32_t n;
	sizes sizes; /* of the symbols */
} feed;

/* Tensors for all inputs, at sizes that files, --size and --batch say, and for the rest those of a proven size. Says what
   is wrong and gives false; feed_free also then. */
bool feed_make(const model *m, const clv_runtime *r, const feeding *f, const sizes *given, feed *out);
void feed_free(feed *f);
bool resolve_batch(const model *m, sizes *s); /* --batch among the sizes; says what is wrong and gives false */
int feeding_check(const feeding *f);          /* EXIT_OK, or EXIT_USAGE with what is wrong said */
int fail_boundary(const char *path);          /* complains that a suffix wants a boundary: EXIT_FAILED */
/* Complains of what the library said, with a hint where there is something to do. */
int fail_run(const char *path, clv_status st);
#endif

#endif
