/** @mainpage cleave.h: the public C interface of Cleave
 *
 * Cleave holds a PyTorch model as a *plan*: the operators of one forward pass in order, with the shape of every value,
 * the modules they came from and the names of the parameters they read. A plan is captured once (from Python), is plain
 * text, and can be cut and run in pieces from C. An *artifact* (`.clv`) is plans with the weights they read, in one file.
 *
 * Two libraries implement this header:
 *
 *     libcleave-core   plans and files: read, inspect, cut, partition, compare, draw. Needs libc, jansson and, unless
 *                      built without them, METIS, zstd, OpenSSL and nghttp2.
 *     libcleave        all of that, and running. Links libtorch, needs no Python.
 *
 * Link one of them (`pkg-config cleave-core` or `cleave`; in CMake `cleave::core` or `cleave::cleave`). What is
 * marked [run], a group or a function, is only in libcleave.
 *
 * Conventions
 * -----------
 * These hold for every function unless its comment says otherwise.
 *
 * - *Errors*: a function that can fail returns a clv_status and leaves its results alone on failure. clv_last_error()
 *   has the message. CLV_E_INVALID (NULL where it is not allowed, a number out of range, a struct of unknown size) and
 *   CLV_E_NOMEM can come from any of them; `@errors` lists the others.
 * - *Ownership*: a handle, text or buffer that a function stores through a pointer belongs to the caller, who releases
 *   it: a `clv_thing` with clv_thing_free(), text and bytes with clv_free(). These accept NULL. Everything that is
 *   const, returned or in a struct, is borrowed from the handle it was asked of and lives as long as that. Arguments
 *   are borrowed for the call.
 * - *Threads*: any thread may call any function at any time, with handles that other threads are using, except that
 *   `*_free` needs the handle for itself. What else changes a handle says so in `@threads`. Tensors follow PyTorch's
 *   rules.
 * - Functions that count return 0 for a NULL handle.
 * - *Structs* begin with their size, so that they can grow: start from the `*_INIT` macro, or from `{.size = sizeof x}`
 *   where the library fills the struct. A newer library accepts the shorter struct of an older header.
 *   Options that are NULL mean the defaults.
 * - Nothing prints, nothing aborts, no C++ exception comes out. Files and bytes from outside are treated as hostile.
 *
 * Running a file
 * --------------
 *
 *     clv_artifact *file;
 *     clv_runtime *model;
 *     clv_tensor *x, *y;
 *     static float image[1 * 3 * 224 * 224];
 *     int64_t shape[4] = {1, 3, 224, 224};
 *
 *     if (clv_artifact_open("model.clv", NULL, &file) || clv_runtime_create(file, NULL, &model) ||
 *         clv_tensor_wrap(image, "f32", 4, shape, NULL, NULL, NULL, &x) ||    // no copy
 *         clv_runtime_run(model, (const clv_tensor *const[]){x}, 1, &y, 1)) {
 *         fprintf(stderr, "%s\n", clv_last_error());
 *         return 1;
 *     }
 *     const float *logits = clv_tensor_data(y);
 *     ...
 *     clv_tensor_free(x);
 *     clv_tensor_free(y);
 *     clv_runtime_free(model);
 *     clv_artifact_free(file);
 *
 * Stable and experimental
 * -----------------------
 * Everything before the line "experimental" keeps its meaning within a major version (before 1.0: a minor version). What
 * follows it is declared only where `CLV_EXPERIMENTAL` is defined before the header is included, and may change or go
 * away in any release.
 */
#ifndef CLEAVE_H
#define CLEAVE_H

/** @file
 *  The public C interface; the main page explains the conventions. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Marks what the libraries export; everything else in them is hidden. */
#if defined(__GNUC__)
#define CLV_API __attribute__((visibility("default")))
#else
#define CLV_API
#endif

