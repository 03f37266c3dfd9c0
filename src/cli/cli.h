/* The `cleave` command: shared parts of its commands. Only cleave.h is used, as any other program would.
 *
 * A command is one file. It says in tables what it takes, and one parser fills its request from them; from the same
 * tables come --help, the completion scripts, the man pages and the checks of --sort and --filter. So a command that
 * is in the list below is complete, documented and completed by shells, and there is nothing else to keep in step.
 *
 *     typedef struct request {            // all that a user can say
 *         const char *path, *output;
 *         int64_t most;
 *         sizes sizes;
 *         opening opening;
 *     } request;                          // the macros below want this name
 *
 *     static int shrink(void *given, const model *m)  // an exit code; what went wrong was said by complain()
 *     {
 *         const request *r = given;
 *         …
 *     }
 *
 *     static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};
 *     static const option options[] = {
 *         OPT_FILE("output", 'o', "FILE", output, "write it here", .preset = "-"),
 *         OPT_SIZE("most", 0, "SIZE", most, "most bytes: 4096, 64M, 1.5GiB"),
 *         SIZE_OPTIONS(sizes),
 *         OPENING_OPTIONS(opening),
 *         OPTION_END,
 *     };
 *     const command command_shrink = {
 *         .name = "shrink", .summary = "make a plan smaller",
 *         .description = "Paragraphs, which are filled by whoever prints them.\n\n"
"With an empty line between.",
 *         .examples = "cleave shrink model.plan --most 64M\n",
 *         .arguments = arguments, .options = options, REQUEST(request), ON_SIZED_MODEL(shrink),
 *     };
 *
 * Then add the name to COMMAND_LIST. Transcripts go into tests/plan/cli.txt.
 *
 *   - The request is zero, or .initial where a struct of the library has other defaults; then each `preset` is read as
 *     if it had been typed, so that the default in the help is the default. Numbers that are not given are otherwise 0.
 *     Texts are borrowed from the command line and lists belong to the request; both outlive run.
 *   - Tables: give the columns to the command (.columns), put LISTING_OPTIONS(view) among the options and a listing_view
 *     into the request; listing_new, listing_add for each row, listing_show. That is the table, --json, --sort, --filter and
 *     --limit. A command with one answer instead of rows writes JSON with put_json_open … put_json_close.
 *   - A command that runs plans sets .torch and has its run function and all it needs inside
 *     `#ifdef CLEAVE_CLI_TORCH`, and .run = TORCH_RUN(run_x). `cleave` itself links no torch: it reads the arguments,
 *     then becomes `cleave-torch` (torch.c), which is these same files with CLEAVE_CLI_TORCH and libtorch. One that can run
 *     by an engine that needs no torch says where the request names the engine (.engine_at), and is in both programs.
 *   - A command that is no question about one model has .run instead of ON_MODEL.
 *   - Files: model_open takes a plan's text and a .clv file alike. Commands that run models share feed.h: inputs, weights,
 *     devices.
 *   - A command that needs Python sets .python and has no run function: once its arguments are read, the program becomes
 *     `python -m cleave` with the same words (capture.c).
 *   - Exit codes: EXIT_OK, EXIT_FAILED, EXIT_USAGE. A command that answers by its code, as diff(1) does, says so in
 *     .exits and returns EXIT_DIFFER or EXIT_TROUBLE.
 *   - Memory comes from grab(), which never gives NULL: without memory the command ends with a message. */
#pragma once

#include <stdio.h>

#include "cleave.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DIFFER = 1, EXIT_TROUBLE = 2 };

/* One line per command, so that additions seldom conflict. The order is that of `cleave --help`. */
#ifdef CLEAVE_CLI_EDGE /* cleave-edge, for devices */
#define COMMAND_LIST(X)                                                                                                \
	X(inspect)                                                                                                         \
	X(run)                                                                                                             \
	X(bench)                                                                                                           \
	X(sandbox)
