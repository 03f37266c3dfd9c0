/* Inputs of a model from files or random numbers, for commands that run models.
 * For commands that run models. */
#pragma once

#include <limits.h>

#include "cli.h"

typedef struct feeding {
	text_list inputs; /* x=file.npy, random */
	const char *fill; /* of inputs that are not named; NULL: all have to be */
	const char *int_range;
	int64_t seed, plan;
	double timeout; /* for making them, in seconds; 0: as long as it takes; no option of its own */
	bool resize;    /* data of files is repeated or cut off, where it has not the sizes that are given; no option */
} feeding;

#define FEEDING_OPTIONS(field)                                                                                         \
	OPT_TEXTS("input", 'i', "NAME=WHAT", field.inputs,                                                                 \
	          "value of an input: file.npy, file.safetensors, file.safetensors:name, random, zeros or ones; without "  \
	          "NAME= the next input; may be repeated"),                                                                \
		OPT_WORD("fill", 0, "WHAT", field.fill, "random|zeros|ones", "fill inputs that are not given"),                \
		OPT_TEXT("int-range", 0, "LO:HI", field.int_range, "range of random integers", .preset = "0:1"),               \
		OPT_INT("seed", 0, "N", field.seed, "seed for random inputs and for models that draw random numbers",          \
	            .preset = "0"),                                                                                        \
		OPT_INT("plan", 0, "N", field.plan, "plan whose sizes made-up inputs get", .preset = "0")

/* How a model is made ready. */
typedef struct loading {
	const char *device, *part, *weights, *optimize, *engine;
	int64_t threads;
	bool unproven, debug, allow_compiled, allow_signed, tape_only, sandbox, no_sandbox;
	double timeout;
	int64_t max_memory;
} loading;

#define LOADING_OPTIONS(field)                                                                                         \
	OPT_GROUP("running"),                                                                                              \
		OPT_TEXT("device", 0, "DEVICE", field.device, "where to run: cpu, cuda:0 (default: where it was captured)"),   \
		OPT_WORD("part", 0, "PART", field.part, "all|prefix|suffix", "which part of a cut model to run"),              \
		OPT_FILE("weights", 0, "FILE", field.weights,                                                                  \
	             "safetensors file with parameters and buffers by name, for a file without weights or in place of "    \
	             "its own"),                                                                                           \
		OPT_COUNT("threads", 0, "N", field.threads, "threads per operator (default: all cores)", .most = INT_MAX),     \
		OPT_WORD("optimize", 0, "LEVEL", field.optimize, "safe|none|fast",                                             \
	             "how far plans may be rewritten; fast keeps results within a tolerance and tunes in the first run"),  \
		OPT_TEXT("engine", 0, "NAME", field.engine,                                                                    \
	             "tape (libtorch) or native (without libtorch); default: the first that can run it"),                  \
		OPT_FLAG("unproven", 0, field.unproven,                                                                        \
	             "also run sizes at which the model was never recorded, using the plan's formulas"),                   \
		OPT_FLAG("debug", 0, field.debug, "check every result against the plan and name the first that differs"),      \
		OPT_FLAG("allow-compiled", 0, field.allow_compiled,                                                            \
	             "run compiled parts made by others: this trusts whoever made the file with code"),                    \
		OPT_FLAG("allow-signed", 0, field.allow_signed, "the same, but only for files signed by a --trusted-key"),     \
		OPT_FLAG("tape-only", 0, field.tape_only, "do not use compiled parts"),                                        \
		OPT_SECONDS("timeout", 0, "S", field.timeout,                                                                  \
	                "time limit of a run in seconds, checked between operators (default: none)"),                      \
		OPT_SIZE("max-memory", 0, "BYTES", field.max_memory,                                                           \
	             "memory limit for the tensors of a run: 512M, 2G (default: none)"),                                   \
		OPT_FLAG("sandbox", 0, field.sandbox,                                                                          \
	             "run it in a process that has no files, no network and no compiled code, for at most 600 s unless "   \
	             "--timeout is given (default: only files that neither you saved nor a --trusted-key signed)"),        \
		NO_SANDBOX_OPTION(field.no_sandbox)

#define NO_SANDBOX_OPTION(field)                                                                                       \
	OPT_FLAG("no-sandbox", 0, field, "run it in this process: you trust whoever made the file")

clv_status wait_for(const char *device); /* until it has done what it was given */
clv_status seed_models(uint64_t seed);   /* that draw random numbers */

/* A runtime of an open model with its weights; says what is wrong and gives NULL. */
clv_runtime *load_runtime(const model *m, const loading *o);
clv_runtime_options loading_options(const loading *o);
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
int loading_check(const loading *o);          /* EXIT_OK, or EXIT_USAGE with what is wrong said */
int feeding_check(const feeding *f);          /* EXIT_OK, or EXIT_USAGE with what is wrong said */
int fail_boundary(const char *path);          /* complains that a suffix wants a boundary: EXIT_FAILED */
/* Complains of what the library said, with a hint where there is something to do. */
int fail_run(const char *path, clv_status st);
/* The native engine against the tape, which takes libtorch: says how near they are, or what is wrong. */
bool compare_engines(const clv_artifact *a, const char *path, bool no_sandbox, double *worst);

/* Options of commands that run a model: sizes, and at the end what they read and how they show results. */
#define RUN_SIZE_OPTIONS(field)                                                                                        \
	OPT("size", 0, "SYMBOL=N", TYPE_SYMBOL, sizes, field,                                                              \
	    "size of a symbol, S=16; may be repeated (default: a proven one)"),                                            \
		OPT_COUNT("batch", 0, "N", field.batch, "size of the batch (default: a proven one)")
#define RUN_FILE_OPTIONS OPT_GROUP("model files"), CHECK_OPTION(opening), TRUST_OPTIONS(opening), LISTING_OPTIONS(view)