#ifdef __cplusplus
#ifdef __GNUC__
#pragma GCC system_header /* compilers take the designators of *_INIT before C++20 too, but may warn about them */
#endif
extern "C" {
#endif

/* ---- status, errors, version ------------------------------------------------------------------------------------ */

/** @defgroup status Status, errors, version
 *  @{ */

#define CLV_VERSION "0.2.0" /**< Version of this header; the numbers below say the same. */
#define CLV_VERSION_MAJOR 0 /**< Incremented when callers break. */
#define CLV_VERSION_MINOR 2 /**< Incremented for additions; before 1.0 also when callers break. */
#define CLV_VERSION_PATCH 0 /**< Incremented for fixes. */

/** Every status with what it means. */
#define CLV_STATUS_LIST(X)                                                                                             \
	X(OK, "success")                                                                                                   \
	X(E_NOMEM, "out of memory")                                                                                        \
	X(E_INVALID, "an argument is wrong")                                                                               \
	X(E_PARSE, "the text is malformed")                                                                                \
	X(E_VERIFY, "the plan breaks a rule")                                                                              \
	X(E_INPUT, "an input does not fit the plan")                                                                       \
	X(E_LAYOUT, "an input is laid out in memory otherwise than at capture")                                            \
	X(E_GUARD, "a value differs from the one the plan was captured with")                                              \
	X(E_UNSUPPORTED, "this cannot be captured, cut or run")                                                            \
	X(E_NOT_FOUND, "no such name")                                                                                     \
	X(E_OVERFLOW, "a number is too large")                                                                             \
	X(E_TORCH, "PyTorch reported an error")                                                                            \
	X(E_IO, "reading or writing failed")                                                                               \
	X(E_TIMEOUT, "a compiler took longer than it was given")                                                           \
	X(E_CANCELLED, "the caller stopped it")                                                                            \
	X(E_LIMIT, "the run takes more than it may")                                                                       \
	X(E_SIGNATURE, "the file is not signed by a trusted key, or was changed since")                                    \
	X(E_CRASHED, "the process of a sandbox ended")                                                                     \
	X(E_MACHINE, "PyTorch has no memory left, or it or a device failed")

/** CLV_OK is 0, everything else is a failure. */
typedef enum clv_status {
#define X(id, text) CLV_##id,
	CLV_STATUS_LIST(X)
#undef X
		CLV_STATUS_COUNT /**< Number of statuses; not one itself. */
} clv_status;

/** "E_PARSE"; "?" for a number that is no status. */
CLV_API const char *clv_status_name(clv_status s);

/** Message of the last failure on this thread, "" if there was none. Valid until the next failure on this thread. */
CLV_API const char *clv_last_error(void);

/** What the last failure on this thread is about, for programs; the wording of messages may change. Fields that do not
    apply are "" or -1; texts that are too long are cut. */
typedef struct clv_error_details {
	char node[64];     /**< name of the node, as in plan text */
	char op[64];       /**< its operator */
	char module[128];  /**< the module it belongs to */
	char source[128];  /**< file and line of the model's forward */
	char input[64];    /**< the input, parameter or symbol that does not fit */
	int32_t dimension; /**< of that input */
	char expected[64]; /**< the value that the plan holds for */
	char seen[64];     /**< the value found instead */
	bool undone;       /**< CLV_E_GUARD: everything the run had changed was restored */
} clv_error_details;

/** Valid until the next failure on this thread. */
CLV_API const clv_error_details *clv_last_error_details(void);

/** Version of the library, "0.2.0"; it may be newer than the header's CLV_VERSION. */
CLV_API const char *clv_version(void);

/** Releases text or bytes that a function of this header gave. */
CLV_API void clv_free(void *p);

#define CLV_NONE UINT32_MAX /**< No such node, value, frontier or array. */

/** @} */

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/** @defgroup plans Plans
 *  @{ */

/** A plan. It never changes. */
typedef struct clv_plan clv_plan;

/** Reads `size` bytes of plan text and verifies the plan.
    @errors CLV_E_PARSE with line and column; CLV_E_VERIFY. */
CLV_API clv_status clv_plan_parse(const char *text, size_t size, clv_plan **out);

/** Frontiers, graphs and programs borrow their plan: release them first. */
CLV_API void clv_plan_free(clv_plan *p);

/** The canonical text; parsing it gives an equal plan. */
CLV_API clv_status clv_plan_print(const clv_plan *p, char **out);

/** A size that may change from run to run. */
typedef struct clv_symbol {
	size_t size;      /**< sizeof(clv_symbol) */
	const char *name; /**< "B" */
	int64_t lo, hi;   /**< the range that the plan is for, inclusive */
	bool data;        /**< read from data during a run instead of from the shapes of inputs */
} clv_symbol;

/** Number of symbols. */
CLV_API uint32_t clv_plan_symbol_count(const clv_plan *p);

/** Describes symbol i. */
CLV_API clv_status clv_plan_symbol(const clv_plan *p, uint32_t i, clv_symbol *out);

/** Values for symbols: symbols[i] has size values[i]. A symbol that is not listed has its lowest size, at least 1. */
typedef struct clv_sizes {
	const char *const *symbols; /**< names: "B" */
	const int64_t *values;      /**< their sizes */
	uint32_t n;                 /**< length of both arrays */
} clv_sizes;

/** Number of nodes, which are operator calls in the order in which they run. */
CLV_API uint32_t clv_plan_node_count(const clv_plan *p);

/** Number of inputs. */
CLV_API uint32_t clv_plan_input_count(const clv_plan *p);

/** Number of tensors in the output. */
CLV_API uint32_t clv_plan_output_count(const clv_plan *p);

/** @} */

/* ---- frontiers: where a plan can be cut ------------------------------------------------------------------------- */

/** @defgroup frontiers Frontiers: where a plan can be cut
 *  @{ */

/** One place to cut. The memory of a side is that of all tensors of the model it reads, plus the most that its inputs
    and results occupy at one time. Estimates are for the sizes the frontiers were created with. */
typedef struct clv_frontier {
	size_t size;                                    /**< sizeof(clv_frontier) */
	uint32_t position;                              /**< the prefix is nodes 0 … position */
	const char *name;                               /**< of the last prefix node: "relu_3" */
	const char *module;                             /**< its module path */
	uint32_t boundary_tensors;                      /**< tensors that cross, passthrough inputs included */
	uint32_t passthrough_inputs;                    /**< inputs of the plan that the suffix reads */
	int64_t boundary_bytes;                         /**< bytes that cross; INT64_MAX: too many, or not known */
	double prefix_cost;                             /**< share of the estimated work before the cut, 0 … 1 */
	bool trainable_suffix;                          /**< the suffix reads a parameter that requires grad */
	const char *unsafe;                             /**< why the plan cannot be cut here; NULL: it can */
	uint32_t prefix_nodes, suffix_nodes;            /**< nodes on each side */
	double prefix_flops, suffix_flops;              /**< estimated from shapes */
	int64_t prefix_params, suffix_params;           /**< elements of the parameters that a side reads */
	int64_t prefix_param_bytes, suffix_param_bytes; /**< a parameter that both sides read counts on both */
	int64_t prefix_memory, suffix_memory;           /**< bytes that a side needs at most */
	uint32_t behind;                                /**< position; or the node before guards that were moved there */
} clv_frontier;

/** All frontiers of one plan, which must outlive them. They never change. */
typedef struct clv_frontiers clv_frontiers;

/** Finds all frontiers and what each costs at `sizes` (NULL: the lowest). Linear in the plan.
    @errors CLV_E_NOT_FOUND for a symbol that the plan does not have. */
CLV_API clv_status clv_frontiers_create(const clv_plan *p, const clv_sizes *sizes, clv_frontiers **out);

/** Releases frontiers. */
CLV_API void clv_frontiers_free(clv_frontiers *f);

/** One less than the plan has nodes. */
CLV_API uint32_t clv_frontiers_count(const clv_frontiers *f);

/** Describes frontier i. */
CLV_API clv_status clv_frontiers_get(const clv_frontiers *f, uint32_t i, clv_frontier *out);

/** The uncut plan, in the units of clv_frontier. */
typedef struct clv_total {
	size_t size;                 /**< sizeof(clv_total) */
	double flops;                /**< estimated from shapes */
	int64_t params, param_bytes; /**< of the parameters that it reads */
	int64_t memory;              /**< bytes that it needs at most */
	int64_t input_bytes;         /**< of the inputs that it reads */
	uint32_t inputs;             /**< tensors among them */
} clv_total;

/** What the whole plan costs. */
CLV_API clv_status clv_frontiers_total(const clv_frontiers *f, clv_total *out);

/** Bytes that cross as a formula in the symbols: "401408*B", "4*B*S+1024".
    @errors CLV_E_OVERFLOW. */
CLV_API clv_status clv_frontiers_bytes_text(const clv_frontiers *f, uint32_t i, char **out);

/** Labels of the tensors that cross, as in plan text, separated by spaces: "%3 %17". */
CLV_API clv_status clv_frontiers_labels(const clv_frontiers *f, uint32_t i, char **out);

/** A page about the plan for people: inputs, outputs, parameters, operators, guards, cost, places where it cannot be cut.
    json: the same and more as a JSON object. */
CLV_API clv_status clv_frontiers_inspect(const clv_frontiers *f, bool json, char **out);

/** What makes a good frontier. `minimize` is one of

        boundary_bytes                what crosses
        latency                       prefix_flops / prefix_flops_per_s + boundary_bytes / bandwidth_bytes_per_s
                                      + suffix_flops / suffix_flops_per_s, in seconds; needs the bandwidth
        prefix_memory, suffix_memory  as in clv_frontier
        prefix_flops, suffix_flops    the work on one side
        balance                       the difference in work between the sides

    and NULL for the fewest boundary_bytes among frontiers with 20 to 80 % of the work on each side (among all if there
    are none). It applies to "auto"; among equals the one with fewer bytes wins, then the earlier. The other fields are
    constraints, which every boundary must meet. */
typedef struct clv_objective {
	size_t size;                                  /**< sizeof(clv_objective) */
	const char *minimize;                         /**< see above */
	bool trainable_suffix;                        /**< the suffix must read a parameter that requires grad */
	int64_t max_boundary_bytes;                   /**< here and below, negative: no limit */
	int64_t max_prefix_memory, max_suffix_memory; /**< bytes, as in clv_frontier */
	int64_t max_prefix_params, max_suffix_params; /**< elements, as in clv_frontier */
	double min_prefix_flops_fraction, max_prefix_flops_fraction; /**< of prefix_cost, 0 … 1 */
	double max_latency_s;                                        /**< 0: no limit */
	double bandwidth_bytes_per_s;                                /**< 0: not known */
	double prefix_flops_per_s, suffix_flops_per_s;               /**< 0: 1e12; clv_speed_load() reads measured ones */
	const char
		*compress; /**< how floats are sent: "fp16", "bf16", "int8", "q1" to "q8"; NULL: as they are. boundary_bytes and
	                                  max_boundary_bytes then count what is sent */
	double compress_bytes_per_s; /**< bytes compressed and restored per second; 0: 5e8 */
} clv_objective;

/* clang-format off */
/** The defaults: `clv_objective o = CLV_OBJECTIVE_INIT;` */
#define CLV_OBJECTIVE_INIT \
	{.size = sizeof(clv_objective), .max_boundary_bytes = -1, .max_prefix_memory = -1, .max_suffix_memory = -1, \
	 .max_prefix_params = -1, .max_suffix_params = -1, .max_prefix_flops_fraction = 1}
/* clang-format on */

/** Finds the frontier that a boundary text names: `after:<module path|node name>`, `50%`, `percent:50`, `at:50%`,
    `nearest:50%`, `auto`. Percentages are of the estimated work: the fewest bytes within 5 points, or the nearest if
    nothing is that near or `nearest:` asks for it. Percentages and auto skip frontiers that are unsafe or break a
    constraint.
    @errors CLV_E_NOT_FOUND for an unknown name, with similar ones; CLV_E_UNSUPPORTED with the reason for a named frontier
    that is unsafe, and if no frontier meets the constraints; CLV_E_INVALID for a named one that breaks a constraint. */
CLV_API clv_status clv_frontiers_choose(const clv_frontiers *f, const char *boundary, const clv_objective *objective,
                                        uint32_t *out);

/** Whether frontier i can be cut and meets the constraints.
    @errors CLV_E_UNSUPPORTED if it is unsafe; CLV_E_INVALID if it breaks a constraint. */
CLV_API clv_status clv_frontiers_check(const clv_frontiers *f, uint32_t i, const clv_objective *objective);

/** How long one call takes by the formula of `latency`, cut and uncut. */
typedef struct clv_latency {
	size_t size;        /**< sizeof(clv_latency) */
	double cut_s;       /**< cut at the frontier */
	double here_s;      /**< everything on the prefix's side; infinite: a constraint forbids it */
	double there_s;     /**< inputs are sent and everything runs on the suffix's side; likewise */
	int64_t sent_bytes; /**< bytes that cross at the frontier, compressed as the objective says */
} clv_latency;

/** Compares cutting at frontier i with not cutting.
    @errors CLV_E_INVALID if the objective has no bandwidth. */
CLV_API clv_status clv_frontiers_latency(const clv_frontiers *f, uint32_t i, const clv_objective *objective,
                                         clv_latency *out);

/** A sentence for people if not cutting is faster than cutting at frontier i: "not cutting is faster: …". *out is NULL if
    the cut is the fastest, or if the objective does not minimize latency. */
CLV_API clv_status clv_frontiers_advice(const clv_frontiers *f, uint32_t i, const clv_objective *objective, char **out);

/** The flops_per_s that `cleave bench --json` measured and wrote to a file; of several sizes, that of the last.
    @errors CLV_E_IO; CLV_E_PARSE for a file that `cleave bench --json` did not write. */
CLV_API clv_status clv_speed_load(const char *path, double *out);

/** @} */

/* ---- artifacts: a model as one file ------------------------------------------------------------------------------ */

/** @defgroup artifacts Artifacts: a model as one file
 *  @{ */

/** An open `.clv` file. It never changes. It is mapped, so that opening takes milliseconds and weights are read from disk
    when they are used. */
typedef struct clv_artifact clv_artifact;

/** Options of clv_artifact_open(). */
typedef struct clv_open_options {
	size_t size;                        /**< sizeof(clv_open_options) */
	const char *const *allow_operators; /**< allowed beyond those known to be safe: "aten::from_file", "mylib::*" */
	uint32_t nallow_operators;          /**< length of allow_operators */
	bool check_data;                    /**< read the whole file and compare it with its digests; implies copy */
	bool copy;                          /**< read the file into memory instead of mapping it */
	const char *const *trusted_keys; /**< Ed25519 public keys, each the path of a PEM file or its text: open only a file
	                                         that one of them signed; implies copy. NULL: any file */
	uint32_t ntrusted_keys;          /**< length of trusted_keys */
} clv_open_options;

/* clang-format off */
/** The defaults: `clv_open_options o = CLV_OPEN_OPTIONS_INIT;` */
#define CLV_OPEN_OPTIONS_INIT {.size = sizeof(clv_open_options)}
/* clang-format on */

/** Opens a file; nothing in it runs. A mapped file must not be changed in place while it is open: truncating it ends the
    process (SIGBUS). Replacing it (rename) is fine.
    @errors CLV_E_IO; CLV_E_PARSE for a file that is no artifact, damaged, or of a newer major version; CLV_E_VERIFY for a
    plan that breaks a rule; CLV_E_UNSUPPORTED for an operator that is not allowed or needs Python; CLV_E_OVERFLOW;
    CLV_E_SIGNATURE, before anything else is read, for a file that no trusted key signed or that was changed since. */
CLV_API clv_status clv_artifact_open(const char *path, const clv_open_options *options, clv_artifact **out);

/** The same for bytes in memory, which start at a multiple of 64. They are borrowed until the artifact and everything made
    from it is gone.
    @errors as clv_artifact_open(), without CLV_E_IO. */
CLV_API clv_status clv_artifact_parse(const void *data, size_t size, const clv_open_options *options,
                                      clv_artifact **out);

/** Runtimes made from the artifact, and their tensors, stay valid: they keep the mapping. */
CLV_API void clv_artifact_free(clv_artifact *a);

/** Whether bytes, of which the first 9 are enough, could be an artifact: a safetensors file. */
CLV_API bool clv_is_artifact(const void *data, size_t size);

/** Writes an artifact that was made in memory, as by clv_trace(), to a file: whole or not at all.
    @errors CLV_E_INVALID for an artifact that was opened from a file; CLV_E_IO.
    @threads one call at a time for one artifact. */
CLV_API clv_status clv_artifact_save(const clv_artifact *a, const char *path);

/** Number of pieces of data with a digest of their own; tensors on the same memory share one. */
CLV_API uint32_t clv_artifact_entry_count(const clv_artifact *a);

/** Compares piece i with its digest. Checking one at a time lets a caller show progress; *bytes is its size, and may be
    NULL.
    @errors CLV_E_PARSE for damaged data, with the name of a tensor in it. */
CLV_API clv_status clv_artifact_check_entry(const clv_artifact *a, uint32_t i, int64_t *bytes);

/** Signs a file with an Ed25519 private key (the path of a PEM file, or its text) and writes it to `output` (NULL: in
    place), whole or not at all. Everything that clv_artifact_open() checks is checked first, the data too. An existing
    signature is replaced; everything else stays as it is.
    @errors as clv_artifact_open(); CLV_E_INVALID for a key that is not a plain Ed25519 private key; CLV_E_UNSUPPORTED in a
    build without OpenSSL; CLV_E_IO. */
CLV_API clv_status clv_artifact_sign(const char *path, const char *key, const clv_open_options *options,
                                     const char *output);

/** Fingerprint of the key that a file claims to be signed with: SHA-256 of the raw public key in hexadecimal; NULL: it is
    not signed. Only clv_artifact_signature_verified() says whether the claim was checked. */
CLV_API const char *clv_artifact_signer(const clv_artifact *a);

/** Whether the file was opened with trusted keys, one of which signed it. */
CLV_API bool clv_artifact_signature_verified(const clv_artifact *a);

/** Whether somebody vouches for an artifact: this user saved it, a trusted key signed it, or it was made in this process.
    Otherwise it runs in a sandbox by default (clv_sandbox). *why, which may be NULL, is NULL or the reason why nobody does;
    static. */
CLV_API bool clv_artifact_vouched(const clv_artifact *a, const char **why);

/** Makes an Ed25519 key for clv_artifact_sign(): the private key as `path`, readable by its owner only, the public key as
    `path`.pub.
    @errors CLV_E_IO, also if one of the files exists; CLV_E_UNSUPPORTED in a build without OpenSSL. */
CLV_API clv_status clv_key_new(const char *path);

/** Fingerprint of an Ed25519 key, public or private: the path of a PEM file, or its text.
    @errors CLV_E_INVALID if it is no such key; CLV_E_UNSUPPORTED in a build without OpenSSL; CLV_E_IO. */
CLV_API clv_status clv_key_fingerprint(const char *key, char **out);

/** Which part of the model the file holds: "all", "prefix", "suffix", "stage:2". */
CLV_API const char *clv_artifact_part(const clv_artifact *a);

/** Name of the split in boundaries; "": the model is not cut. */
CLV_API const char *clv_artifact_split_id(const clv_artifact *a);

/** Where it was asked to be cut ("after:layer2"), or "". */
CLV_API const char *clv_artifact_boundary(const clv_artifact *a);

/** The symbol that is the batch ("B"), or "". */
CLV_API const char *clv_artifact_batch(const clv_artifact *a);

/** False: plans and constants only; clv_runtime_bind() supplies parameters and buffers. */
CLV_API bool clv_artifact_has_weights(const clv_artifact *a);

/** The writer marked this file as valid for all sizes of its symbols: runtimes serve sizes that were never recorded, as with
    clv_runtime_options.unproven. */
CLV_API bool clv_artifact_any_size(const clv_artifact *a);

/** Note i about where the file comes from ("torch", "model", …); false: there are no more. */
CLV_API bool clv_artifact_about(const clv_artifact *a, uint32_t i, const char **key, const char **text);

/** Number of plans. The first is the model at the sizes it was captured for; the others are for sizes at which it does
    something else. */
CLV_API uint32_t clv_artifact_plan_count(const clv_artifact *a);

/** Plan i, or NULL. */
CLV_API const clv_plan *clv_artifact_plan(const clv_artifact *a, uint32_t i);

/** What a file says about one of its plans. */
typedef struct clv_plan_info {
	size_t size;           /**< sizeof(clv_plan_info) */
	const char *signature; /**< name of the plan in boundaries */
	uint32_t first, end;   /**< this file's part is nodes first … end-1 */
	int64_t cut;           /**< first node of the suffix; -1: the plan is not cut */
	uint32_t npoints;      /**< sizes at which the model was recorded, for which the plan is proven */
	uint32_t point_size;   /**< numbers per point: one for each symbol that the inputs give, in order */
	const int64_t *points; /**< npoints * point_size */
} clv_plan_info;

/** Describes what goes with plan i. */
CLV_API clv_status clv_artifact_plan_info(const clv_artifact *a, uint32_t i, clv_plan_info *out);

/** Size i that plan `number` was recorded with and has no symbol for, though another plan of the file has one: a plan for B=1
    alone. Returns false if there is none. */
CLV_API bool clv_artifact_fixed_size(const clv_artifact *a, uint32_t number, uint32_t i, const char **name,
                                     int64_t *size);

/** A tensor of a file. */
typedef struct clv_tensor_info {
	size_t size;          /**< sizeof(clv_tensor_info) */
	const char *name;     /**< state_dict name, or the name of a constant */
	const char *dtype;    /**< "f32", as in plan text */
	uint32_t ndim;        /**< number of dimensions */
	const int64_t *shape; /**< their sizes */
	int64_t bytes;        /**< of its elements */
	bool trainable;       /**< a parameter that requires grad */
	const char *entry;    /**< name in the file; tensors on the same memory are one entry */
	char digest[33];      /**< of the entry's data, hexadecimal */
} clv_tensor_info;

/** Number of tensors. */
CLV_API uint32_t clv_artifact_tensor_count(const clv_artifact *a);

/** Describes tensor i.
    @errors CLV_E_OVERFLOW. */
CLV_API clv_status clv_artifact_tensor(const clv_artifact *a, uint32_t i, clv_tensor_info *out);

/** Options of clv_artifact_split(). */
typedef struct clv_split_options {
	size_t size;                    /**< sizeof(clv_split_options) */
	const char *boundary;           /**< as for clv_frontiers_choose(); NULL: where the file is cut already */
	const clv_objective *objective; /**< NULL: the defaults */
	clv_sizes sizes;                /**< at which bytes and work are counted */
} clv_split_options;

/* clang-format off */
/** The defaults: `clv_split_options o = CLV_SPLIT_OPTIONS_INIT;` */
#define CLV_SPLIT_OPTIONS_INIT {.size = sizeof(clv_split_options)}
/* clang-format on */

/** Cuts a whole model into two files, each with only the weights it reads. Both are complete before either replaces what
    was there. A path that is NULL is not written.
    @errors as clv_frontiers_choose(); CLV_E_UNSUPPORTED if both halves would have a tensor that one of them changes;
    CLV_E_INVALID for a file that is a half already, or that is not cut if no boundary is given; CLV_E_IO. */
CLV_API clv_status clv_artifact_split(const clv_artifact *a, const clv_split_options *options, const char *prefix_path,
                                      const char *suffix_path);

/** @} */

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/** @defgroup tensors Tensors
 *  @{ */

/** One reference to a tensor: elements in memory with a type, sizes and strides. PyTorch uses the same memory. */
typedef struct clv_tensor clv_tensor;

/** Copies row-major data to a tensor on the CPU. dtype as in plan text: "f32", "i64", …
    @errors CLV_E_OVERFLOW for sizes beyond what a tensor can have. */
CLV_API clv_status clv_tensor_from_data(const void *data, const char *dtype, uint32_t ndim, const int64_t *shape,
                                        clv_tensor **out);

/** Gives back one reference. */
CLV_API void clv_tensor_free(clv_tensor *t);

/** A tensor on the caller's memory, without a copy. strides count elements, NULL: row-major. Align to 64 bytes, as PyTorch
    does: results may depend on it in the last bits.
    @ownership the memory must stay until `release(ctx)` is called: once, on any thread, when the last reference is gone.
    If release is NULL, the memory must outlive everything made from it. On failure it is not called.
    @errors CLV_E_OVERFLOW for sizes beyond what a tensor can have. */
CLV_API clv_status clv_tensor_wrap(void *data, const char *dtype, uint32_t ndim, const int64_t *shape,
                                   const int64_t *strides, void (*release)(void *ctx), void *ctx, clv_tensor **out);

struct DLManagedTensor; /* of DLPack's header */

/** A DLPack tensor (unversioned) as a tensor on the same memory.
    @ownership takes `from` over and calls its deleter once, when the last reference is gone; on failure `from` stays the
    caller's.
    @errors CLV_E_TORCH for a type or device that this PyTorch does not have; CLV_E_OVERFLOW. */
CLV_API clv_status clv_tensor_from_dlpack(struct DLManagedTensor *from, clv_tensor **out);

/** A tensor for DLPack (unversioned) on the same memory, which it keeps: t may be freed first. The caller calls the
    deleter.
    @errors CLV_E_UNSUPPORTED for a tensor without plain memory: sparse, nested, lazily conjugated; CLV_E_TORCH. */
CLV_API clv_status clv_tensor_to_dlpack(const clv_tensor *t, struct DLManagedTensor **out);

/** Copies the elements in row-major order from any device into `size` bytes; of a quantised tensor, its integers.
    @errors CLV_E_INVALID if size is not clv_tensor_bytes(); CLV_E_TORCH. */
CLV_API clv_status clv_tensor_copy_to(const clv_tensor *t, void *to, size_t size);

/** The tensor on another device ("cpu", "cuda:0"); a new reference to itself if it is there already.
    @errors CLV_E_INVALID for a device that does not exist here; CLV_E_TORCH. */
CLV_API clv_status clv_tensor_to_device(const clv_tensor *t, const char *device, clv_tensor **out);

/** "cpu", "cuda:0"; "?" for NULL. Valid until the next call on this thread. */
CLV_API const char *clv_tensor_device(const clv_tensor *t);

/** Bytes of the elements; -1: it has no plain ones. */
CLV_API int64_t clv_tensor_bytes(const clv_tensor *t);

/** Row-major data on the CPU; NULL if the tensor is elsewhere or laid out otherwise. */
CLV_API const void *clv_tensor_data(const clv_tensor *t);

/** Number of dimensions. */
CLV_API uint32_t clv_tensor_ndim(const clv_tensor *t);

/** Size of dimension i; -1 if there is none. */
CLV_API int64_t clv_tensor_dim(const clv_tensor *t, uint32_t i);

/** "f32", "i64", … as in plan text; "?" for a dtype that plans do not have. */
CLV_API const char *clv_tensor_dtype(const clv_tensor *t);

/** @} */

/* ---- runtimes: artifacts that run ------------------------------------------------------------------------------- */

/** @defgroup runtimes Runtimes: artifacts that run
 *  @{ */

/** An artifact, or a part of it, ready to run. Tensors that the model changes (buffers) are the runtime's own: two runtimes
    of one artifact do not see each other. */
typedef struct clv_runtime clv_runtime;

/** Whether a file runs in a sandbox, another process that can only compute (docs/artifact.md, "sandbox"). */
typedef enum clv_sandbox {
	CLV_SANDBOX_AUTO, /**< unless this user saved it, a trusted key signed it, or allow_compiled is set */
	CLV_SANDBOX_ON,   /**< always */
	CLV_SANDBOX_OFF   /**< never: you trust the file (docs/security.md) */
} clv_sandbox;

/** Options of clv_runtime_create(). */
typedef struct clv_runtime_options {
	size_t size;         /**< sizeof(clv_runtime_options) */
	const char *device;  /**< "cpu", "cuda:0": move everything there; NULL: as it was captured */
	const char *part;    /**< "prefix" or "suffix" of a file with the whole, cut model; NULL: all that the file has */
	bool unproven;       /**< also serve sizes at which the model was never recorded, by the plan's formulas */
	bool debug;          /**< compare every result with the plan and name the first that differs */
	bool allow_compiled; /**< run compiled parts, which are code of whoever made the file; without it, only those that
	                           this user compiled run (docs/security.md) */
	bool allow_signed;   /**< the same, only if clv_artifact_signature_verified() */
	bool tape_only;      /**< run no compiled part */
	bool any_weights;    /**< a suffix also accepts boundaries made with other weights than its own */
	uint8_t sandbox;     /**< a clv_sandbox. In a sandbox timeout 0 means 600 s; there is none on a GPU, and none with
	                           CLV_SANDBOX_ON and allow_compiled */
	int threads;         /**< threads per operator in runs of this runtime, 1 to 1024; 0: those of the calling thread */
	const char *optimize; /**< "none", "safe" (NULL): the same bits; "fast": within tolerances (docs/optimize.md) */
	double timeout;       /**< seconds that a run may take, checked between operators; 0: no limit */
	int64_t max_memory; /**< bytes of CPU tensors that a run may have at once, besides weights and inputs, and that one
	                           tensor may have; 0: no limit */
	const char *engine; /**< what runs it: "tape" (libtorch), "native" (no libtorch), or "auto" (NULL): the first that
	                           takes the file */
} clv_runtime_options;

/* clang-format off */
/** The defaults: `clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;` */
#define CLV_RUNTIME_OPTIONS_INIT {.size = sizeof(clv_runtime_options)}
/* clang-format on */

/** Makes an artifact, or a part of it, ready to run. The artifact may be freed afterwards.
    @errors CLV_E_INVALID for a part that the file does not have, a device that does not exist, or a bad number of threads;
    CLV_E_UNSUPPORTED for a model that cannot run from C, be moved to one device, or run in parts, and for a file that nobody
    vouches for where there can be no sandbox; CLV_E_PARSE for damaged data; CLV_E_TORCH. */
CLV_API clv_status clv_runtime_create(const clv_artifact *a, const clv_runtime_options *options, clv_runtime **out);

/** Tensors that came out of the runtime stay valid. */
CLV_API void clv_runtime_free(clv_runtime *r);

/** A tensor that goes in or comes out. */
typedef struct clv_port {
	size_t size;             /**< sizeof(clv_port) */
	const char *name;        /**< of an input; place of an output ("logits", "past[0]"); label ("%7") at a cut */
	const char *dtype;       /**< "f32" */
	const char *device;      /**< where it has to be */
	uint32_t ndim;           /**< number of dimensions */
	const char *const *dims; /**< "3", "B", "4*B+1": as in plan text */
} clv_port;

/** Number of tensors that clv_runtime_run() takes. */
CLV_API uint32_t clv_runtime_input_count(const clv_runtime *r);

/** Number of tensors that clv_runtime_run() gives. */
CLV_API uint32_t clv_runtime_output_count(const clv_runtime *r);

/** Describes input i, as the file's first plan has it. */
CLV_API clv_status clv_runtime_input(const clv_runtime *r, uint32_t i, clv_port *out);

/** Describes output i, as the file's first plan has it. */
CLV_API clv_status clv_runtime_output(const clv_runtime *r, uint32_t i, clv_port *out);

/** Number of tensors that a plan of the file gives: a model whose data decides what it returns has plans that differ in it. */
CLV_API uint32_t clv_runtime_plan_output_count(const clv_runtime *r, uint32_t plan);

/** Describes output i of that plan. */
CLV_API clv_status clv_runtime_plan_output(const clv_runtime *r, uint32_t plan, uint32_t i, clv_port *out);

/** The largest of these numbers: what clv_runtime_run_any() needs room for. */
CLV_API uint32_t clv_runtime_most_outputs(const clv_runtime *r);

/** The shape of input i of a plan of the file at given sizes, and the strides (in elements) that it was captured with: ndim
    numbers each; strides may be NULL. Symbols that the plan does not have are ignored.
    @errors CLV_E_OVERFLOW. */
CLV_API clv_status clv_runtime_input_shape(const clv_runtime *r, uint32_t plan, uint32_t i, const clv_sizes *sizes,
                                           int64_t *shape, int64_t *strides);

/** Input i of a plan of the file, for a caller who makes it up: zeros in the shape and strides that clv_runtime_input_shape()
    gives, on the CPU, and in *data the memory to fill. A stranger's file may ask for any size, so these bytes count for
    `max_memory`, here and in runs that are given the tensor; without that limit, for half of the machine's memory. *made is 0
    before the first input of a call, and grows.
    @ownership the tensor is the caller's; *data lives as long.
    @errors CLV_E_LIMIT, before memory is taken; CLV_E_OVERFLOW; CLV_E_UNSUPPORTED for a quantised input. */
CLV_API clv_status clv_runtime_make_input(const clv_runtime *r, uint32_t plan, uint32_t i, const clv_sizes *sizes,
                                          int64_t *made, clv_tensor **out, void **data);

/** Sets a parameter or buffer by its state_dict name, or by a tied name. It is moved to the runtime's device; a model that
    writes it in place writes into the caller's tensor. Boundaries carry the version of the weights, which follows their
    content: bind the same tensors on both sides of a cut, including those that only the other side reads.
    @ownership the runtime keeps a reference of its own.
    @errors CLV_E_NOT_FOUND if the model has nothing of that name; CLV_E_TORCH. The next run refuses a tensor of another
    type or shape.
    @threads waits for runs that have begun; later runs see the new tensor. */
CLV_API clv_status clv_runtime_bind(clv_runtime *r, const char *name, const clv_tensor *t);

/** Name i of those that clv_runtime_bind() still has to set in a file without weights; NULL: there are no more. */
CLV_API const char *clv_runtime_unbound(const clv_runtime *r, uint32_t i);

/** Runs. The sizes of the inputs decide which plan of the file serves; sizes that none is proven for are refused unless
    `unproven` is set. One handle given twice is one tensor, which counts for a forward that asks whether two inputs are the
    same.
    @ownership each output is a new reference, the caller's. It may share the memory of an input or of the model, where the
    forward does so.
    @errors CLV_E_INPUT and CLV_E_LAYOUT for inputs that do not fit, sizes that are not proven, a tensor that is not bound;
    CLV_E_GUARD if the data leads elsewhere than at capture; CLV_E_UNSUPPORTED if it leads where the model returns outputs of
    other names than clv_runtime_output() has (clv_runtime_run_any() gives them); CLV_E_LIMIT; CLV_E_TORCH from an
    operator; CLV_E_MACHINE; CLV_E_OVERFLOW. A failed run gives no outputs; what the model wrote in place stays written.
    @threads runs may overlap; those of a model that changes its own tensors wait for each other. */
CLV_API clv_status clv_runtime_run(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                   clv_tensor **outputs, uint32_t noutputs);

/** The same for a model that does not always return the same names: *plan is the plan that served the call,
    clv_runtime_plan_output() has the names of its outputs. What is left of the room is NULL. */
CLV_API clv_status clv_runtime_run_any(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                       clv_tensor **outputs, uint32_t noutputs, uint32_t *plan);

/** The engine that runs it: "tape", "native". */
CLV_API const char *clv_runtime_engine(const clv_runtime *r);

/** Whether runs are made in a sandbox, another process (clv_sandbox). */
CLV_API bool clv_runtime_sandboxed(const clv_runtime *r);

/** Ends the runs that have begun at their next operator, with CLV_E_CANCELLED.
    @threads may be called while other threads run r. */
CLV_API void clv_runtime_cancel(clv_runtime *r);

/** [run] Waits until a device ("cuda:0") has finished its work; returns at once for the CPU.
    @errors CLV_E_TORCH. */
CLV_API clv_status clv_synchronize(const char *device);

/** [run] Seeds the random numbers of the whole process, on the CPU and on the devices in use.
    @errors CLV_E_TORCH. */
CLV_API clv_status clv_set_seed(uint64_t seed);

/** @} */

/* ---- boundaries: what crosses a cut ----------------------------------------------------------------------------- */

/** @defgroup boundaries Boundaries: what crosses a cut
 *  @{ */

/** What crosses from a prefix to a suffix: tensors by label, and the sizes of the call. It never changes. */
typedef struct clv_boundary clv_boundary;

/** Runs a prefix.
    @errors as clv_runtime_run(); CLV_E_INVALID for a runtime that is no prefix. */
CLV_API clv_status clv_runtime_run_prefix(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                          clv_boundary **out);

/** Runs a suffix on a boundary of the same split (clv_artifact_split_id()), which may be used again.
    @errors as clv_runtime_run(); CLV_E_INPUT for a boundary of another split, plan or, unless any_weights is set, weights;
    CLV_E_INVALID for a runtime that is no suffix. */
CLV_API clv_status clv_runtime_run_suffix(const clv_runtime *r, const clv_boundary *b, clv_tensor **outputs,
                                          uint32_t noutputs);

/** As clv_runtime_run_any(), of a suffix. */
CLV_API clv_status clv_runtime_run_suffix_any(const clv_runtime *r, const clv_boundary *b, clv_tensor **outputs,
                                              uint32_t noutputs, uint32_t *plan);

/** Releases a boundary. */
CLV_API void clv_boundary_free(clv_boundary *b);

/** Number of tensors that cross. */
CLV_API uint32_t clv_boundary_count(const clv_boundary *b);

/** Label of tensor i, as in plan text ("%7"), or NULL. */
CLV_API const char *clv_boundary_label(const clv_boundary *b, uint32_t i);

/** Tensor i, or NULL. */
CLV_API const clv_tensor *clv_boundary_tensor(const clv_boundary *b, uint32_t i);

/** The size that a symbol ("B") had in the prefix; -1: the boundary does not have it. */
CLV_API int64_t clv_boundary_size(const clv_boundary *b, const char *symbol);

/** How a boundary is written. */
typedef struct clv_pack_options {
	size_t size; /**< sizeof(clv_pack_options) */
	const char
		*compress;    /**< "fp16", "bf16", "int8", "q1" to "q8" (bits per element, less after zstd); "zstd", which loses
	                           nothing; NULL: as it is (docs/payload.md) */
	bool no_checksum; /**< leave out the digests that detect changed bytes */
} clv_pack_options;

/* clang-format off */
/** The defaults: `clv_pack_options o = CLV_PACK_OPTIONS_INIT;` */
#define CLV_PACK_OPTIONS_INIT {.size = sizeof(clv_pack_options)}
/* clang-format on */

/** The boundary as bytes, to be sent. The Python package writes and reads the same.
    @errors CLV_E_UNSUPPORTED for tensors without plain memory, and for zstd in a build without it; CLV_E_INVALID for an
    unknown compression, and for numbers that are not finite with int8 or q1 to q8; CLV_E_OVERFLOW; CLV_E_TORCH. */
CLV_API clv_status clv_boundary_pack(const clv_boundary *b, const clv_pack_options *options, void **out, size_t *size);

/** The same bytes as a file, which appears whole or not at all.
    @errors as clv_boundary_pack(); CLV_E_IO. */
CLV_API clv_status clv_boundary_save(const clv_boundary *b, const clv_pack_options *options, const char *path);

/** Reads a boundary from bytes, which are not kept, and compares digests where there are any.
    @errors CLV_E_PARSE for damaged bytes; CLV_E_UNSUPPORTED for another version, and for zstd in a build without it;
    CLV_E_OVERFLOW. */
CLV_API clv_status clv_boundary_unpack(const void *data, size_t size, clv_boundary **out);

/** Reads a boundary from a file.
    @errors as clv_boundary_unpack(); CLV_E_IO. */
CLV_API clv_status clv_boundary_load(const char *path, clv_boundary **out);

/** What compression did to a tensor. Losses are 0 where nothing is lost, infinite where a number became infinite. */
typedef struct clv_loss {
	size_t size;        /**< sizeof(clv_loss) */
	const char *method; /**< "int8"; NULL: it was not compressed */
	int64_t bytes;      /**< in the file, including memory shared with others; -1: the boundary was not read */
	double max_abs;     /**< the largest difference */
	double relative;    /**< mean relative difference over elements other than 0 */
	double l2;          /**< l2 norm of the differences over that of the tensor; NaN: not known */
} clv_loss;

/** What compression cost tensor i of a boundary that was unpacked or loaded. */
CLV_API clv_status clv_boundary_loss(const clv_boundary *b, uint32_t i, clv_loss *out);

/** @} */

/* ==== experimental =============================================================================================== */

#ifdef CLV_EXPERIMENTAL

/* Everything from here on may change in any release. */

/* ---- generated source ------------------------------------------------------------------------------------------- */

/** @defgroup source Generated Python source (experimental)
 *  @{ */

/** Options of clv_plan_source(). */
typedef struct clv_source_options {
	size_t size;            /**< sizeof(clv_source_options) */
	uint32_t first, end;    /**< nodes first … end-1; end 0: to the last */
	const char *class_name; /**< of the generated class; NULL: "Segment" */
	bool del;               /**< delete values after their last use */
	const clv_artifact
		*file; /**< that the plan is of: it knows what the forward asked of its inputs, which the source then
	                               asks too; NULL: nothing is known */
} clv_source_options;

/* clang-format off */
/** The defaults: `clv_source_options o = CLV_SOURCE_OPTIONS_INIT;` */
#define CLV_SOURCE_OPTIONS_INIT {.size = sizeof(clv_source_options)}
/* clang-format on */

/** Python source of a plan, or of a part of it: an nn.Module that needs only torch. Parameters and buffers have the model's
    names; constants are buffers const_0, const_1, … for the caller to load. forward returns a tuple.
    @errors CLV_E_UNSUPPORTED for a node that cannot be written (Python code, packed weights). */
CLV_API clv_status clv_plan_source(const clv_plan *p, const clv_source_options *options, char **out);

/** Options of clv_plan_stages_source(). */
typedef struct clv_stages_options {
	size_t size;                     /**< sizeof(clv_stages_options) */
	const uint32_t *ends;            /**< stage i is nodes ends[i-1] … ends[i]-1; the last one is the node count */
	uint32_t nstages;                /**< at least 1 */
	const char *const *devices;      /**< per stage: "cuda:1"; NULL: where the model was */
	clv_sizes sizes;                 /**< that the configuration shows */
	const char *batch_symbol;        /**< the symbol that is the batch; NULL: there is none */
	const char *const *basic_blocks; /**< recorded in the configuration */
	uint32_t nbasic_blocks;          /**< length of basic_blocks */
	uint32_t depth;                  /**< recorded in the configuration */
	bool del;                        /**< delete values after their last use */
	const clv_artifact *file;        /**< as in clv_source_options */
} clv_stages_options;

/* clang-format off */
/** The defaults, without stages: `clv_stages_options o = CLV_STAGES_OPTIONS_INIT;` */
#define CLV_STAGES_OPTIONS_INIT {.size = sizeof(clv_stages_options)}
/* clang-format on */

/** Python source of a pipeline that needs only torch: a class per stage, a Pipeline that chains them, and
    create_pipeline_configuration(), which describes what goes in and out of each.
    @errors CLV_E_INVALID for stages that the plan does not have; CLV_E_UNSUPPORTED for a node that cannot be written, or
    for state that two stages would share. */
CLV_API clv_status clv_plan_stages_source(const clv_plan *p, const clv_stages_options *options, char **out);

/** @} */

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

/** @defgroup packing Packed weights for the native engine (experimental)
 *  @{ */

/** Options of clv_artifact_pack(). */
typedef struct clv_packing_options {
	size_t size;             /**< sizeof(clv_packing_options) */
	const char *const *isas; /**< instruction sets: "avx2", "avx512", "neon", "base". NULL: that of this machine */
	uint32_t nisas;          /**< length of isas */
	uint8_t sandbox; /**< CLV_SANDBOX_OFF: also pack a file that nobody vouches for, in this process; there is no other
	                       way (a clv_sandbox) */
} clv_packing_options;

/* clang-format off */
/** The defaults: `clv_packing_options o = CLV_PACKING_OPTIONS_INIT;` */
#define CLV_PACKING_OPTIONS_INIT {.size = sizeof(clv_packing_options)}
/* clang-format on */

/** Writes the artifact to a file that also has its weights as the kernels of the native engine want them: a
    runtime starts without packing them, and processes share the memory. Any machine can pack for any instruction set. Packed
    weights that the artifact has already are left out; what does not fit the machine, the weights or the library later on is
    packed in memory again. The data of a file is checked first. The file is written whole or not at all.
    @errors CLV_E_PARSE for damaged data; CLV_E_UNSUPPORTED for a model that the native engine does not take, and for a file
    that nobody vouches for; CLV_E_INVALID for an unknown instruction set or
    a file without weights; CLV_E_IO. */
CLV_API clv_status clv_artifact_pack(const clv_artifact *a, const clv_packing_options *options, const char *path);

/** The i-th instruction set that an artifact has packed weights for: its name, which lives with the artifact, the
    number of pieces, and their bytes. False: there are no more. */
CLV_API bool clv_artifact_packed(const clv_artifact *a, uint32_t i, const char **isa, uint32_t *pieces, int64_t *bytes);

/** Packed weights of a runtime, so far: weights are packed, or found in the file, when a run first needs them. */
typedef struct clv_packing_state {
	size_t size;       /**< sizeof(clv_packing_state) */
	uint32_t found;    /**< pieces of the file that it uses */
	uint32_t repacked; /**< packed in memory: the file has none for this machine, these weights and this library */
	uint32_t damaged;  /**< of those: the file has it, and its bytes are not what their digest says */
} clv_packing_state;

/** What a runtime of the native engine uses of the packed weights of its file. All zero for other engines. */
CLV_API clv_status clv_runtime_packing(const clv_runtime *r, clv_packing_state *out);

/** [run] Runs each plan of a model file by the native engine and on the tape, on the same inputs at the first sizes that the plan was
    recorded at, and compares what they give, within the tolerance of `optimize="fast"`. Inputs are made up: floats from 0 to 1,
    integers 0 or 1. `options`, which may be NULL, say how the file is loaded; its engine does not count. The largest difference
    goes to `worst`, unless that is NULL.
    @errors CLV_E_VERIFY for a difference, with the first node that gives other numbers on the same inputs; CLV_E_GUARD where the
    model asks its inputs for something that made-up ones are not, which says nothing about the engine; those of
    clv_runtime_create() and clv_runtime_run().
    @threads any */
CLV_API clv_status clv_artifact_compare(const clv_artifact *a, const clv_runtime_options *options, double *worst);

/** @} */

/* ---- graphs: the nodes and values of a plan --------------------------------------------------------------------- */

/** @defgroup graphs Graphs: the nodes and values of a plan (experimental)
 *
 *  Nodes and values are numbered from 0. Nodes are in the order in which they run.
 *  @{ */

/** What a value is. */
typedef enum clv_value_kind {
	CLV_VALUE_INPUT,  /**< of the plan */
	CLV_VALUE_PARAM,  /**< a parameter of the model, by its state_dict name */
	CLV_VALUE_BUFFER, /**< a registered buffer */
	CLV_VALUE_ATTR,   /**< a tensor attribute of a module that is neither */
	CLV_VALUE_CONST,  /**< a tensor whose data goes with the plan */
	CLV_VALUE_OBJECT, /**< not a tensor: packed weights, a generator, Python code */
	CLV_VALUE_RESULT  /**< of a node */
} clv_value_kind;

/** One operator call. */
typedef struct clv_node {
	size_t size;             /**< sizeof(clv_node) */
	const char *name;        /**< "relu_3": unique, what "after:" takes */
	const char *op;          /**< "aten::add.Tensor" */
	const char *module;      /**< path of the module it ran in: "layer1.0.conv1"; "": the root, or none */
	const char *source;      /**< "model.py:12", or "" */
	const uint32_t *inputs;  /**< values it takes, as often as it takes them */
	const uint32_t *results; /**< values it gives */
	const uint32_t *writes;  /**< values it writes in place */
	uint32_t ninputs;        /**< length of inputs */
	uint32_t nresults;       /**< length of results */
	uint32_t nwrites;        /**< length of writes */
} clv_node;

/** One value. */
typedef struct clv_value {
	size_t size;             /**< sizeof(clv_value) */
	const char *label;       /**< as in plan text: "%3", "@conv1.weight", "#0" */
	const char *name;        /**< of an input or a tensor of the model; type of an object; else "" */
	const char *type;        /**< "tensor", "bool", "int", "float", "complex", "str", "object" */
	const char *dtype;       /**< of a tensor: "f32"; else "" */
	const char *device;      /**< of a tensor: "cpu", "cuda:0"; else "" */
	const char *const *dims; /**< "3", "B", "4*B+1": as in plan text */
	const char *const *tied; /**< other names of the same parameter */
	clv_value_kind kind;     /**< what it is */
	uint32_t ndim;           /**< length of dims */
	uint32_t ntied;          /**< length of tied */
	bool trainable;          /**< a parameter that requires grad */
} clv_value;

/** The nodes and values of one plan, which must outlive it. It never changes. */
typedef struct clv_graph clv_graph;

/** Describes all nodes (clv_plan_node_count()) and values. Linear in the plan. */
CLV_API clv_status clv_graph_create(const clv_plan *p, clv_graph **out);

/** Releases a graph. */
CLV_API void clv_graph_free(clv_graph *g);

/** Number of values. */
CLV_API uint32_t clv_graph_value_count(const clv_graph *g);

/** Describes node i. */
CLV_API clv_status clv_graph_node(const clv_graph *g, uint32_t i, clv_node *out);

/** Describes value i. */
CLV_API clv_status clv_graph_value(const clv_graph *g, uint32_t i, clv_value *out);

/** Why the engine of that name, "native" for instance, does not run node i; NULL in *why: it does.
    @ownership *why lives as long as the plan.
    @errors CLV_E_NOT_FOUND if this library has no such engine
    @threads any */
CLV_API clv_status clv_plan_takes(const clv_plan *p, const char *engine, uint32_t i, const char **why);

/** @} */

/* ---- exact cuts ------------------------------------------------------------------------------------------------- */

/** @defgroup exact Exact cuts (experimental)
 *  @{ */

/** Options of clv_frontiers_exact(). Names are module paths and node names, as after "after:". */
typedef struct clv_exact_options {
	size_t size;                    /**< sizeof(clv_exact_options) */
	const char *const *must_prefix; /**< none: the nodes with the first 20 % of the work in the plan's order */
	uint32_t nmust_prefix;          /**< length of must_prefix */
	const char *const *must_suffix; /**< none: the nodes beyond 80 % of the work */
	uint32_t nmust_suffix;          /**< length of must_suffix */
} clv_exact_options;

/* clang-format off */
/** The defaults: `clv_exact_options o = CLV_EXACT_OPTIONS_INIT;` */
#define CLV_EXACT_OPTIONS_INIT {.size = sizeof(clv_exact_options)}
/* clang-format on */

/** The cut with the fewest bytes of all that keep the order of effects, not only of those at a position of the plan's order;
    among equals the smallest prefix. *plan_out is the plan with the nodes of the prefix first, cut at frontier
    *position_out. Inputs and values from outside keep their numbers.
    @errors CLV_E_NOT_FOUND for an unknown name; CLV_E_UNSUPPORTED with the reason if there is no such cut; CLV_E_OVERFLOW. */
CLV_API clv_status clv_frontiers_exact(const clv_frontiers *f, const clv_exact_options *options, clv_plan **plan_out,
                                       uint32_t *position_out);

/** @} */

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

/** @defgroup pipe Pipelines: a graph of work cut into stages, stages put on devices (experimental)
 *
 *  The graph is JSON, or a plan, which then comes back with its nodes stage by stage. Stages are in a topological order. A
 *  stage talks only to the next one; the stages between relay what skips them.
 *  @{ */

/** Nodes in stages, stages on devices, and what that costs. It never changes. */
typedef struct clv_partition clv_partition;

/** What to partition for. */
typedef struct clv_partition_options {
	size_t size;        /**< sizeof(clv_partition_options) */
	const char *method; /**< "pipedream", "exact", … (docs/pipe.md); NULL: "auto", which keeps the best of several */
	uint32_t k;         /**< number of devices; each gets at least one stage */
	uint64_t seed;      /**< the same seed gives the same partition, unless `seconds` ends the search */
	const double *speeds;         /**< k numbers: 2 is twice as fast as the graph's times say; NULL: all are 1 */
	const int64_t *memory_limits; /**< k numbers of bytes, 0: no limit; NULL: no limits */
	double bandwidth;             /**< bytes per second of every link; 0: links cost nothing */
	double latency_us;            /**< of one transfer */
	const char *schedule;         /**< "gpipe", "1f1b", "interleaved"; NULL: "1f1b" */
	uint32_t microbatches;        /**< per batch */
	bool inference;               /**< there is no backward */
	bool recompute;               /**< the backward repeats the forward, so that a stage keeps only its inputs */
	double param_copies;          /**< memory per byte of parameters; 0: 2 (weights, gradients), 1 for inference */
	uint32_t max_stages;          /**< at least k; 0: as many as the method likes */
	double seconds;               /**< start no attempt after this; 0: no limit */
	const char *objective;        /**< what "auto" keeps: "bottleneck" (NULL), the shortest time of the slowest device;
	                                   "throughput", the most micro-batches per second under the schedule; "simple",
	                                   the same with one stage a device, unless several give 5 % more */
} clv_partition_options;

/* clang-format off */
/** The defaults: `clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;` */
#define CLV_PARTITION_OPTIONS_INIT {.size = sizeof(clv_partition_options), .k = 1, .microbatches = 8}
/* clang-format on */

/** Partitions a graph given as JSON (docs/command-line.md, partition): nodes with times and bytes, and edges.
    @errors CLV_E_PARSE for text that is no graph; CLV_E_INVALID for a cycle, edges to nowhere, negative weights, fewer nodes
    than devices; CLV_E_OVERFLOW; CLV_E_NOT_FOUND for an unknown method or schedule; CLV_E_UNSUPPORTED if no partition within
    the memory limits was found. */
CLV_API clv_status clv_partition_graph(const char *json, size_t n, const clv_partition_options *options,
                                       clv_partition **out);

/** How a plan is folded into blocks, the nodes of the graph that is partitioned, and what they cost. */
typedef struct clv_plan_partition_options {
	size_t size;                            /**< sizeof(clv_plan_partition_options) */
	const clv_partition_options *partition; /**< NULL: the defaults, one device */
	uint32_t depth;                         /**< modules this deep are not opened: "a.b" is 2 deep */
	const char *const *whole;               /**< classes or paths of modules that are not opened either */
	uint32_t nwhole;                        /**< length of whole */
	clv_sizes sizes;                        /**< at which costs are estimated */
	bool ties_together;                     /**< nodes that read the same parameter stay in one stage */
	bool keep_order;                        /**< stages are cut from the plan in its own order */
	const char *profile;                    /**< JSON of a profile of these blocks (docs/pipe.md); NULL: an estimate */
	size_t profile_size;                    /**< bytes of it */
	double flops_per_s;                     /**< for the estimate: what a device of speed 1 reaches */
	double bytes_per_s;                     /**< likewise, of its memory */
	double node_us;                         /**< likewise, the time to start an operator */
} clv_plan_partition_options;

/* clang-format off */
/** The defaults: all modules are opened, costs are estimated for a data-centre GPU. */
#define CLV_PLAN_PARTITION_OPTIONS_INIT \
	{.size = sizeof(clv_plan_partition_options), .depth = UINT32_MAX, .flops_per_s = 100e12, \
	 .bytes_per_s = 1e12, .node_us = 5}
/* clang-format on */

/** Partitions a plan. It is folded into *blocks* first: layers, modules that are wanted whole, operators between them, and
    more where a cut inside would be wrong. Every boundary between stages is safe to cut. The partition does not need the
    plan afterwards.
    @errors as clv_partition_graph(); CLV_E_INVALID for fewer blocks than devices, for a profile of other blocks or without
    the backward that is needed; CLV_E_PARSE for text that is no profile; CLV_E_NOT_FOUND for a symbol or module that the
    plan does not have; CLV_E_INPUT for sizes at which a tensor would have a negative one. */
CLV_API clv_status clv_plan_partition(const clv_plan *p, const clv_plan_partition_options *options,
                                      clv_partition **out);

/** Releases a partition. */
CLV_API void clv_partition_free(clv_partition *p);

/** The plan with its nodes stage by stage: stage i is nodes ends[i-1] … ends[i]-1. ends may be NULL. NULL: the partition is
    not of a plan. */
CLV_API const clv_plan *clv_partition_plan(const clv_partition *p, const uint32_t **ends);

/** Number of stages. */
CLV_API uint32_t clv_partition_stage_count(const clv_partition *p);

/** Number of devices. */
CLV_API uint32_t clv_partition_device_count(const clv_partition *p);

/** The device of a stage, or CLV_NONE. */
CLV_API uint32_t clv_partition_stage_device(const clv_partition *p, uint32_t stage);

/** A table for people: stages, devices, bounds, predictions for the schedule. */
CLV_API clv_status clv_partition_table(const clv_partition *p, char **out);

/** The result as one line of JSON (docs/command-line.md, partition). */
CLV_API clv_status clv_partition_json(const clv_partition *p, char **out);

/** The graph as JSON that clv_partition_graph() reads. There a node makes one value: of a plan, out_bytes is the sum of what
    other blocks read, every edge carries all of it, and inputs of the model have no bytes. Where blocks must keep an order
    though nothing passes between them, there is an edge too. */
CLV_API clv_status clv_partition_graph_json(const clv_partition *p, char **out);

/** What each device does, a line each: "device 0: F0.0 F0.1 B0.0 …" is kind, stage and micro-batch.
    @errors CLV_E_OVERFLOW if stages times micro-batches are too many to lay out. */
CLV_API clv_status clv_partition_timeline(const clv_partition *p, char **out);

/** @} */

/* ---- pictures and pages ------------------------------------------------------------------------------------------ */

/** @defgroup pictures Pictures and pages (experimental)
 *  @{ */

#define CLV_DOT_ALL_MODULES UINT32_MAX /**< no module is too deep to be opened */

/** Options of clv_plan_dot(). */
typedef struct clv_dot_options {
	size_t size;                 /**< sizeof(clv_dot_options) */
	uint32_t frontier;           /**< the one to mark; CLV_NONE: none */
	const char *detail;          /**< "module": a call of a module is one node; "operation": each operation is */
	uint32_t max_module_depth;   /**< modules this deep are one node ("a.b" is 2 deep), or CLV_DOT_ALL_MODULES; with
	                                  "operation": clusters are nested this deep */
	const char *direction;       /**< "TB", "BT", "LR", "RL" */
	bool show_operation_targets; /**< operators: aten::conv2d */
	bool show_debug_markers;     /**< in place, view, random …; dtypes, bytes, buffers */
	bool show_node_indices;      /**< numbers and names of nodes, as "after:" takes them */
	clv_sizes sizes;             /**< at which bytes are counted */
} clv_dot_options;

/* clang-format off */
/** The defaults: `clv_dot_options o = CLV_DOT_OPTIONS_INIT;` */
#define CLV_DOT_OPTIONS_INIT \
	{.size = sizeof(clv_dot_options), .frontier = CLV_NONE, .detail = "module", .max_module_depth = 4, \
	 .direction = "TB"}
/* clang-format on */

/** A picture of a plan in the DOT language of Graphviz. The same plan and options give the same text. Linear in the plan. An
    unsafe cut is drawn too, with the reason.
    @errors CLV_E_NOT_FOUND for a symbol that the plan does not have. */
CLV_API clv_status clv_plan_dot(const clv_plan *p, const clv_dot_options *options, char **out);

/** Options of clv_plan_html(): what the page opens with. */
typedef struct clv_html_options {
	size_t size;                    /**< sizeof(clv_html_options) */
	const char *title;              /**< heading; NULL: the class of the model */
	clv_sizes sizes;                /**< at which bytes and work are counted */
	double bandwidth_bytes_per_s;   /**< 0: 125e6, which is 1 Gbit/s */
	double prefix_flops_per_s;      /**< 0: 1e12 */
	double suffix_flops_per_s;      /**< 0: 1e12 */
	uint32_t frontier;              /**< the one that was chosen; CLV_NONE: none */
	const clv_partition *partition; /**< stages of this very plan to show; NULL: none */
} clv_html_options;

/* clang-format off */
/** The defaults: `clv_html_options o = CLV_HTML_OPTIONS_INIT;` */
#define CLV_HTML_OPTIONS_INIT {.size = sizeof(clv_html_options), .frontier = CLV_NONE}
/* clang-format on */

/** One self-contained HTML file: the graph of modules, all frontiers with what they cost over a link that the reader sets,
    stages if they are given. The same arguments give the same bytes. Linear in the plan.
    @errors CLV_E_INVALID for options that do not fit the plan; CLV_E_NOT_FOUND for a symbol that it does not have. */
CLV_API clv_status clv_plan_html(const clv_plan *p, const clv_html_options *options, char **out);

/** @} */

/* ---- differences ------------------------------------------------------------------------------------------------- */

/** @defgroup differences Differences between plans and between files (experimental)
 *  @{ */

/** How the data of tensors is compared. */
typedef enum clv_diff_weights {
	CLV_DIFF_EXACT,  /**< read tensors with different digests: how many elements differ, and by how much */
	CLV_DIFF_DIGEST, /**< compare digests, read no data */
	CLV_DIFF_NONE    /**< do not compare data */
} clv_diff_weights;

/** Options of clv_plan_diff() and clv_artifact_diff(). */
typedef struct clv_diff_options {
	size_t size;              /**< sizeof(clv_diff_options) */
	bool json;                /**< one JSON object (docs/diff.md) instead of a page for people */
	uint32_t limit;           /**< most items per section; 0: all. What is left out is counted */
	clv_diff_weights weights; /**< how the data of tensors is compared */
} clv_diff_options;

/* clang-format off */
/** The defaults: `clv_diff_options o = CLV_DIFF_OPTIONS_INIT;` */
#define CLV_DIFF_OPTIONS_INIT {.size = sizeof(clv_diff_options)}
/* clang-format on */

/** What changed from plan a to plan b: symbols, inputs, outputs, modules, parameters, nodes, guards, source lines. Nodes are
    matched by what they are, not by number. *differ is false exactly if the plans are equal; the page is then empty. */
CLV_API clv_status clv_plan_diff(const clv_plan *a, const clv_plan *b, const clv_diff_options *options, char **out,
                                 bool *differ);

/** The same for two files: what they say about themselves, their plans and their tensors. Tensors with equal digests count
    as equal.
    @errors CLV_E_PARSE for data that cannot be read; CLV_E_OVERFLOW. */
CLV_API clv_status clv_artifact_diff(const clv_artifact *a, const clv_artifact *b, const clv_diff_options *options,
                                     char **out, bool *differ);

/** @} */

/* ---- arrays: tensors of files as plain memory -------------------------------------------------------------------- */

/** @defgroup arrays Arrays: tensors of files as plain memory (experimental)
 *  @{ */

/** A row-major tensor with a name. */
typedef struct clv_array {
	size_t size;          /**< sizeof(clv_array) */
	const char *name;     /**< "" for that of an .npy file */
	const char *dtype;    /**< "f32", as in plan text */
	uint32_t ndim;        /**< number of dimensions */
	const int64_t *shape; /**< their sizes */
	const void *data;     /**< need not be aligned; may be NULL if there are no elements */
	size_t bytes;         /**< of data */
} clv_array;

/** Tensors of a file. They never change. */
typedef struct clv_arrays clv_arrays;

/** Reads a safetensors file, or an .npy file (versions 1 to 3), which has one tensor without a name.
    @errors CLV_E_IO; CLV_E_PARSE for a damaged file; CLV_E_UNSUPPORTED for types that tensors do not have (Python objects,
    records, big-endian numbers); CLV_E_OVERFLOW. */
CLV_API clv_status clv_arrays_load(const char *path, clv_arrays **out);

/** Releases arrays. */
CLV_API void clv_arrays_free(clv_arrays *a);

/** Number of arrays. */
CLV_API uint32_t clv_arrays_count(const clv_arrays *a);

/** Describes array i. */
CLV_API clv_status clv_arrays_get(const clv_arrays *a, uint32_t i, clv_array *out);

/** The number of the array with this name, or CLV_NONE. */
CLV_API uint32_t clv_arrays_find(const clv_arrays *a, const char *name);

/** Writes arrays as a safetensors file, whole or not at all.
    @errors CLV_E_INVALID for a name given twice, or bytes that do not fit the shape; CLV_E_UNSUPPORTED for a dtype that the
    format does not have; CLV_E_IO; CLV_E_OVERFLOW. */
CLV_API clv_status clv_arrays_save(const clv_array *arrays, uint32_t n, const char *path);

/** @} */

/* ---- programs: plans that run [run] ----------------------------------------------------------------------------- */

/** @defgroup programs Programs: plans that run (experimental) [run]
 *  @{ */

/** A plan, or a part of it, ready to run. The plan must outlive it. */
typedef struct clv_program clv_program;

/** Options of clv_program_create(). */
typedef struct clv_program_options {
	size_t size;          /**< sizeof(clv_program_options) */
	uint32_t first, end;  /**< nodes first … end-1; end 0: to the last */
	bool debug;           /**< compare every result with the plan and name the first that differs */
	bool inference;       /**< run without autograd, whatever the caller's mode */
	const char *optimize; /**< as in clv_runtime_options */
	int threads;          /**< as in clv_runtime_options */
} clv_program_options;

/* clang-format off */
/** The defaults: `clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;` */
#define CLV_PROGRAM_OPTIONS_INIT {.size = sizeof(clv_program_options), .inference = true}
/* clang-format on */

/** Makes a plan, or a part of it, ready to run.
    @errors CLV_E_UNSUPPORTED for a plan that cannot run from C (Python code, an operator that PyTorch does not have, a part
    that needs what another part reads from data); CLV_E_INVALID for nodes that do not exist; CLV_E_TORCH. */
CLV_API clv_status clv_program_create(const clv_plan *p, const clv_program_options *options, clv_program **out);

/** Releases a program and its references to bound tensors. */
CLV_API void clv_program_free(clv_program *g);

/** Binds a parameter, buffer or constant by its name in plan text ("conv1.weight", "#0"), before the first run.
    @ownership the program keeps a reference of its own.
    @errors CLV_E_NOT_FOUND if the program reads nothing of that name.
    @threads not while g is used. */
CLV_API clv_status clv_program_bind(clv_program *g, const char *name, const clv_tensor *t);

/** Number of tensors that clv_program_run() takes. */
CLV_API uint32_t clv_program_input_count(const clv_program *g);

/** Number of tensors that clv_program_run() gives: those of the plan's output, or what the following part takes; then what
    tensors of the model are re-bound to in this part, in the order of the plan's rebinds. */
CLV_API uint32_t clv_program_output_count(const clv_program *g);

/** Runs, as clv_runtime_run().
    @ownership each output is a new reference, the caller's.
    @errors as clv_runtime_run().
    @threads runs may overlap, unless the plan writes to its inputs or to tensors of the model. */
CLV_API clv_status clv_program_run(const clv_program *g, const clv_tensor *const *inputs, uint32_t ninputs,
                                   clv_tensor **outputs, uint32_t noutputs);

/** @} */

/* ---- compiled parts of a file ------------------------------------------------------------------------------------ */

/** @defgroup compiled Compiled parts of a file (experimental)
 *
 *  A traced artifact has *segments*, ranges of nodes that are also there as compiled code. The operators stay in the file and
 *  run where the code cannot: on another CPU, with another torch, at other sizes.
 *  @{ */

/** A compiled segment of a plan. */
typedef struct clv_segment_info {
	size_t size;          /**< sizeof(clv_segment_info) */
	const char *backend;  /**< what compiled it: "inductor" */
	uint32_t first, end;  /**< it stands for nodes first … end-1 of the plan */
	int64_t bytes;        /**< of its code */
	uint32_t nsymbols;    /**< symbols of the plan */
	const int64_t *sizes; /**< lowest and highest size of each symbol that it was compiled for, in turn */
} clv_segment_info;

/** Number of compiled segments of a plan. */
CLV_API uint32_t clv_artifact_segment_count(const clv_artifact *a, uint32_t plan);

/** Describes segment i of a plan. */
CLV_API clv_status clv_artifact_segment(const clv_artifact *a, uint32_t plan, uint32_t i, clv_segment_info *out);

/** Need k of segment i: what the code requires to run ("torch", "2.13.0"); false: there are no more. */
CLV_API bool clv_artifact_segment_need(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t k, const char **key,
                                       const char **text);

/** Fact k about segment i: what was measured when it was compiled ("error", "1.2e-7"); false: there are no more. */
CLV_API bool clv_artifact_segment_fact(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t k, const char **key,
                                       const char **text);

/** Node i of those that were to be compiled and are not, with the reason; false: there are no more. */
CLV_API bool clv_artifact_fallback(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t *node,
                                   const char **reason);

/** Options of clv_artifact_report(). */
typedef struct clv_report_options {
	size_t size;                /**< sizeof(clv_report_options) */
	bool json;                  /**< JSON instead of text for people */
	uint32_t plan;              /**< which plan of the file */
	const char *const *on_tape; /**< per segment: why it does not run here, or NULL; NULL: not known */
	double eager_ms;            /**< a run of the whole in PyTorch; negative: what the file says, if it does */
	double tape_ms;             /**< likewise, operator by operator */
	double traced_ms;           /**< likewise, with compiled parts */
} clv_report_options;

/* clang-format off */
/** The defaults: `clv_report_options o = CLV_REPORT_OPTIONS_INIT;` */
#define CLV_REPORT_OPTIONS_INIT {.size = sizeof(clv_report_options), .eager_ms = -1, .tape_ms = -1, .traced_ms = -1}
/* clang-format on */

/** What is compiled of a traced file, what is not and why, and how much time it saves. *covered, which may be NULL, is the
    share of the work that is compiled.
    @errors CLV_E_NOT_FOUND for a file that was not traced. */
CLV_API clv_status clv_artifact_report(const clv_artifact *a, const clv_report_options *options, double *covered,
                                       char **out);

/** As clv_plan_html() for a plan of a file, with its segments and the reasons why other nodes are not compiled. Of the report
    options, `plan` and `on_tape` are read.
    @errors as clv_plan_html(). */
CLV_API clv_status clv_artifact_html(const clv_artifact *a, const clv_report_options *report,
                                     const clv_html_options *page, char **out);

/** @} */

/* ---- tracing, profiling, sandboxes ------------------------------------------------------------------------------ */

/** @defgroup tracing Tracing, profiling, sandboxes (experimental)
 *  @{ */

/** Inputs of the model, as clv_runtime_run() takes them. */
typedef struct clv_trace_call {
	const clv_tensor *const *inputs; /**< borrowed */
	uint32_t ninputs;                /**< length of inputs */
} clv_trace_call;

/** Options of clv_trace(). */
typedef struct clv_trace_options {
	size_t size;             /**< sizeof(clv_trace_options) */
	const char *backend;     /**< one of CLV_BACKEND_LIST(), or one that was added */
	const char *const *args; /**< for the compiler (docs/trace.md) */
	uint32_t nargs;          /**< length of args */
	double timeout;          /**< seconds that the compiler has for one segment; 0: no limit */
	const char *workdir;     /**< keep what compilers read and wrote here, a folder per segment; NULL: keep nothing */
	const char *cache;       /**< folder of what was compiled before; NULL: the user's own; "off": none */
	uint32_t parallel;       /**< compilers at a time; 0: one per core */
	const char *python;      /**< interpreter that has Cleave; NULL: $CLEAVE_PYTHON, or python3 */
	const char *const *env;  /**< more environment for compilers: "NAME=text", ends with NULL; may be NULL */
	uint32_t minimum_segment_size; /**< smaller segments are not compiled */
	uint32_t max_subgraph_count;   /**< most segments; 0: no limit */
	bool fallback;                 /**< nodes that are not compiled run as operators; false: they are an error */
	double support_threshold;      /**< 0 to 1: share of the operators that must be compiled */
	bool dynamic;                /**< compile for all sizes of the plans' symbols; false: for those of the first call */
	bool dryrun;                 /**< choose segments, compile nothing */
	const char *const *ops;      /**< operators that are not compiled ("aten::sort", "aten::add.Tensor") */
	uint32_t nops;               /**< length of ops */
	const char *const *modules;  /**< modules that are not compiled: paths, or names of classes */
	uint32_t nmodules;           /**< length of modules */
	double rtol;                 /**< tolerance relative to the largest number of a tensor; negative: by dtype */
	double atol;                 /**< absolute tolerance; negative: by dtype */
	const clv_trace_call *calls; /**< on which compiled parts are compared; the first is the example */
	uint32_t ncalls;             /**< at least one */
	/** Returns NULL if node `node` may be compiled, else the reason why not, which is copied. May be NULL. */
	const char *(*select)(void *ctx, const clv_plan *p, uint32_t node);
	/** Reports progress; returning false cancels. May be NULL. */
	bool (*progress)(void *ctx, const char *what, uint32_t done, uint32_t total);
	/** Called with a line about each finding. May be NULL. */
	void (*log)(void *ctx, const char *line);
	void *ctx;        /**< for the three functions, which are called on the calling thread */
	bool keep_slower; /**< keep compiled segments that are slower than the operators, for files that run elsewhere */
	const char *optimize; /**< how the operators run that segments are timed against: as in clv_runtime_options */
	uint8_t sandbox; /**< CLV_SANDBOX_OFF: also trace a file that nobody vouches for, in this process; there is no other
	                       way (a clv_sandbox) */
} clv_trace_options;

/* clang-format off */
/** The defaults: `clv_trace_options o = CLV_TRACE_OPTIONS_INIT;` */
#define CLV_TRACE_OPTIONS_INIT \
	{.size = sizeof(clv_trace_options), .backend = "inductor", .minimum_segment_size = 2, .fallback = true, \
	 .rtol = -1, .atol = -1}
/* clang-format on */

/** [run] Compiles what can be compiled of an artifact that holds a whole, uncut model. Every compiled segment is compared with its
    operators on all calls; one that fails or differs is narrowed down until only the operator to blame is left out. Segments
    that are slower than their operators are dropped. The new artifact keeps what it needs of `a`; clv_artifact_report()
    describes the result.
    @errors CLV_E_NOT_FOUND for an unknown back end; CLV_E_UNSUPPORTED without fallback and CLV_E_INVALID below the threshold,
    with what is not compiled; CLV_E_UNSUPPORTED for a file that nobody vouches for; CLV_E_TIMEOUT; CLV_E_CANCELLED; CLV_E_IO if there is no room to work; CLV_E_INPUT for calls
    that do not fit; CLV_E_TORCH. */
CLV_API clv_status clv_trace(const clv_artifact *a, const clv_trace_options *options, clv_artifact **out);

/** A compiled segment in a runtime. */
typedef struct clv_segment_state {
	size_t size;         /**< sizeof(clv_segment_state) */
	uint32_t plan;       /**< number of its plan in the file */
	uint32_t first, end; /**< it stands for nodes first … end-1 */
	const char *backend; /**< what compiled it: "inductor" */
	bool compiled;       /**< it runs as compiled code, at the sizes it was compiled for */
	const char *reason;  /**< why it does not; NULL if it does */
	uint64_t runs;       /**< of the compiled code */
	uint64_t tape_runs;  /**< operator by operator: at other sizes, or for the reason */
	bool barred;         /**< the reason is that compiled code is not allowed, and this user did not compile it */
} clv_segment_state;

/** Number of compiled segments in the part that runs. */
CLV_API uint32_t clv_runtime_segment_count(const clv_runtime *r);

/** Describes segment i. Code that fails in a run is not used again: the run continues operator by operator. */
CLV_API clv_status clv_runtime_segment(const clv_runtime *r, uint32_t i, clv_segment_state *out);

/** What was done to run the plans faster, in lines: passes and what they changed, variants that were timed, which one runs. */
CLV_API clv_status clv_runtime_optimizations(const clv_runtime *r, char **out);

/** How long a node took in the runs that were timed. */
typedef struct clv_profile_node {
	size_t size;        /**< sizeof(clv_profile_node) */
	uint32_t plan;      /**< of the artifact */
	uint32_t node;      /**< of that plan */
	const char *name;   /**< "conv2d_1" */
	const char *op;     /**< "aten::conv2d" */
	const char *module; /**< path of the module that it ran in */
	const char *at;     /**< source line, or "" */
	uint32_t runs;      /**< how many were timed */
	int64_t min_ns;     /**< the fastest, in nanoseconds */
	int64_t median_ns;  /**< the median */
	int64_t total_ns;   /**< the sum */
} clv_profile_node;

/** true: times the runs from now on, node by node, and discards earlier times. false: stops. Timed runs wait for the device
    after each node, which makes them slower.
    @threads not while r is used; one run at a time while it is on. */
CLV_API clv_status clv_runtime_profile(clv_runtime *r, bool on);

/** Number of nodes that were timed. */
CLV_API uint32_t clv_runtime_profile_count(const clv_runtime *r);

/** Describes timed node i. */
CLV_API clv_status clv_runtime_profile_get(const clv_runtime *r, uint32_t i, clv_profile_node *out);

/** For `cleave sandbox` only: serves a runtime with `sandbox` over its end of a socket, until the runtime is gone, in a
    process that does nothing else. */
CLV_API int clv_sandbox_serve(int socket);

/** @} */

/* ---- calibration ------------------------------------------------------------------------------------------------ */

/** @defgroup calibration Calibration: which compression a boundary bears (experimental)
 *  @{ */

/** What each way to compress a boundary saves and costs, over batches. */
typedef struct clv_calibration clv_calibration;

/** One way, over all batches. */
typedef struct clv_calibrated {
	size_t size;         /**< sizeof(clv_calibrated) */
	const char *method;  /**< as clv_pack_options.compress takes it; "plain": as it is. Way 0 is that one */
	int64_t bytes;       /**< of the boundaries */
	double output_error; /**< the norm of what the outputs are off, by that of the outputs */
	double max_abs;      /**< the largest difference of an output */
	double top1;         /**< share of rows whose largest output is the same; NaN: no output has rows of scores */
	double seconds;      /**< to write and read one batch, on average */
	const char *reason;  /**< why it could not be done; NULL: it could. Valid until the next batch */
} clv_calibrated;

/** Starts with no batch.
    @ownership borrows both runtimes until it is freed. */
CLV_API clv_status clv_calibration_new(const clv_runtime *prefix, const clv_runtime *suffix, clv_calibration **out);

/** Releases it. */
CLV_API void clv_calibration_free(clv_calibration *c);

/** Runs a batch through the prefix, and its boundary through the suffix in all ways.
    @errors as clv_runtime_run_prefix() and clv_runtime_run_suffix(). A way that cannot be taken is no error.
    @threads one call at a time. */
CLV_API clv_status clv_calibration_add(clv_calibration *c, const clv_tensor *const *inputs, uint32_t ninputs);

/** Number of ways. */
CLV_API uint32_t clv_calibration_count(const clv_calibration *c);

/** Describes way i.
    @errors CLV_E_INVALID if there is none, or no batch yet. */
CLV_API clv_status clv_calibration_at(const clv_calibration *c, uint32_t i, clv_calibrated *out);

/** The way with the fewest bytes of those with at most this output error and at least this top-1 agreement (0: it does not
    matter); 0 if none is smaller than plain.
    @errors CLV_E_INVALID for impossible bounds, no batch yet, or an agreement where no output has rows of scores. */
CLV_API clv_status clv_calibration_choose(const clv_calibration *c, double max_error, double min_top1, uint32_t *out);

/** @} */

/* ---- training --------------------------------------------------------------------------------------------------- */

/** @defgroup training Training a suffix from a file (experimental)
 *
 *  A file for training (SplitRuntime.save_trainer in Python, docs/training.md) has the plans of a suffix as they train, the
 *  loss as plans of its own over (outputs, targets), and the optimizer. Steps give, bit for bit, what train_suffix gives in
 *  the process of the model.
 *  @{ */

/** A suffix that trains: parameters, buffers, optimizer and random generator are its own. Trainers of one artifact do not
    see each other. */
typedef struct clv_trainer clv_trainer;

/** Options of clv_trainer_create(). */
typedef struct clv_trainer_options {
	size_t size; /**< sizeof(clv_trainer_options) */
	uint8_t
		sandbox; /**< CLV_SANDBOX_OFF: also train a file that nobody vouches for, in this process; there is no other way
	                       (a clv_sandbox) */
	bool unproven; /**< also serve sizes at which the model was never recorded, by the plan's formulas */
	bool has_seed; /**< the random generator starts from `seed`; otherwise from the seed of the file */
	uint64_t seed; /**< as torch.manual_seed() takes it */
	int threads;   /**< threads per operator, 1 to 1024; 0: those of the calling thread */
	double
		timeout; /**< seconds that a forward may take, and then the backward, checked between operators; 0: no limit */
} clv_trainer_options;

/* clang-format off */
/** The defaults: `clv_trainer_options o = CLV_TRAINER_OPTIONS_INIT;` */
#define CLV_TRAINER_OPTIONS_INIT {.size = sizeof(clv_trainer_options)}
/* clang-format on */

/** What a file for training says about it, as JSON: optimizer groups with their numbers and parameters, seed, tied
    parameters. NULL: the file does not train (clv_runtime_create() runs it). */
CLV_API const char *clv_artifact_training(const clv_artifact *a);

/** Makes a file for training ready. The artifact may be freed afterwards. Everything that changes is copied from the file.
    @errors CLV_E_INVALID for a file that does not train, or bad options; CLV_E_UNSUPPORTED for a file that nobody vouches
    for (nothing trains in a sandbox), and in libcleave-core, which has no libtorch; CLV_E_PARSE for damaged data;
    CLV_E_TORCH. */
CLV_API clv_status clv_trainer_create(const clv_artifact *a, const clv_trainer_options *options, clv_trainer **out);

/** Tensors that came out of the trainer stay valid. */
CLV_API void clv_trainer_free(clv_trainer *t);

/** Ends the clv_trainer_step() or clv_trainer_accumulate() that runs now, from another thread: at its next operator, also in the
    backward, it fails with CLV_E_CANCELLED, and the trainer is as it was before. The optimizer's step is not cut short. NULL is
    allowed.
    @threads any thread, at any time while the trainer lives. */
CLV_API void clv_trainer_cancel(clv_trainer *t);

/** Number of tensors that cross the cut. */
CLV_API uint32_t clv_trainer_input_count(const clv_trainer *t);

/** Describes tensor i of those that cross the cut; its name is its label in boundaries. */
CLV_API clv_status clv_trainer_input(const clv_trainer *t, uint32_t i, clv_port *out);

/** Number of tensors that the loss takes as targets. */
CLV_API uint32_t clv_trainer_target_count(const clv_trainer *t);

/** Describes target i. */
CLV_API clv_status clv_trainer_target(const clv_trainer *t, uint32_t i, clv_port *out);

/** Runs suffix, loss and backward on a boundary of a training prefix (run_training_prefix in Python, of the same split; its
    weights are not compared), and adds to the gradients of the parameters. Nothing is stepped.
    @ownership *loss is detached. *gradients has the gradient of each boundary tensor under its label, with the strides that
    the backward gave it; labels whose tensor needs none, or got none, are absent. It can be packed like any boundary. A
    parameter that the prefix trains too is there as "@name": that is this half's share, which is not added here; give the
    whole gradient to clv_trainer_apply_tied(). loss and gradients may be NULL.
    @errors as clv_runtime_run_suffix(); CLV_E_INPUT also for a boundary made for inference, targets that do not fit, and while
    clv_trainer_apply_tied() is due; CLV_E_UNSUPPORTED for sparse gradients. After any error the trainer is as it was before.
    @threads calls for one trainer wait for each other, and so do those of all trainers whose models draw random numbers.
    Random numbers that other code of the process draws meanwhile are mixed up with these. */
CLV_API clv_status clv_trainer_accumulate(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets,
                                          uint32_t ntargets, clv_tensor **loss, clv_boundary **gradients);

/** clv_trainer_accumulate() and then clv_trainer_apply(): one training step. Gradients that were added before count too.
    @errors as these two. What fails before the optimizer's step leaves the trainer as it was before the call.
    @threads as clv_trainer_accumulate(). */
CLV_API clv_status clv_trainer_step(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets,
                                    uint32_t ntargets, clv_tensor **loss, clv_boundary **gradients);

/** Steps every parameter that has a gradient, as the optimizer of the file does, and forgets the gradients. Without any it
    does nothing but count a step.
    @errors CLV_E_TORCH. Where memory runs out in the middle, every later call fails until clv_trainer_restore().
    @threads calls for one trainer wait for each other. */
CLV_API clv_status clv_trainer_apply(clv_trainer *t);

/** Steps parameters that both halves train, with their whole gradients, as the prefix's backward gave them
    (backward_prefix in Python). names: "@name", or without the "@".
    @errors CLV_E_NOT_FOUND for a name that is not tied; CLV_E_INPUT for a gradient that does not fit: nothing was stepped
    then. Otherwise as clv_trainer_apply().
    @threads calls for one trainer wait for each other. */
CLV_API clv_status clv_trainer_apply_tied(clv_trainer *t, const char *const *names, const clv_tensor *const *gradients,
                                          uint32_t n);

/** How often gradients were applied since the file was made, by clv_trainer_step() and clv_trainer_apply(). It is part of the
    state. */
CLV_API uint64_t clv_trainer_steps(const clv_trainer *t);

/** All that training changes, as bytes: parameters, buffers (statistics of BatchNorm), state of the optimizer, gradients that
    were not applied yet, count of steps, random generator. Two trainers with equal states go on with equal bits. The bytes
    are a safetensors file (docs/training.md).
    @errors CLV_E_OVERFLOW; CLV_E_TORCH.
    @threads waits for the calls that have begun. */
CLV_API clv_status clv_trainer_state(const clv_trainer *t, void **out, size_t *size);

/** Goes on from a state of a trainer of the same file. The bytes are hostile, and are not kept.
    @errors CLV_E_PARSE for bytes that are no state; CLV_E_INPUT for a state of another file, and for tensors that do not fit;
    CLV_E_UNSUPPORTED for another version. After any error the trainer is as it was before the call.
    @threads waits for the calls that have begun. */
CLV_API clv_status clv_trainer_restore(clv_trainer *t, const void *data, size_t size);

/** Writes `suffix`, an artifact of the same model for inference (SplitRuntime.save), to a file with the parameters and
    buffers that the trainer has now: whole or not at all. Compiled segments and packed weights, made with the old ones, are left
    out; who vouches for `suffix` vouches for it.
    @errors CLV_E_INPUT for an artifact that reads none of the trainer's tensors, or has them in other types or shapes; CLV_E_IO.
    @threads waits for the calls that have begun. */
CLV_API clv_status clv_trainer_weights(const clv_trainer *t, const clv_artifact *suffix, const char *path);

/** @} */

/* ---- clients of a server ---------------------------------------------------------------------------------------- */

/** @defgroup remote Clients of a server (experimental)
 *  @{ */

/** A model on a server (docs/remote.md). */
typedef struct clv_remote clv_remote;

/** Options of clv_remote_connect(). */
typedef struct clv_remote_options {
	size_t size;            /**< sizeof(clv_remote_options) */
	const char *token;      /**< who asks; NULL: nobody in particular */
	const char *ca;         /**< PEM file with the certificates that are trusted; NULL: those of the system */
	const char *cert;       /**< PEM file with a certificate of the client; NULL: none */
	const char *key;        /**< PEM file with its key */
	double timeout;         /**< seconds for a call with all its tries; 0: 60 */
	double connect_timeout; /**< seconds to reach the server; 0: 5 */
	int retries;            /**< tries after the first one; 0: 2, below 0: none */
	int connections;        /**< open at a time, and so calls under way; more wait. 0: 8 */
	int64_t max_answer;     /**< bytes; a larger answer is an error. 0: 2^30 */
	bool insecure;          /**< the token may go over http:// to another machine, where others can read it */
	bool lazy;              /**< do not ask the server before the first call */
} clv_remote_options;

/* clang-format off */
/** The defaults: `clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;` */
#define CLV_REMOTE_OPTIONS_INIT {.size = sizeof(clv_remote_options)}
/* clang-format on */

/** A client of "https://host:8000/model", or model\@cut; `http://` is without TLS. Reads what the model takes and gives, unless
    `lazy` is set. TLS is 1.3, and the server's certificate has to be for its host.
    @errors CLV_E_INVALID for a bad URL, option, token or certificate; CLV_E_IO if the server cannot be reached in time or is
    too busy; CLV_E_NOT_FOUND for a model that it does not have; CLV_E_PARSE for an answer that is malformed;
    CLV_E_UNSUPPORTED for https:// in a build without OpenSSL. */
CLV_API clv_status clv_remote_connect(const char *url, const clv_remote_options *options, clv_remote **out);

/** Closes its connections. No call is under way. */
CLV_API void clv_remote_free(clv_remote *r);

/** What the server says of the model, as JSON; asks it if nobody did. Valid as long as r.
    @errors as clv_remote_connect(). */
CLV_API clv_status clv_remote_metadata(clv_remote *r, const char **out);

/** Number of tensors that clv_remote_run() takes; 0 before the server was asked. */
CLV_API uint32_t clv_remote_input_count(const clv_remote *r);

/** Number of tensors that calls give; 0 before the server was asked. */
CLV_API uint32_t clv_remote_output_count(const clv_remote *r);

/** Describes input i; a dimension of any size is "-1". */
CLV_API clv_status clv_remote_input(const clv_remote *r, uint32_t i, clv_port *out);

/** Describes output i; a dimension of any size is "-1". */
CLV_API clv_status clv_remote_output(const clv_remote *r, uint32_t i, clv_port *out);

/** Whether the model takes a boundary; false before the server was asked. */
CLV_API bool clv_remote_is_suffix(const clv_remote *r);

/** Where the time of a call went, in seconds, and how much was sent. */
typedef struct clv_remote_times {
	size_t size;            /**< sizeof(clv_remote_times) */
	double encode;          /**< to compress and write what is sent */
	double connect;         /**< to reach the server; 0 over a connection that was there */
	double send;            /**< until the last byte was handed to the system */
	double wait;            /**< from then to the head of the answer */
	double queue, compute;  /**< in the server, as it says; NaN if it does not */
	double receive;         /**< the rest of the answer */
	double decode;          /**< to read it */
	double total;           /**< of the call, with all tries */
	int64_t sent_bytes;     /**< of the last try */
	int64_t received_bytes; /**< of the answer's body */
	uint32_t tries;         /**< 1: it went at once */
} clv_remote_times;

/** Runs the suffix on the server. A call may be sent again after the connection broke or the server was too busy: it changes
    nothing there. `pack` says how the boundary is sent (NULL: as it is); `times` may be NULL, and is set if the call fails, too.
    @ownership each output is a new reference, the caller's.
    @errors as clv_remote_connect(); CLV_E_INPUT for a boundary of another split, plan or weights; as clv_boundary_pack().
    @threads calls may overlap. */
CLV_API clv_status clv_remote_run_suffix(clv_remote *r, const clv_boundary *b, const clv_pack_options *pack,
                                         clv_tensor **outputs, uint32_t noutputs, clv_remote_times *times);

/** Runs the model on the server, with any server of the Open Inference Protocol that takes binary data.
    @errors as clv_remote_run_suffix(); CLV_E_INPUT for inputs of another type or shape.
    @threads calls may overlap. */
CLV_API clv_status clv_remote_run(clv_remote *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                  clv_tensor **outputs, uint32_t noutputs, clv_remote_times *times);

/** A session on a server that trains a suffix (docs/training.md): parameters, optimizer and random generator are its own, and lie
    on the server's disk. */
typedef struct clv_remote_session clv_remote_session;

/** Options of clv_remote_session_open(). */
typedef struct clv_remote_session_options {
	size_t size;         /**< sizeof(clv_remote_session_options) */
	const char *id;      /**< 1 to 64 letters, digits, - and _; NULL: a random one. One that is there goes on */
	const char *member;  /**< who takes part in a shared session, likewise; NULL: it is not shared */
	bool shared;         /**< several clients train one suffix */
	uint32_t accumulate; /**< steps whose gradients add up before the optimizer steps; of a shared session: its members.
	                          0: 1 */
	bool has_seed;       /**< the random generator starts from `seed`; otherwise from the seed of the file */
	uint64_t seed;       /**< as torch.manual_seed() takes it */
} clv_remote_session_options;

/* clang-format off */
/** The defaults: `clv_remote_session_options o = CLV_REMOTE_SESSION_OPTIONS_INIT;` */
#define CLV_REMOTE_SESSION_OPTIONS_INIT {.size = sizeof(clv_remote_session_options)}
/* clang-format on */

/** Opens a session, or goes on with one that this token opened before. The client stays in use until the session is freed.
    @errors as clv_remote_connect(); CLV_E_INPUT for a session that is there with other options, or has all its members, and
    for a model that does not train. */
CLV_API clv_status clv_remote_session_open(clv_remote *r, const clv_remote_session_options *options,
                                           clv_remote_session **out);

/** Releases it here. On the server it stays. */
CLV_API void clv_remote_session_free(clv_remote_session *s);

/** Ends it on the server, with what it has learned; clv_remote_session_free() releases it here.
    @errors as clv_remote_connect().
    @threads as clv_remote_train_suffix(). */
CLV_API clv_status clv_remote_session_end(clv_remote_session *s);

/** Its id. Valid as long as s. */
CLV_API const char *clv_remote_session_id(const clv_remote_session *s);

/** The number of the last step whose answer came; of steps before this client, too. */
CLV_API uint64_t clv_remote_session_steps(const clv_remote_session *s);

/** One training step on the server: clv_trainer_step() there, on a boundary of a training prefix. It is made once, however often
    it has to be sent: after an error, call again with the same arguments. Another boundary then is CLV_E_INPUT if the
    server has made the step.
    @ownership as clv_trainer_step(). times may be NULL, and is set if the call fails, too.
    @errors as clv_remote_run_suffix(), clv_trainer_step().
    @threads calls for one session wait for each other. */
CLV_API clv_status clv_remote_train_suffix(clv_remote_session *s, const clv_boundary *b, const clv_pack_options *pack,
                                           const clv_tensor *const *targets, uint32_t ntargets, clv_tensor **loss,
                                           clv_boundary **gradients, clv_remote_times *times);

/** clv_trainer_apply_tied() on the server, for the last step; made once.
    @errors as clv_remote_train_suffix(), clv_trainer_apply_tied().
    @threads calls for one session wait for each other. */
CLV_API clv_status clv_remote_apply_tied(clv_remote_session *s, const char *const *names,
                                         const clv_tensor *const *gradients, uint32_t n);

/** What the session has learned, as clv_trainer_restore() takes it.
    @ownership *out is released with clv_free().
    @errors as clv_remote_connect().
    @threads as clv_remote_train_suffix(). */
CLV_API clv_status clv_remote_session_state(clv_remote_session *s, void **out, size_t *size);

/** How long the server takes to answer when there is nothing to do, in seconds: the round trip.
    @errors as clv_remote_connect().
    @threads calls may overlap. */
CLV_API clv_status clv_remote_ping(clv_remote *r, double *seconds);

/** A way to divide a call between here and a server. */
typedef struct clv_way {
	size_t size;      /**< sizeof(clv_way) */
	const char *name; /**< for people and errors; copied */
	bool remote;      /**< false: all of it runs here */
	double here;      /**< seconds of work here: the prefix */
	double there;     /**< seconds of work on the server: the suffix */
	double codec;     /**< seconds to compress, write and read what crosses */
	int64_t sent;     /**< bytes to the server */
	int64_t received; /**< bytes from it */
} clv_way;

/** A link to a server, as calls over it show it, and which way is fastest over it now. */
typedef struct clv_link clv_link;

/** Options of clv_link_new(). */
typedef struct clv_link_options {
	size_t size; /**< sizeof(clv_link_options) */
	double gain; /**< another way is taken when it is faster by this share, 0 … 1; 0: 0.1 */
	double rtt;  /**< round trip in seconds, as far as it is known; 0: 0.02 */
	double rate; /**< bytes per second in each direction, likewise; 0: 1.25e6 (10 Mbit/s) */
	double away; /**< seconds for which a server that failed is left alone, at least; 0: 5 */
	double look; /**< seconds after which a call goes to the server to see how it is, if none did; 0: 10 */
} clv_link_options;

/* clang-format off */
/** The defaults: `clv_link_options o = CLV_LINK_OPTIONS_INIT;` */
#define CLV_LINK_OPTIONS_INIT {.size = sizeof(clv_link_options)}
/* clang-format on */

/** Starts at the way that is fastest by what is given.
    @errors CLV_E_INVALID for times and sizes that cannot be, or no way at all. */
CLV_API clv_status clv_link_new(const clv_way *ways, uint32_t nways, const clv_link_options *options, clv_link **out);

/** Releases it. */
CLV_API void clv_link_free(clv_link *l);

/** Tells how a call in a way went: `here` is what its work here took (below 0: not measured). times is NULL for a way without
    the server. Newer calls count more than older ones.
    @threads may be called by several threads at once. */
CLV_API clv_status clv_link_tell(clv_link *l, uint32_t way, double here, const clv_remote_times *times);

/** Tells a round trip that was measured.
    @threads as clv_link_tell(). */
CLV_API clv_status clv_link_tell_rtt(clv_link *l, double seconds);

/** Tells that the server could not be reached: for a while only ways without it are chosen, where there is one.
    @threads as clv_link_tell(). */
CLV_API void clv_link_tell_away(clv_link *l);

/** The way for the next call. It stays the last one until another is faster by more than `gain`. While it is one without the
    server, a call now and then goes the fastest way with it, so that a link that got better is noticed: after `look` seconds, and
    so rarely that it costs at most a twentieth of the time.
    @threads as clv_link_tell(). */
CLV_API uint32_t clv_link_choose(clv_link *l);

/** How long a call takes in this way over the link as it is now, in seconds; infinite while the server is away.
    @threads as clv_link_tell(). */
CLV_API double clv_link_expect(clv_link *l, uint32_t way);

/** The round trip and the rate in bytes per second that are expected now.
    @threads as clv_link_tell(). */
CLV_API void clv_link_state(clv_link *l, double *rtt, double *rate);

/** A model whose calls follow the link: each runs all here, all on a server, or in part here and in part there, whichever is
    fastest now. It finds the cuts that could be, measures both sides and the link, and moves when that pays; nothing is prepared
    again. Answers are those of the model: without `compress` and `max_error` nothing is lost on the way, and what the server
    does not answer in time runs here. */
typedef struct clv_follower clv_follower;

/** Options of clv_follower_new(). */
typedef struct clv_follow_options {
	size_t size;                      /**< sizeof(clv_follow_options) */
	const clv_remote_options *remote; /**< how the server is reached. `retries` 0 means none here; NULL: the defaults */
	const clv_runtime_options *runtime; /**< how the model and its prefixes run here; NULL: the defaults */
	const clv_link_options *link;       /**< when the way changes; NULL: the defaults */
	const char *const *compress; /**< how boundaries may be sent, besides as they are, as in clv_pack_options; NULL:
	                                       "zstd", which loses nothing, or all with max_error */
	uint32_t ncompress;          /**< length of compress */
	double
		max_error; /**< ways whose outputs are off by more on the first inputs, as clv_calibrated has it, are not taken;
	                     0: no limit for those that compress lists */
	int max_cuts;  /**< cuts that are kept ready, each with a prefix on the same weights; 0: 8; at most 16 */
	double check;  /**< seconds after which the server has to show again that it has the same weights; 0: 60 */
} clv_follow_options;

/* clang-format off */
/** The defaults: `clv_follow_options o = CLV_FOLLOW_OPTIONS_INIT;` */
#define CLV_FOLLOW_OPTIONS_INIT {.size = sizeof(clv_follow_options)}
/* clang-format on */

/** Makes a follower of a whole model, which "https://host:8000/model" has too. The server is asked by the first call.
    @ownership the artifact may be freed afterwards.
    @errors CLV_E_INVALID for a part of a model, or bad options; CLV_E_UNSUPPORTED for a model that changes its own tensors in a
    run; as clv_runtime_create(). */
CLV_API clv_status clv_follower_new(const clv_artifact *a, const char *url, const clv_follow_options *options,
                                    clv_follower **out);

/** Releases it. No call is under way. */
CLV_API void clv_follower_free(clv_follower *f);

/** The whole model as it runs here: what it takes and gives.
    @ownership valid as long as f. */
CLV_API const clv_runtime *clv_follower_runtime(const clv_follower *f);

/** How a call went. */
typedef struct clv_followed {
	size_t size;            /**< sizeof(clv_followed) */
	uint32_t way;           /**< as clv_follower_way() counts */
	bool remote;            /**< the server had a part in it */
	double here;            /**< seconds of the model's work here; NaN: none */
	double total;           /**< seconds of all */
	clv_remote_times times; /**< of the server's part */
} clv_followed;

/** Runs the model. The first call runs here, and measures: it takes as long as some dozen calls. `how` may be NULL.
    @ownership each output is a new reference, the caller's.
    @errors as clv_runtime_run(); the first call also as clv_remote_connect(), but not for a server that is away: it is asked again
    later. CLV_E_INPUT if the server's model is another one.
    @threads calls may overlap. */
CLV_API clv_status clv_follower_run(clv_follower *f, const clv_tensor *const *inputs, uint32_t ninputs,
                                    clv_tensor **outputs, uint32_t noutputs, clv_followed *how);

/** A way to divide a call, and what is known of it now. */
typedef struct clv_follow_state {
	size_t size;          /**< sizeof(clv_follow_state) */
	const char *name;     /**< "here", "there", "after:relu_3 zstd" */
	const char *cut;      /**< "after:relu_3"; NULL: it is not cut */
	const char *compress; /**< how the boundary is sent; NULL: as it is */
	bool remote;          /**< the server has a part in it */
	double seconds;       /**< that a call would take now; infinite: it cannot go that way now */
	double here, there;   /**< of that: work here, and on the server */
	double codec;         /**< to compress, write and read */
	int64_t sent;         /**< bytes to the server */
	int64_t received;     /**< bytes from it */
	double error;         /**< of the outputs, as clv_calibrated has it; 0: nothing is lost */
	uint64_t calls;       /**< that went this way */
} clv_follow_state;

/** Number of ways; 0 before the first call. */
CLV_API uint32_t clv_follower_count(const clv_follower *f);

/** Describes way i. Names are valid as long as f.
    @threads calls may be under way. */
CLV_API clv_status clv_follower_way(clv_follower *f, uint32_t i, clv_follow_state *out);

/** Why the last call to the server failed; *out is NULL if it did not.
    @ownership the caller frees *out with clv_free().
    @threads calls may be under way. */
CLV_API clv_status clv_follower_reason(clv_follower *f, char **out);

/** The round trip in seconds and the rate in bytes per second, as the calls show them; NaN before the first.
    @threads calls may be under way. */
CLV_API void clv_follower_link(clv_follower *f, double *rtt, double *rate);

/** @} */

/* ---- a server ---------------------------------------------------------------------------------------------------- */

/** @defgroup server A server: models over HTTP (experimental)
 *
 *  Serves models by the Open Inference Protocol, version 2 (docs/serve.md), until it is told to stop.
 *  @{ */

/** A server that listens. */
typedef struct clv_server clv_server;

/** Options of clv_server_create(). */
typedef struct clv_server_options {
	size_t size;                  /**< sizeof(clv_server_options) */
	const char *const *models;    /**< paths of .clv files, each with `NAME=` before it or called as the file is,
	                                         without its ending */
	uint32_t nmodels;             /**< length of models */
	const char *repository;       /**< a folder with MODEL/VERSION/FILE.clv or MODEL.clv; NULL: none */
	const char *host;             /**< address to listen at; NULL: 127.0.0.1 */
	uint16_t port;                /**< 0: one that is free (clv_server_port()) */
	const char *tls_cert;         /**< PEM file with the certificate; NULL: no TLS */
	const char *tls_key;          /**< PEM file with its key */
	const char *tls_client_ca;    /**< PEM file: clients show a certificate of one of these; NULL: they need none */
	const char *tokens;           /**< file of those who may call (docs/serve.md); NULL: everybody */
	bool insecure;                /**< listen beyond this machine also without TLS and tokens */
	const clv_open_options *open; /**< how files are opened; they are always copied */
	const clv_runtime_options *runtime; /**< how models run */
	uint32_t workers;                   /**< runs at a time */
	uint32_t max_connections;           /**< more are closed at once */
	uint32_t max_queue;                 /**< requests that wait; more are answered with 429 */
	int64_t max_body;                   /**< bytes of one request */
	int64_t max_json;                   /**< bytes of JSON in one request, besides binary tensors */
	int64_t max_memory;                 /**< bytes of all requests together */
	double header_timeout;              /**< seconds until a request is there, plus one for each 16 KiB of its body */
	double idle_timeout;                /**< seconds that a connection may wait between requests */
	double drain_timeout;               /**< seconds that open requests get once it is told to stop */
	double poll;                        /**< seconds between looks for changed files; 0: none */
	const char *batching;               /**< requests of several clients run as one where rows provably stay apart:
	                                         "exact", at sizes where they had the same bits as alone; "fast", at
	                                         all; "off" */
	uint32_t max_batch;                 /**< rows of one run */
	const char *log;                    /**< "text", "json" or "off": a line for each request */
	int log_fd;                         /**< where log lines go */
	double drain_delay;       /**< seconds after clv_server_stop() in which it is not ready, but serves everybody; a
	                                         second clv_server_stop() ends them */
	uint32_t max_head;        /**< bytes of the head of a request, 32768 at most */
	uint32_t max_streams;     /**< requests at a time over one connection of HTTP/2 */
	uint32_t max_per_address; /**< connections of one address; more are closed at once; 0: as many as there may be */
	int64_t http_port;        /**< ports of their own as Triton has them, instead of `port`: REST here; -1:
	                                         none, 0: one that is free */
	int64_t grpc_port;        /**< gRPC */
	int64_t metrics_port;     /**< `/metrics` */
	const char *state;        /**< folder for the sessions of files that train; NULL: none, and nothing trains */
	uint32_t max_sessions;    /**< more are refused */
	int64_t max_session;      /**< bytes that a session may have on disk */
	double session_idle;      /**< seconds after which a session that nobody uses ends; 0: never */
	int64_t
		session_memory; /**< bytes of sessions in memory, as on disk, besides those that are worked on; beyond it those unused
	                                         longest are on disk alone until they are asked for */
	bool check;         /**< only load the models: no port is opened, the folder of sessions is left
	                                         alone, and the server does not run */
} clv_server_options;

/* clang-format off */
/** The defaults: `clv_server_options o = CLV_SERVER_OPTIONS_INIT;` */
#define CLV_SERVER_OPTIONS_INIT \
	{.size = sizeof(clv_server_options), .workers = 1, .max_connections = 4096, .max_queue = 1024, \
	 .max_body = 64 << 20, .max_json = 16 << 20, .max_memory = 1 << 30, .header_timeout = 10, .idle_timeout = 75, \
	 .drain_timeout = 30, .batching = "exact", .max_batch = 32, .log = "off", .log_fd = 2, .max_head = 32 << 10, \
	 .max_streams = 128, .http_port = -1, .grpc_port = -1, .metrics_port = -1, \
	 .max_sessions = 64, .max_session = (int64_t)4 << 30, .session_idle = 604800, \
	 .session_memory = 1 << 30}
/* clang-format on */

/** Loads all models and listens; nobody is answered before clv_server_run().
    @errors CLV_E_INVALID for options that do not go together, such as an address beyond this machine without TLS and tokens;
    CLV_E_IO for an address that cannot be listened at; CLV_E_UNSUPPORTED in a build without nghttp2 and OpenSSL; as
    clv_artifact_open() and clv_runtime_create() for models that were named. */
CLV_API clv_status clv_server_create(const clv_server_options *options, clv_server **out);

/** The port that answers REST; 0: none. */
CLV_API uint16_t clv_server_port(const clv_server *s);

/** The port that answers gRPC, which is the same one unless it has its own; 0: none. */
CLV_API uint16_t clv_server_grpc_port(const clv_server *s);

/** The port that answers `/metrics`; likewise. */
CLV_API uint16_t clv_server_metrics_port(const clv_server *s);

/** Serves until clv_server_stop() and then until open requests have their answers, or the time for that is over.
    @errors CLV_E_IO
    @threads one call at a time. */
CLV_API clv_status clv_server_run(clv_server *s);

/** Tells it to stop. May be called in a signal handler.
    @threads any, while clv_server_run() runs. */
CLV_API void clv_server_stop(clv_server *s);

/** Tells it to read its files of models, tokens and certificates again. May be called in a signal handler.
    @threads any, while clv_server_run() runs. */
CLV_API void clv_server_reload(clv_server *s);

/** Releases a server that does not run. */
CLV_API void clv_server_free(clv_server *s);

/** @} */

/** The back ends of clv_trace() that are built in: X(name) for each.
    @ingroup tracing */
#define CLV_BACKEND_LIST(X) X(inductor) X(openvino) X(native)

#endif /* CLV_EXPERIMENTAL */

#ifdef __cplusplus
}
#endif
#endif