#else
#define COMMAND_LIST(X)                                                                                                \
	X(capture)                                                                                                         \
	X(inspect)                                                                                                         \
	X(print)                                                                                                           \
	X(verify)                                                                                                          \
	X(sign)                                                                                                            \
	X(pack)                                                                                                            \
	X(candidates)                                                                                                      \
	X(split)                                                                                                           \
	X(partition)                                                                                                       \
	X(trace)                                                                                                           \
	X(run)                                                                                                             \
	X(bench)                                                                                                           \
	X(calibrate)                                                                                                       \
	X(serve)                                                                                                           \
	X(diff)                                                                                                            \
	X(source)                                                                                                          \
	X(html)                                                                                                            \
	X(dot)                                                                                                             \
	X(completion)                                                                                                      \
	X(man)                                                                                                             \
	X(sandbox)                                                                                                         \
	X(selftest)
#endif

/* ---- what a command takes ---------------------------------------------------------------------------------------- */

typedef struct text_list {
	const char **at; /* borrowed texts in an array of the request */
	uint32_t n;
} text_list;

typedef enum option_type {
	TYPE_END,
	TYPE_GROUP,   /* a heading in the help; name is its text                             */
	TYPE_FLAG,    /* bool                                                                */
	TYPE_TEXT,    /* const char *                                                        */
	TYPE_WORD,    /* const char *: one of `words`                                        */
	TYPE_FILE,    /* const char *                                                        */
	TYPE_INT,     /* int64_t, not negative                                               */
	TYPE_COUNT,   /* int64_t, one at least                                               */
	TYPE_SIZE,    /* int64_t: bytes, 64M is 64e6 and 64Mi is 64 * 2^20                   */
	TYPE_FLOAT,   /* double                                                              */
	TYPE_SECONDS, /* double, not negative                                               */
	TYPE_RATE,    /* double: bytes per second, 100M, or 1Gbit for an eighth of 1G        */
	TYPE_SPEED,   /* double: operations per second, or a file of `cleave bench --json`   */
	TYPE_TEXTS,   /* text_list: may be given several times                               */
	TYPE_FILES,   /* text_list, likewise                                                 */
	TYPE_SYMBOL,  /* sizes: B=8, may be given several times                              */
	TYPE_SORT,    /* listing_view: a column of the command                                 */
	TYPE_FILTER   /* listing_view: a comparison with one, may be given several times       */
} option_type;

typedef struct option {
	const char *name; /* "max-bytes"; of an argument: "FILE" */
	char letter;      /* 'o'; 0: none */
	option_type type;
	const char *metavar; /* "SIZE"; of an argument: its name again */
	const char *help;    /* one line */
	size_t offset;       /* in the request */
	const char *words;   /* "auto|always|never" */
	int64_t most;        /* of whole numbers, counts and sizes; 0: any */
	const char *preset;  /* read when the option is not given, and shown in the help; NULL: the request as it is */
	uint32_t takes;      /* values after the option, of a list; 0: one */
	bool optional;       /* of an argument */
} option;

/* The place of a field, if it has the type that the option writes. */
#define PLACE(ctype, field) (offsetof(request, field) + 0 * sizeof((ctype *)0 == &((request *)0)->field))

#define OPTION_END                                                                                                     \
	{                                                                                                                  \
		0                                                                                                              \
	}
#define OPT_GROUP(text)                                                                                                \
	{                                                                                                                  \
		.name = text, .type = TYPE_GROUP                                                                               \
	}
#define OPT(name_, letter_, metavar_, kind, ctype, field, help_, ...)                                                  \
	{                                                                                                                  \
		.name = name_, .letter = letter_, .metavar = metavar_, .type = kind, .offset = PLACE(ctype, field),            \
		.help = help_, __VA_ARGS__                                                                                     \
	}
#define OPT_FLAG(name, letter, field, ...) OPT(name, letter, NULL, TYPE_FLAG, bool, field, __VA_ARGS__, )
#define OPT_TEXT(name, letter, metavar, field, ...)                                                                    \
	OPT(name, letter, metavar, TYPE_TEXT, const char *, field, __VA_ARGS__, )
#define OPT_WORD(name, letter, metavar, field, words_, ...)                                                            \
	OPT(name, letter, metavar, TYPE_WORD, const char *, field, __VA_ARGS__, .words = words_)
#define OPT_FILE(name, letter, metavar, field, ...)                                                                    \
	OPT(name, letter, metavar, TYPE_FILE, const char *, field, __VA_ARGS__, )
#define OPT_INT(name, letter, metavar, field, ...) OPT(name, letter, metavar, TYPE_INT, int64_t, field, __VA_ARGS__, )
#define OPT_COUNT(name, letter, metavar, field, ...)                                                                   \
	OPT(name, letter, metavar, TYPE_COUNT, int64_t, field, __VA_ARGS__, )
#define OPT_SIZE(name, letter, metavar, field, ...) OPT(name, letter, metavar, TYPE_SIZE, int64_t, field, __VA_ARGS__, )
#define OPT_FLOAT(name, letter, metavar, field, ...)                                                                   \
	OPT(name, letter, metavar, TYPE_FLOAT, double, field, __VA_ARGS__, )
#define OPT_SECONDS(name, letter, metavar, field, ...)                                                                 \
	OPT(name, letter, metavar, TYPE_SECONDS, double, field, __VA_ARGS__, )
#define OPT_RATE(name, letter, metavar, field, ...) OPT(name, letter, metavar, TYPE_RATE, double, field, __VA_ARGS__, )
#define OPT_SPEED(name, letter, metavar, field, ...)                                                                   \
	OPT(name, letter, metavar, TYPE_SPEED, double, field, __VA_ARGS__, )
#define OPT_TEXTS(name, letter, metavar, field, ...)                                                                   \
	OPT(name, letter, metavar, TYPE_TEXTS, text_list, field, __VA_ARGS__, )
#define OPT_FILES(name, letter, metavar, field, ...)                                                                   \
	OPT(name, letter, metavar, TYPE_FILES, text_list, field, __VA_ARGS__, )

/* Arguments, in order. */
#define ARG_FILE(name, field, ...) OPT(name, 0, name, TYPE_FILE, const char *, field, __VA_ARGS__, )
#define MODEL_ARGUMENT ARG_FILE("FILE", path, "a plan's text or a .clv file; - is standard input")
#define ARG_TEXT(name, field, ...) OPT(name, 0, name, TYPE_TEXT, const char *, field, __VA_ARGS__, )
#define ARG_WORD(name, field, words_, ...)                                                                             \
	OPT(name, 0, name, TYPE_WORD, const char *, field, __VA_ARGS__, .words = words_)

/* ---- tables (listing.c) -------------------------------------------------------------------------------------------- */

typedef enum column_type {
	COLUMN_TEXT,    /* .s; NULL is null                                                 */
	COLUMN_INT,     /* .n; of this and the next three INT64_MIN: null                   */
	COLUMN_BYTES,   /* .n: 16384 (16.4 kB); INT64_MAX: not known                        */
	COLUMN_HUMAN,   /* .n: 16.4 kB in the table, all digits in JSON                     */
	COLUMN_COUNT,   /* .n: 11.7M in the table                                           */
	COLUMN_NUMBER,  /* .x                                                               */
	COLUMN_SECONDS, /* .x: 1.25 ms in the table                                         */
	COLUMN_SHARE,   /* .x: 0 … 1, 49.3 % in the table                                   */
	COLUMN_BOOL     /* .b                                                               */
} column_type;

typedef struct column {
	const char *name;  /* in JSON, --sort and --filter: boundary_bytes */
	const char *title; /* in the table; NULL: only in JSON */
	column_type type;
} column;

#define COLUMNS_END                                                                                                    \
	{                                                                                                                  \
		0                                                                                                              \
	}

typedef union cell {
	const char *s;
	int64_t n;
	double x;
	bool b;
} cell;

typedef struct filter {
	uint32_t column;
	char op[3];       /* < <= > >= = != ~ !~ */
	const char *text; /* borrowed */
	double number;
} filter;

typedef struct listing_view { /* how a user wants to see a listing */
	bool json, sorted, descending;
	uint32_t sort; /* column */
	int64_t limit; /* 0: all rows */
	filter *filters;
	uint32_t nfilters;
} listing_view;

#define LISTING_OPTIONS(field)                                                                                         \
	OPT_GROUP("table"), OPT_FLAG("json", 0, field.json, "an array of objects instead of a table"),                     \
		OPT("sort", 0, "COLUMN", TYPE_SORT, listing_view, field,                                                       \
	        "sort by a column; COLUMN:desc puts the largest first"),                                                   \
		OPT("filter", 0, "TEST", TYPE_FILTER, listing_view, field,                                                     \
	        "only rows with COLUMN<N (also <= > >= = !=), or COLUMN~TEXT for text that contains TEXT (!~ for "         \
	        "others); may be repeated"),                                                                               \
		OPT_INT("limit", 0, "N", field.limit, "at most N rows")

typedef struct listing listing;

listing *listing_new(const column *columns);
/* One cell per column; texts are copied. mark: '*' for a row to look at, '!' for one with trouble, 0 for none. */
void listing_add(listing *t, char mark, const cell *cells);
void listing_free(listing *t);
/* Both print the table and free it. The second: as a JSON array that is a member of what is open. */
void listing_show(listing *t, const listing_view *v /* NULL: all of it, for people */);
void listing_json(listing *t, const listing_view *v, const char *key);

/* For the parser: complain and give false when there is no such column. */
bool listing_read_sort(const column *columns, const char *text, listing_view *v);
bool listing_read_filter(const column *columns, const char *text, listing_view *v);

/* ---- sizes of symbols (sizes.c) ---------------------------------------------------------------------------------- */

typedef struct sizes {
	const char **symbols; /* owned names */
	int64_t *values;
	uint32_t n;
	int64_t batch; /* 0: not given, nobody can give it */
} sizes;

#define SIZE_OPTIONS(field)                                                                                            \
	OPT("size", 0, "SYMBOL=N", TYPE_SYMBOL, sizes, field,                                                              \
	    "size of a symbol, B=8; may be repeated (default: its lowest)"),                                               \
		OPT_COUNT("batch", 0, "N", field.batch, "size of the batch: of the symbol B, or of the only symbol")

void sizes_add(sizes *s, const char *symbol, int64_t value);
int64_t sizes_find(const sizes *s, const char *symbol); /* -1: it is not there */
void sizes_free(sizes *s);
/* Symbols that have no size yet get those of a size that the model is proven for, the first that agrees with what is given
   already; where there is none they stay open. */
void sizes_complete(sizes *s, const clv_artifact *a);
/* The sizes of point k of those that plan i of a file is proven for are added; false: there is none. */
bool sizes_add_point(sizes *s, const clv_artifact *a, uint32_t i, uint32_t k);
/* The sizes that plan i of a file is proven for: "B=1..8", "B=2 S=5, B=4 S=5, … (12)". */
void print_points(FILE *to, const clv_artifact *a, uint32_t i);
/* For options of cleave.h; borrows s. */
clv_sizes sizes_given(const sizes *s);

/* ---- where to cut: fields of a clv_objective ------------------------------------------------------------------------ */

#define MINIMIZE_OPTION(field)                                                                                         \
	OPT_WORD("minimize", 0, "WHAT", field.minimize,                                                                    \
	         "boundary_bytes|latency|prefix_memory|suffix_memory|prefix_flops|suffix_flops|balance",                   \
	         "what auto minimises (default: bytes, with 20 to 80 % of the work before the cut)")
#define PREFIX_SPEED_OPTION(field)                                                                                     \
	OPT_SPEED("prefix-speed", 0, "X", field,                                                                           \
	          "operations per second before the cut, or a file of `cleave bench --json`", .preset = "1e12")
#define SUFFIX_SPEED_OPTION(field) OPT_SPEED("suffix-speed", 0, "X", field, "the same after it", .preset = "1e12")
#define CONSTRAINT_OPTIONS(field)                                                                                      \
	OPT_GROUP("constraints"),                                                                                          \
		OPT_SIZE("max-bytes", 0, "SIZE", field.max_boundary_bytes, "limit on the bytes that cross"),                   \
		OPT_SIZE("max-prefix-memory", 0, "SIZE", field.max_prefix_memory, "limit on memory before the cut"),           \
		OPT_SIZE("max-suffix-memory", 0, "SIZE", field.max_suffix_memory, "limit on memory after it"),                 \
		OPT_SIZE("max-prefix-params", 0, "N", field.max_prefix_params,                                                 \
	             "limit on parameters before the cut: 500k, 7M"),                                                      \
		OPT_SIZE("max-suffix-params", 0, "N", field.max_suffix_params, "limit on parameters after it"),                \
		OPT_FLOAT("min-fraction", 0, "X", field.min_prefix_flops_fraction,                                             \
	              "least share of the work before the cut: 0.2, 20%"),                                                 \
		OPT_FLOAT("max-fraction", 0, "X", field.max_prefix_flops_fraction,                                             \
	              "largest share of the work before the cut"),                                                         \
		OPT_FLAG("trainable", 0, field.trainable_suffix, "some trainable parameters must remain after the cut"),       \
		OPT_FLOAT("max-latency", 0, "SECONDS", field.max_latency_s,                                                    \
	              "limit on the total time, both sides and the transfer; needs --bandwidth"),                          \
		OPT_RATE("bandwidth", 0, "RATE", field.bandwidth_bytes_per_s,                                                  \
	             "speed of the link in bytes per second, 100M, or bits, 1Gbit"),                                       \
		PREFIX_SPEED_OPTION(field.prefix_flops_per_s), SUFFIX_SPEED_OPTION(field.suffix_flops_per_s),                  \
		OPT_WORD("compress", 0, "HOW", field.compress, "fp16|bf16|int8|q1|q2|q3|q4|q5|q6|q7|q8",                       \
	             "compression of floats, counted in bytes and latency"),                                               \
		OPT_RATE("compress-speed", 0, "RATE", field.compress_bytes_per_s, "bytes compressed and restored per second",  \
	             .preset = "500M")

/* Says so when it is faster not to cut than to cut at frontier i. */
void note_advice(const clv_frontiers *f, uint32_t i, const clv_objective *o);

/* ---- commands ---------------------------------------------------------------------------------------------------- */

typedef struct model model;

typedef struct command {
	const char *name;
	const char *alias;       /* another name that is understood but not listed; NULL: none */
	const char *summary;     /* one line for `cleave --help` */
	const char *description; /* paragraphs with an empty line between; not filled */
	const char *examples;    /* command lines with a newline after each; a line that starts with # explains the next */
	const char *exits;       /* what exit codes mean: "0 done, 1 …"; NULL: the usual */
	const option *arguments, *options;
	const column *columns; /* of its listing */
	size_t request_size;
	const void *initial;     /* NULL: zeros */
	int (*run)(void *given); /* NULL: on_model, or only cleave-torch can, or Python */
	/* Instead of run, with the model that the request names: opened and closed by the caller, --size and --batch resolved.
	   check, unless NULL, comes before: EXIT_OK, or EXIT_USAGE with what is wrong said. */
	int (*check)(void *given);
	int (*on_model)(void *given, const model *m);
	size_t path_at, opening_at, sizes_at; /* in the request; sizes_at 0: it has none */
	bool artifact;                        /* the model has to be a .clv file */
	bool torch;                           /* needs libtorch, */
	size_t engine_at; /* unless the engine that this part of the request names does without; 0: none can */
	bool (*wants_torch)(const void *request); /* this request needs libtorch; NULL: as the lines above say */
	bool python;                              /* needs Python */
	bool hidden;                              /* from lists; it still has help */
} command;

#define REQUEST(type) .request_size = sizeof(type)
#define ON_MODEL(f) .on_model = f, .path_at = offsetof(request, path), .opening_at = offsetof(request, opening)
#define ON_SIZED_MODEL(f) ON_MODEL(f), .sizes_at = offsetof(request, sizes)

#ifdef CLEAVE_CLI_TORCH
#define TORCH_RUN(f) (f)
#else
#define TORCH_RUN(f) NULL
#endif

#define X(name) extern const command command_##name;
COMMAND_LIST(X)
#undef X

extern const command *const commands[]; /* NULL at the end */
const command *find_command(const char *name);
extern const option common_options[]; /* --help and what else every command takes */

/* parse.c: fills a request; EXIT_OK, or EXIT_USAGE with what is wrong said. request_free also after a failure. */
int parse_request(const command *c, int argc, char **argv, void *request);
void request_free(const command *c, void *request);
/* The global options at the start of argv; the number of words they are, or -1 with what is wrong said. */
int parse_global(int argc, char **argv);
bool read_number(const char *text, double *out);                             /* 1.5, 64M, 64Mi, 50% */
const char *nearest(const char *want, const char *const *names, uint32_t n); /* NULL: none is near */

/* help.c */
void print_help(FILE *to);
void print_command_help(const command *c);
uint32_t option_words(const option *o, uint32_t i, const char **at); /* length of word i, 0: there is none */
/* Words of a text in lines of at most `width`, each after `indent` spaces, the first after `used` columns. */
void fill_text(FILE *to, const char *text, unsigned indent, unsigned used, unsigned width);

/* torch.c: becomes cleave-torch; comes back only with what is wrong said. */
int run_with_torch(const command *c, char **argv);
/* Whether this program does it itself: it needs no torch, or there is none and the engine is not named. */
bool runs_here(const command *c, const void *given);
char *program_at(const char *relative); /* a program next to this one, or relative to it; NULL: none. Caller frees. */

/* capture.c: becomes `python -m cleave` with these words; comes back only with what is wrong said. */
int run_with_python(char **argv);
char *find_python(void); /* as CLEAVE_PYTHON says, or of the environment of this program; NULL: none. Caller frees. */

/* ---- saying things (say.c) --------------------------------------------------------------------------------------- */

typedef struct settings {
	const char *color; /* auto, always, never */
	bool quiet, help, version;
} settings;

extern settings global; /* what the options common to all commands say */

#define PRINTF(f, a) __attribute__((format(printf, f, a)))

/* "cleave: …" on standard error. An error of a file names it first: complain("%s: …", path). */
void complain(const char *fmt, ...) PRINTF(1, 2);
void hint(const char *fmt, ...) PRINTF(1, 2); /* "hint: …" after it, once: what to do */
void note(const char *fmt, ...) PRINTF(1, 2); /* news on standard error; both are silent with --quiet */
const char *last_complaint(void);             /* text of the last one; NULL: there was none */
int fail_with(const char *path);              /* complain of clv_last_error(), about a file if not NULL: EXIT_FAILED */

typedef enum style { STYLE_NONE, STYLE_BOLD, STYLE_DIM, STYLE_RED, STYLE_GREEN, STYLE_YELLOW } style;

/* Escape to begin a style, or to end all with STYLE_NONE; "" where there are no colours. */
const char *paint(FILE *to, style s);

#define HUMAN_TEXT 32
/* "1.5 MB", "12 bytes"; "11.7M", "576"; "1.25 ms". All return out. */
const char *human_bytes(int64_t n, char out[HUMAN_TEXT]);
const char *human_count(int64_t n, char out[HUMAN_TEXT]);
const char *human_seconds(double s, char out[HUMAN_TEXT]);

double now(void); /* seconds of a clock that only goes on */

/* A bar on standard error, where that is a terminal, for what has taken over a second. */
typedef struct progress {
	const char *what;
	double started, drawn; /* seconds */
	bool shown;
} progress;

progress progress_start(const char *what);
void progress_step(progress *p, uint64_t done, uint64_t total);
void progress_end(progress *p);

/* ---- output and files (file.c, json.c) --------------------------------------------------------------------------- */

void *grab(size_t bytes);             /* zeroed; never NULL */
void *regrab(void *at, size_t bytes); /* likewise, not zeroed */
char *grab_text(const char *s, size_t n);

const char *name_of(const char *path); /* for messages: "-" is standard input */

/* A whole file, or standard input for "-"; NULL with what went wrong said. Caller frees. */
char *load_text(const char *path, size_t *n);

/* How a file with a model is opened. */
typedef struct opening {
	int64_t plan;           /* of several */
	text_list allow;        /* operators beyond those known to be safe */
	bool check;             /* compare all data with its digests */
	bool copy;              /* read it instead of mapping it */
	text_list trusted_keys; /* one of them has to have signed it; none: anything is opened */
} opening;

#define ALLOW_OPTION(field)                                                                                            \
	OPT_TEXTS("allow-operator", 0, "NAME", field.allow,                                                                \
	          "also allow this operator, or mylib::*, in a .clv file; may be repeated")
#define TRUST_OPTIONS(field)                                                                                           \
	ALLOW_OPTION(field), OPT_FILES("trusted-key", 0, "FILE", field.trusted_keys,                                       \
	                               "public key (Ed25519, PEM): only open .clv files that it signed; may be repeated")
#define CHECK_OPTION(field)                                                                                            \
	OPT_FLAG("check", 0, field.check, "first compare the weights with their digests; reads the whole file"),           \
		OPT_FLAG("copy", 0, field.copy, "read the file into memory first, so that later changes to it do not matter")
#define OPENING_OPTIONS(field)                                                                                         \
	OPT_GROUP("model files"),                                                                                          \
		OPT_INT("plan", 0, "N", field.plan, "plan N of a .clv file, the first is 0", .preset = "0"),                   \
		TRUST_OPTIONS(field)

/* A plan's text or a .clv file, open. */
struct model {
	const char *path;
	const clv_plan *plan;   /* borrowed */
	clv_artifact *artifact; /* NULL: the file is a plan's text */
	clv_plan *own;          /* the plan, then */
	void *bytes;            /* of standard input */
	int64_t size;           /* of the file, in bytes */
};

/* Opens a file, or standard input for "-"; says what went wrong and gives false. o NULL: the first plan. */
bool model_open(const char *path, const opening *o, model *out);
clv_open_options open_options(const opening *o); /* borrows o */
bool complain_artifact(const char *path,
                       clv_status st);     /* of clv_last_error(), with a hint where there is one; false */
bool starts_as_artifact(const char *path); /* it is a .clv file; not asked of standard input, which is read once */
/* As model_open, of what was read already: a plan's text or a .clv file. */
bool model_open_read(const char *path, const opening *o, const char *text, size_t n, model *out);
/* As model_open, and says so where it is no .clv file: a command that needs weights has no use for a plan's text. */
bool model_open_artifact(const char *path, const opening *o, model *out);
void model_close(model *m);
int64_t tensor_bytes(const clv_artifact *a);                 /* what lies on the same memory counts once */
bool is_traced(const clv_artifact *a, uint32_t plan_number); /* parts of the plan were compiled, or were to be */

/* Puts --batch to the symbol that it means: the one the file names, B, or the only one. Says what is wrong and gives false
   where there is none. */
bool sizes_resolve(sizes *s, const model *m);
const char *batch_of(const model *m); /* that symbol; NULL: it is not plain. Borrowed from the model */

/* Whether all that was printed went out; says so if it did not. put_text prints and frees, then asks. */
bool written(void);
bool put_text(char *text);
bool check_output(const char *output, const char *input); /* one is not the other, or says so; NULL: not given */
bool check_output_as(const char *name /* "--html" */, const char *output, const char *input);
bool save_text(const char *path, char *text); /* into a file, or as put_text for "-"; frees; says what went wrong */
/* The exit code of saving a text that the library made with this status; `path` is the file that errors are about. */
int save_result(clv_status st, char *text, const char *output, const char *path);

/* Prints s with nothing in it that could steer the terminal: names come from files that anybody may have written. */
void put_plain(FILE *to, const char *s);

/* One JSON value on standard output, indented; key NULL in arrays and at the top. */
void put_json_open(const char *key, char bracket /* { or [ */);
void put_json_open_line(const char *key, char bracket); /* all inside is on one line */
void put_json_close(void);                              /* the last one ends the line */
void put_json_text(const char *key, const char *s);     /* NULL: null */
void put_json_int(const char *key, int64_t n);
void put_json_number(const char *key, double x); /* not finite: null */
void put_json_bool(const char *key, bool b);
void put_json_members(const char *object); /* those of an object that is text already, into the one that is open */
