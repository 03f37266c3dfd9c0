/** @mainpage cleave.h: the public C interface of Cleave
 *
 * Cleave holds a PyTorch model as a *plan*: the operators of one forward pass, in order, with the shapes of all
 * values, the modules they came from and the names of the parameters they read. A plan is captured once (from
 * Python), is plain text, and can be cut and run in pieces from C.
 *
 * Two libraries implement this header:
 *
 *     libcleave-core   plans and files: read, look at, cut, partition, compare, draw. Needs libc, jansson and, unless built
 *                      without, METIS and zstd.
 *     libcleave        all of that and running: links libtorch, needs no Python.
 *
 * A program links one of them (`pkg-config cleave-core` or `cleave`; in CMake `cleave::core` or `cleave::cleave`).
 * What is marked [run], a group or a function, is only in libcleave.
 *
 * Conventions
 * -----------
 * - A function that can fail returns a clv_status; its result goes into the last parameter, which is left alone
 *   on failure. clv_last_error() has the message of the last failure on the calling thread.
 * - *Errors*: CLV_E_INVALID (NULL where it is not allowed, a number out of range, a struct of unknown size) and
 *   CLV_E_NOMEM can come from every function that returns a status; what else can is written at each.
 * - *Ownership*: handles are opaque. What a function gives out, the caller releases with the named `*_free`; all of
 *   these take NULL. What is said to be borrowed lives as long as the handle it came from. Arguments are borrowed
 *   for the call, unless said otherwise.
 * - *Threads*: "any" means from any thread, also while others use the same handles. "alone" means that no other thread
 *   may use that handle meanwhile: all `*_free`, and whatever changes a handle. A plan does not change after it was
 *   made, and a program never does. Tensors follow PyTorch's rules.
 * - Structs that callers fill begin with their size, so that they can grow: start from the `*_INIT` macro. A library
 *   that is newer than the header takes the shorter struct; one that is older refuses what it does not know.
 * - Nothing prints, nothing aborts, no C++ exception comes out.
 *
 * A complete program
 * ------------------
 *
 *     const char *text =
 *         "cleave-plan 1\n"
 *         "model \"twice\"\n"
 *         "input %0 f32[2,3] name=\"x\"\n"
 *         "%1 = aten::add.Tensor(%0, %0, 1) -> f32[2,3]\n"
 *         "output %1\n";
 *     clv_plan *plan;
 *     clv_program *program;
 *     clv_tensor *x, *y;
 *     float data[6] = {1, 2, 3, 4, 5, 6};
 *     int64_t shape[2] = {2, 3};
 *
 *     if (clv_plan_parse(text, strlen(text), &plan) || clv_program_create(plan, NULL, &program) ||
 *         clv_tensor_from_data(data, "f32", 2, shape, &x) ||
 *         clv_program_run(program, (const clv_tensor *const[]){x}, 1, &y, 1)) {
 *         fprintf(stderr, "%s\n", clv_last_error());
 *         return 1;
 *     }
 *     const float *sum = clv_tensor_data(y);
 *
 * A file that runs
 * ----------------
 * An *artifact* (`.clv`) is plans with the weights they read, saved from Python or cut by clv_artifact_split(). A
 * *runtime* is one that is ready to run:
 *
 *     clv_artifact *file;
 *     clv_runtime *model;
 *     clv_tensor *x, *y;
 *     clv_port in = {.size = sizeof in};
 *     static float image[1 * 3 * 224 * 224];
 *     int64_t shape[4] = {1, 3, 224, 224};
 *
 *     if (clv_artifact_open("model.clv", NULL, &file) || clv_runtime_create(file, NULL, &model)) {
 *         fprintf(stderr, "%s\n", clv_last_error());
 *         return 1;
 *     }
 *     clv_artifact_close(file);            // the runtime keeps what it needs
 *     clv_runtime_input(model, 0, &in);    // in.name is "x", in.dtype "f32", in.dims {"B", "3", "224", "224"}
 *     if (clv_tensor_wrap(image, in.dtype, 4, shape, NULL, NULL, NULL, &x) ||    // no copy
 *         clv_runtime_run(model, (const clv_tensor *const[]){x}, 1, &y, 1)) {
 *         fprintf(stderr, "%s\n", clv_last_error());
 *         return 1;
 *     }
 *     const float *logits = clv_tensor_data(y);
 *     ...
 *     clv_tensor_free(x);
 *     clv_tensor_free(y);
 *     clv_runtime_free(model);
 *
 * Compiled parts
 * --------------
 * clv_trace() makes an artifact in which *segments*, ranges of nodes, are also there as code that a compiler made of
 * them. Each was compared with the operators it stands for, which stay in the file and run wherever the code cannot:
 * on another CPU, with another torch, at other sizes. Machine code is code of whoever made the file, so a runtime uses
 * it only if it is told to:
 *
 *     clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
 *     options.allow_compiled = true;
 *     clv_runtime_create(file, &options, &model);    // clv_runtime_segment() says what runs compiled, and why not
 */
#ifndef CLEAVE_H
#define CLEAVE_H

/** @file
 *  The public C interface; the main page says how it is meant. */

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
#define CLV_VERSION_MAJOR 0 /**< Changes with what breaks callers. */
#define CLV_VERSION_MINOR 2 /**< Changes with what is new; before 1.0 also with what breaks callers. */
#define CLV_VERSION_PATCH 0 /**< Changes with what is put right. */

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
	X(E_CRASHED, "the process of a sandbox ended")

/** What a function that can fail returns: CLV_OK is 0, everything else is a failure. */
typedef enum clv_status {
#define X(id, text) CLV_##id,
	CLV_STATUS_LIST(X)
#undef X
		CLV_STATUS_COUNT /**< How many there are; no status itself. */
} clv_status;

/** "E_PARSE"; "?" for a number that is no status.
    @ownership static text.
    @threads any. */
CLV_API const char *clv_status_name(clv_status s);

/** Message of the last failure on this thread, "" if there was none.
    @ownership borrowed; valid until the next failure on this thread, or its end.
    @threads any; each has its own message. */
CLV_API const char *clv_last_error(void);

/** What the last failure on a thread is about, for programs: its words are for people and may change. Fields that say
    nothing are "" or -1; texts that are too long are cut. */
typedef struct clv_error_details {
	char node[64];     /**< the name of the node, as in the plan's text */
	char op[64];       /**< its operator */
	char module[128];  /**< the module that it belongs to */
	char source[128];  /**< the file and line of the model's forward */
	char input[64];    /**< the input, parameter or symbol that does not fit */
	int32_t dimension; /**< of that input */
	char expected[64]; /**< the value that the plan holds for */
	char seen[64];     /**< the value that there was instead */
	bool undone;       /**< CLV_E_GUARD: what the run had changed before is as it was */
} clv_error_details;

/** @ownership borrowed; valid until the next failure on this thread, or its end.
    @threads any; each has its own. */
CLV_API const clv_error_details *clv_last_error_details(void);

/** Version of the library ("0.2.0"), which may be newer than CLV_VERSION of the header.
    @ownership static text.
    @threads any. */
CLV_API const char *clv_version(void);

/** Releases a text that a function of this header gave.
    @threads alone. */
CLV_API void clv_string_free(char *s);

/** @} */

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/** @defgroup plans Plans
 *  @{ */

/** A plan. Made by clv_plan_parse(), never changed, released by clv_plan_free(). */
typedef struct clv_plan clv_plan;

/** Reads the text form, `size` bytes of it, and verifies it. The text is taken as hostile.
    @ownership the plan is the caller's, clv_plan_free(); the text is not kept.
    @errors CLV_E_PARSE with line and column; CLV_E_VERIFY.
    @threads any. */
CLV_API clv_status clv_plan_parse(const char *text, size_t size, clv_plan **out);

/** Releases a plan. What was made of it (frontiers, programs) has to be released before.
    @threads alone. */
CLV_API void clv_plan_free(clv_plan *p);

/** A copy, which lives on its own: of a plan that is borrowed from an artifact, say.
    @ownership the copy is the caller's, clv_plan_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_plan_copy(const clv_plan *p, clv_plan **out);

/** The canonical text; parsing it gives an equal plan.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_plan_print(const clv_plan *p, char **out);

/** Holds the plan against all rules again; clv_plan_parse() has done so already.
    @errors CLV_E_VERIFY with the first rule that is broken, and where.
    @threads any. */
CLV_API clv_status clv_plan_verify(const clv_plan *p);

/** Whether two plans say the same. NULL equals NULL alone.
    @threads any. */
CLV_API bool clv_plan_equal(const clv_plan *a, const clv_plan *b);

/** A page about the plan for people: inputs, outputs, parameters, operators, guards.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_plan_inspect(const clv_plan *p, char **out);

/** A size that may change from run to run, as clv_plan_symbol() describes it. */
typedef struct clv_symbol {
	size_t size;      /**< sizeof(clv_symbol), set by the caller */
	const char *name; /**< "B" */
	int64_t lo, hi;   /**< the range that the plan is for, inclusive */
	bool data;        /**< a run reads it from its data; it is not given by inputs */
} clv_symbol;

/** Symbols of the plan; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_plan_symbol_count(const clv_plan *p);

/** Describes symbol i. The caller sets out->size before.
    @ownership texts in *out are borrowed from the plan.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_plan_symbol(const clv_plan *p, uint32_t i, clv_symbol *out);

/** Values for symbols, in options: symbol symbols[i] has size values[i]. Symbols that are not listed have their lowest
    size. */
typedef struct clv_sizes {
	const char *const *symbols; /**< names: "B" */
	const int64_t *values;      /**< their sizes */
	uint32_t n;                 /**< length of both arrays */
} clv_sizes;

/** Nodes of the plan; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_plan_node_count(const clv_plan *p);

/** Inputs of the plan; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_plan_input_count(const clv_plan *p);

/** Tensors in the output tree, in its order; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_plan_output_count(const clv_plan *p);

/** Options of clv_plan_source(). */
typedef struct clv_source_options {
	size_t size;            /**< sizeof(clv_source_options) */
	uint32_t first, end;    /**< nodes first … end-1; end 0: to the last */
	const char *class_name; /**< of the generated class; NULL: "Segment" */
	bool del;               /**< values are deleted after their last use */
} clv_source_options;

/* clang-format off */
/** The defaults: `clv_source_options o = CLV_SOURCE_OPTIONS_INIT;` */
#define CLV_SOURCE_OPTIONS_INIT {.size = sizeof(clv_source_options)}
/* clang-format on */

/** Python source of a plan, or of a part of it: an nn.Module that needs nothing but torch. Parameters and buffers have
    the model's names, constants are buffers const_0, const_1, … for the caller to load. Its forward takes what comes in
    and returns a tuple of what goes out (of a whole plan: the tensors of the output). options NULL: the defaults.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_UNSUPPORTED for a node that cannot be written (Python code, packed weights).
    @threads any. */
CLV_API clv_status clv_plan_source(const clv_plan *p, const clv_source_options *options, char **out);

/** Options of clv_plan_stages_source(). */
typedef struct clv_stages_options {
	size_t size;                     /**< sizeof(clv_stages_options) */
	const uint32_t *ends;            /**< stage i is nodes ends[i-1] … ends[i]-1; the last one is the node count */
	uint32_t nstages;                /**< at least 1 */
	bool del;                        /**< values are deleted after their last use */
	const char *const *devices;      /**< per stage: "cuda:1"; NULL: where the model was */
	clv_sizes sizes;                 /**< sizes at which bytes and work are counted */
	uint32_t batch_dim;              /**< only said in the configuration */
	const char *batch_symbol;        /**< the symbol that is the batch; NULL: there is none */
	const char *const *basic_blocks; /**< only said in the configuration */
	uint32_t nbasic_blocks;          /**< length of basic_blocks */
	uint32_t depth;                  /**< only said in the configuration */
	const char *const *not_saved;    /**< names of buffers that no state_dict has (persistent=False) */
	uint32_t nnot_saved;             /**< length of not_saved */
} clv_stages_options;

/* clang-format off */
/** The defaults, without stages: `clv_stages_options o = CLV_STAGES_OPTIONS_INIT;` */
#define CLV_STAGES_OPTIONS_INIT {.size = sizeof(clv_stages_options)}
/* clang-format on */

/** Python source of a pipeline: a file that imports torch alone, with a class Stage0, Stage1, … per stage, a Pipeline that
    chains them, and create_pipeline_configuration(), which says what goes in and out of each. Parameters and buffers have
    the model's names, and whole layers of torch.nn are called as such.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_INVALID for stages or sizes that the plan does not have, CLV_E_UNSUPPORTED for a node that cannot be
    written, or for state that two stages would share.
    @threads any. */
CLV_API clv_status clv_plan_stages_source(const clv_plan *p, const clv_stages_options *options, char **out);

/** @} */

/* ---- graphs: the nodes and values of a plan --------------------------------------------------------------------- */

/** @defgroup graphs Graphs: the nodes and values of a plan
 *
 *  Nodes and values have numbers. Nodes are in the order in which they run; a value is an input, a tensor of the model,
 *  a constant, or the result of a node.
 *  @{ */

#define CLV_NONE UINT32_MAX /**< Where there is no such node, value, frontier or array. */

/** What a value is. */
typedef enum clv_value_kind {
	CLV_VALUE_INPUT,  /**< of the plan */
	CLV_VALUE_PARAM,  /**< a parameter of the model, by its state_dict name */
	CLV_VALUE_BUFFER, /**< a registered buffer */
	CLV_VALUE_ATTR,   /**< a tensor attribute of a module that is neither */
	CLV_VALUE_CONST,  /**< a tensor whose data goes with the plan */
	CLV_VALUE_OBJECT, /**< something that is no tensor: packed weights, a generator, Python code */
	CLV_VALUE_RESULT  /**< of a node */
} clv_value_kind;

/** What is to be known about a node beside its operator; any of them together. */
typedef enum clv_node_flag {
	CLV_NODE_GUARDED = 1,   /**< a run compares a result with the one at capture */
	CLV_NODE_RANDOM = 2,    /**< it draws random numbers */
	CLV_NODE_HOST_READ = 4, /**< it reads data on the host */
	CLV_NODE_IMPURE = 8     /**< it does something though no result of it is used */
} clv_node_flag;

/** One operator call, as clv_graph_node() describes it. */
typedef struct clv_node {
	size_t size;              /**< sizeof(clv_node), set by the caller */
	const char *name;         /**< "relu_3": unique, what "after:" takes */
	const char *op;           /**< "aten::add.Tensor" */
	const char *module;       /**< path of the module it ran in: "layer1.0.conv1"; "": the root, or none */
	const char *module_class; /**< "Conv2d", or "" */
	const char *source;       /**< "model.py:12", or "" */
	const char *context;      /**< modes around it, as in plan text: "nograd"; "": those of the caller */
	const uint32_t *inputs;   /**< numbers of the values it takes, as often as it takes them */
	const uint32_t *results;  /**< numbers of the values it gives */
	const uint32_t *writes;   /**< numbers of the values it writes in place */
	uint32_t ninputs;         /**< how many inputs there are */
	uint32_t nresults;        /**< how many results there are */
	uint32_t nwrites;         /**< how many writes there are */
	uint32_t flags;           /**< of clv_node_flag */
} clv_node;

/** One value, as clv_graph_value() describes it. */
typedef struct clv_value {
	size_t size;             /**< sizeof(clv_value), set by the caller */
	const char *label;       /**< as in plan text: "%3", "@conv1.weight", "#0" */
	const char *name;        /**< of an input or a tensor of the model; type of an object; else "" */
	const char *type;        /**< "tensor"; what is no tensor: "bool", "int", "float", "complex", "str", "object" */
	const char *dtype;       /**< of a tensor: "f32"; else "" */
	const char *device;      /**< of a tensor: "cpu", "cuda:0"; else "" */
	const char *const *dims; /**< "3", "B", "4*B+1": as in plan text */
	const char *const *tied; /**< other names of the same parameter */
	clv_value_kind kind;     /**< what it is */
	uint32_t ndim;           /**< how many dims there are */
	uint32_t ntied;          /**< how many other names there are */
	uint32_t producer;       /**< the node that it is a result of, or CLV_NONE */
	uint32_t last_use;       /**< the last node that takes it; number of nodes: it is an output; CLV_NONE: no use */
	uint32_t storage;        /**< the first value on the same memory; itself, where it has its own */
	bool trainable;          /**< a parameter that requires grad */
	bool guarded;            /**< a run compares its number, or its shape, with the one at capture */
} clv_value;

/** The nodes and values of one plan, with names. Made by clv_graph_create(), never changed, released by
    clv_graph_free(). */
typedef struct clv_graph clv_graph;

/** Describes all nodes and values; linear in the plan.
    @ownership the graph is the caller's, clv_graph_free(); it borrows the plan, which must outlive it.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_graph_create(const clv_plan *p, clv_graph **out);

/** Releases a graph, and everything that was borrowed from it.
    @threads alone. */
CLV_API void clv_graph_free(clv_graph *g);

/** Nodes of the plan; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_graph_node_count(const clv_graph *g);

/** Values of the plan; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_graph_value_count(const clv_graph *g);

/** Describes node i. The caller sets out->size before.
    @ownership texts and lists in *out are borrowed from g and its plan.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_graph_node(const clv_graph *g, uint32_t i, clv_node *out);

/** Describes value i. The caller sets out->size before.
    @ownership texts and lists in *out are borrowed from g and its plan.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_graph_value(const clv_graph *g, uint32_t i, clv_value *out);

/** The node of this name ("relu_3").
    @errors CLV_E_NOT_FOUND.
    @threads any. */
CLV_API clv_status clv_graph_find(const clv_graph *g, const char *name, uint32_t *out);

/** A run of nodes with what goes in and out: a prefix, a suffix, anything between. Made by clv_view_create(), never
    changed, released by clv_view_free(). Values have the numbers of clv_graph_value(). */
typedef struct clv_view clv_view;

/** Nodes first … end-1 of a plan; end 0: to the last. Nodes 0 … k-1 and k … to the last agree: the outputs of one are
    the inputs of the other.
    @ownership the view is the caller's, clv_view_free(); it lives on its own.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_view_create(const clv_plan *p, uint32_t first, uint32_t end, clv_view **out);

/** Releases a view, and the lists that were borrowed from it.
    @threads alone. */
CLV_API void clv_view_free(clv_view *v);

/** What comes in: inputs of the plan (of a view from the first node on, all of them) and results of nodes before.
    How many there are; their numbers, ascending, in *values, which may be NULL.
    @ownership *values is borrowed from the view.
    @threads any. */
CLV_API uint32_t clv_view_inputs(const clv_view *v, const uint32_t **values);

/** What goes out: what nodes behind it, the output of the plan or a rebind that is done behind it need. As
    clv_view_inputs().
    @ownership *values is borrowed from the view.
    @threads any. */
CLV_API uint32_t clv_view_outputs(const clv_view *v, const uint32_t **values);

/** What its nodes read of the model: parameters, buffers, attributes, constants, objects. As clv_view_inputs().
    @ownership *values is borrowed from the view.
    @threads any. */
CLV_API uint32_t clv_view_reads(const clv_view *v, const uint32_t **values);

/** What comes in, is not used by its nodes, and goes out again. As clv_view_inputs().
    @ownership *values is borrowed from the view.
    @threads any. */
CLV_API uint32_t clv_view_passthrough(const clv_view *v, const uint32_t **values);

/** @} */

/* ---- frontiers: where a plan can be cut ------------------------------------------------------------------------- */

/** @defgroup frontiers Frontiers: where a plan can be cut
 *  @{ */

/** One frontier, as clv_frontiers_get() describes it. Texts are borrowed from the clv_frontiers or its plan. The memory
    of a side is that of all tensors of the model that it reads, and the most that its inputs and results take at one
    time. */
typedef struct clv_frontier {
	size_t size;                                    /**< sizeof(clv_frontier), set by the caller */
	uint32_t position;                              /**< the prefix is nodes 0 … position */
	const char *name;                               /**< of the last prefix node: "relu_3" */
	const char *module;                             /**< its module path */
	uint32_t boundary_tensors;                      /**< that cross, passthrough inputs among them */
	uint32_t passthrough_inputs;                    /**< inputs of the plan that the suffix reads */
	int64_t boundary_bytes;                         /**< at the sizes of the options; INT64_MAX: too many, or none */
	double prefix_cost;                             /**< share of the estimated work before the cut, 0 … 1 */
	bool trainable_suffix;                          /**< the suffix reads a parameter that requires grad */
	const char *unsafe;                             /**< NULL, or the reason why the plan cannot be cut here */
	uint32_t prefix_nodes, suffix_nodes;            /**< nodes on a side */
	double prefix_flops, suffix_flops;              /**< estimated from shapes, at the same sizes */
	int64_t prefix_params, suffix_params;           /**< elements of the parameters that a side reads */
	int64_t prefix_param_bytes, suffix_param_bytes; /**< one that both sides read counts on both */
	int64_t prefix_memory, suffix_memory;           /**< bytes that a side needs at most */
} clv_frontier;

/** All candidate frontiers of one plan. Made by clv_frontiers_create(), never changed, released by
    clv_frontiers_free(). */
typedef struct clv_frontiers clv_frontiers;

/** Finds all frontiers and what each costs at `sizes` (NULL: the lowest); linear in the plan.
    @ownership the frontiers are the caller's, clv_frontiers_free(); they borrow the plan, which must outlive them.
    @errors CLV_E_NOT_FOUND for a symbol that the plan does not have.
    @threads any. */
CLV_API clv_status clv_frontiers_create(const clv_plan *p, const clv_sizes *sizes, clv_frontiers **out);

/** Releases frontiers, and the texts that were borrowed from them.
    @threads alone. */
CLV_API void clv_frontiers_free(clv_frontiers *f);

/** How many there are: one less than the plan has nodes; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_frontiers_count(const clv_frontiers *f);

/** Describes frontier i. The caller sets out->size before.
    @ownership texts in *out are borrowed from f and its plan.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_frontiers_get(const clv_frontiers *f, uint32_t i, clv_frontier *out);

/** A plan without a cut, in the units of clv_frontier. */
typedef struct clv_total {
	size_t size;                 /**< sizeof(clv_total), set by the caller */
	double flops;                /**< estimated from shapes */
	int64_t params, param_bytes; /**< of the parameters that it reads */
	int64_t memory;              /**< bytes that it needs at most */
	int64_t input_bytes;         /**< of the inputs that it reads */
	uint32_t inputs;             /**< tensors among them */
} clv_total;

/** What the whole plan costs at the sizes of f. The caller sets out->size before.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_frontiers_total(const clv_frontiers *f, clv_total *out);

/** Bytes that cross as a formula in the symbols: "401408*B", "4*B*S+1024". Wherever no size is negative it is exactly
    boundary_bytes at those sizes.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_frontiers_bytes_text(const clv_frontiers *f, uint32_t i, char **out);

/** Labels of the tensors that cross, as in the plan text, with a space between: "%3 %17".
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_frontiers_labels(const clv_frontiers *f, uint32_t i, char **out);

/** A page about the plan for people, as clv_plan_inspect(), with what it costs at the sizes of f and where it cannot be
    cut; with json the same, and more of it, as a JSON object.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_frontiers_inspect(const clv_frontiers *f, bool json, char **out);

/** What a good frontier is. minimize is one of

        boundary_bytes                what crosses
        latency                       prefix_flops / prefix_flops_per_s + boundary_bytes / bandwidth_bytes_per_s
                                      + suffix_flops / suffix_flops_per_s, in seconds; needs the bandwidth.
                                      clv_frontiers_latency() compares it with not cutting at all
        prefix_memory, suffix_memory  as in clv_frontier
        prefix_flops, suffix_flops    the work on one side
        balance                       the difference of the work of both sides

    and NULL for the fewest boundary_bytes among frontiers with 20 to 80 % of the work on each side (among all, where
    there is none). It counts for "auto"; of equal frontiers the one with fewer bytes is taken, then the earlier.
    The rest are constraints, which every boundary has to meet. */
typedef struct clv_objective {
	size_t size;                                  /**< sizeof(clv_objective) */
	const char *minimize;                         /**< see above */
	bool trainable_suffix;                        /**< the suffix must read a parameter that requires grad */
	int64_t max_boundary_bytes;                   /**< negative, here and below: any */
	int64_t max_prefix_memory, max_suffix_memory; /**< bytes, as in clv_frontier */
	int64_t max_prefix_params, max_suffix_params; /**< elements, as in clv_frontier */
	double min_prefix_flops_fraction, max_prefix_flops_fraction; /**< of prefix_cost, 0 … 1 */
	double max_latency_s;                                        /**< 0: any */
	double bandwidth_bytes_per_s;                                /**< 0: not known */
	double prefix_flops_per_s, suffix_flops_per_s; /**< 0: 1e12, a fast processor, on both sides; clv_speed_load() */
	const char *compress;        /**< how floats are sent: "fp16", "bf16", "int8"; NULL: as they are. boundary_bytes and
	                                max_boundary_bytes then count what is sent */
	double compress_bytes_per_s; /**< bytes that are compressed and restored in a second; 0: 5e8 */
} clv_objective;

/* clang-format off */
/** The defaults: `clv_objective o = CLV_OBJECTIVE_INIT;` */
#define CLV_OBJECTIVE_INIT \
	{.size = sizeof(clv_objective), .max_boundary_bytes = -1, .max_prefix_memory = -1, .max_suffix_memory = -1, \
	 .max_prefix_params = -1, .max_suffix_params = -1, .max_prefix_flops_fraction = 1}
/* clang-format on */

/** Finds the frontier a boundary text names: `after:<module path|node name>`, `50%`, `percent:50`, `at:50%`,
    `nearest:50%`, `auto`. Percentages are of the estimated work: the fewest bytes within 5 points of it, or the nearest
    where nothing is that near or `nearest:` asks for it. They and auto skip frontiers that are unsafe or break a
    constraint.
    objective NULL: the defaults.
    @errors CLV_E_NOT_FOUND for an unknown name, with the nearest ones. CLV_E_UNSUPPORTED with the reason for a named
    frontier that is unsafe. CLV_E_INVALID with the reason for one that breaks a constraint. CLV_E_UNSUPPORTED where no
    frontier meets the constraints, with the constraint that excludes the most and the best value in reach.
    @threads any. */
CLV_API clv_status clv_frontiers_choose(const clv_frontiers *f, const char *boundary, const clv_objective *objective,
                                        uint32_t *out);

/** How long one call takes by the formula of `latency`, cut and uncut. */
typedef struct clv_latency {
	size_t size;        /**< sizeof(clv_latency), set by the caller */
	double cut_s;       /**< cut at the frontier */
	double here_s;      /**< the whole model before the link; infinite: a constraint forbids it */
	double there_s;     /**< the inputs are sent as they are, and all runs behind the link; likewise */
	int64_t sent_bytes; /**< that cross at the frontier, compressed as the objective says */
} clv_latency;

/** Compares frontier i with not cutting at all: everything here, or everything there. The caller sets out->size before.
    @errors CLV_E_INVALID without a bandwidth in the objective.
    @threads any. */
CLV_API clv_status clv_frontiers_latency(const clv_frontiers *f, uint32_t i, const clv_objective *objective,
                                         clv_latency *out);

/** A sentence for people when it is faster not to cut than to cut at frontier i: "not cutting is faster: …".
    @ownership the text is the caller's, clv_string_free(); NULL: the cut is the fastest, or latency is not minimised.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_frontiers_advice(const clv_frontiers *f, uint32_t i, const clv_objective *objective, char **out);

/** The speed of a model or half as it was measured: what `cleave bench --json` wrote for it has flops_per_s, for
    prefix_flops_per_s or suffix_flops_per_s. Where several sizes were measured it is that of the last.
    @errors CLV_E_IO. CLV_E_PARSE for a file that `cleave bench --json` did not write.
    @threads any. */
CLV_API clv_status clv_speed_load(const char *path, double *out);

/** Whether frontier i can be cut and meets the constraints. objective NULL: the defaults.
    @errors the reason why not: CLV_E_UNSUPPORTED if it is unsafe, CLV_E_INVALID for a constraint.
    @threads any. */
CLV_API clv_status clv_frontiers_check(const clv_frontiers *f, uint32_t i, const clv_objective *objective);

/** Options of clv_frontiers_exact(). Names are module paths and names of nodes, as after "after:". */
typedef struct clv_exact_options {
	size_t size;                    /**< sizeof(clv_exact_options) */
	const char *const *must_prefix; /**< none: the nodes with the first 20 % of the work in the plan's order */
	uint32_t nmust_prefix;          /**< how many names there are */
	const char *const *must_suffix; /**< none: the nodes beyond 80 % of the work */
	uint32_t nmust_suffix;          /**< how many names there are */
} clv_exact_options;

/* clang-format off */
/** The defaults: `clv_exact_options o = CLV_EXACT_OPTIONS_INIT;` */
#define CLV_EXACT_OPTIONS_INIT {.size = sizeof(clv_exact_options)}
/* clang-format on */

/** The cut with the fewest bytes of all that keep the order of effects, not only of those at a position of the plan's
    order; of equal ones the one with the smallest prefix. *plan_out is the same plan with the nodes of the prefix
    first, each side in its order, where frontier *position_out is the cut. Inputs and values from outside keep their
    numbers. Where cuts are unsafe because written memory would cross twice, ways around it are searched, some hundred
    of them at most. options NULL: the defaults.
    @ownership *plan_out is the caller's, clv_plan_free(); it lives on its own.
    @errors CLV_E_NOT_FOUND for an unknown name; CLV_E_UNSUPPORTED with the reason where there is no such cut;
    CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_frontiers_exact(const clv_frontiers *f, const clv_exact_options *options, clv_plan **plan_out,
                                       uint32_t *position_out);

/** @} */

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

/** @defgroup pictures Pictures
 *  @{ */

#define CLV_DOT_ALL_MODULES UINT32_MAX /**< no module is too deep to be opened */

/** Options of clv_plan_dot(). */
typedef struct clv_dot_options {
	size_t size;                 /**< sizeof(clv_dot_options) */
	uint32_t frontier;           /**< the one to mark; CLV_NONE: the plan as it is */
	const char *detail;          /**< "module": a call of a module is one node; "operation": each operation is */
	uint32_t max_module_depth;   /**< modules this deep are one node ("a.b" is 2 deep), or CLV_DOT_ALL_MODULES; with
	                                  "operation": clusters are nested this deep */
	const char *direction;       /**< where the picture goes: "TB", "BT", "LR", "RL" */
	bool show_operation_targets; /**< operators: aten::conv2d */
	bool show_debug_markers;     /**< in place, view, random …; dtypes, bytes, buffers */
	bool show_node_indices;      /**< numbers and names of nodes, as "after:" takes them */
	clv_sizes sizes;             /**< sizes at which bytes and work are counted */
} clv_dot_options;

/* clang-format off */
/** The defaults: `clv_dot_options o = CLV_DOT_OPTIONS_INIT;` */
#define CLV_DOT_OPTIONS_INIT \
	{.size = sizeof(clv_dot_options), .frontier = CLV_NONE, .detail = "module", .max_module_depth = 4, \
	 .direction = "TB"}
/* clang-format on */

/** A picture of a plan in the DOT language, which Graphviz turns into SVG, PDF or PNG; nothing of Graphviz is needed
    here. Operations are folded into modules, modules that have others inside are clusters. With a cut, what is before
    and behind it, what crosses and what it costs is marked; an unsafe cut is drawn too, with the reason. The same plan
    and options give the same text. Linear in the plan. options NULL: the defaults.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_INVALID for an option that is wrong, CLV_E_NOT_FOUND for a symbol that the plan does not have.
    @threads any. */
CLV_API clv_status clv_plan_dot(const clv_plan *p, const clv_dot_options *options, char **out);

/** @} */

/* ---- the report: a plan as a page to look at ----------------------------------------------------------------------- */

/** @defgroup report The report: a plan as a page to look at
 *  @{ */

/** Options of clv_plan_html(): what the page opens with, and what is known beside the plan. */
typedef struct clv_html_options {
	size_t size;                  /**< sizeof(clv_html_options) */
	const char *title;            /**< heading; NULL: the class of the model */
	clv_sizes sizes;              /**< sizes at which bytes and work are counted */
	double bandwidth_bytes_per_s; /**< 0: 125e6, which is 1 Gbit/s */
	double prefix_flops_per_s;    /**< 0: 1e12 */
	double suffix_flops_per_s;    /**< 0: 1e12 */
	uint32_t frontier;            /**< the one that was chosen; CLV_NONE: none */

	uint32_t nstages;              /**< 0: the plan is not partitioned */
	const uint32_t *stage_of_node; /**< per node, below nstages */
	const double *stage_cost;      /**< per stage, in any unit; NULL: the estimated work */

	uint32_t nsegments;                /**< 0: nothing was compiled */
	const uint32_t *segment_of_node;   /**< per node, below nsegments */
	const bool *segment_compiled;      /**< per segment; NULL: all are */
	const char *const *segment_reason; /**< per segment: why it is not compiled, or NULL; NULL: no reasons are given */

	const struct clv_pipe_stage *const *stage_facts; /**< per stage: its device, times and bytes, which are also its
	                                                      cost where stage_cost is NULL; NULL: not known */
	uint32_t ndevices;                               /**< devices that stage_facts name; 0: they are shown by number */
	const char *const *device_names;                 /**< per device */
	double lower_bound_us;                           /**< no partition on these devices can be below; 0: not known */
} clv_html_options;

/* clang-format off */
/** The defaults: `clv_html_options o = CLV_HTML_OPTIONS_INIT;` */
#define CLV_HTML_OPTIONS_INIT {.size = sizeof(clv_html_options), .frontier = CLV_NONE}
/* clang-format on */

/** One HTML file that holds all it needs and asks the network for nothing: the graph of modules, all frontiers with what
    they cost over a link that the reader sets, stages and segments where they are given. The same arguments give the
    same bytes. Linear in the plan. options NULL: the defaults.
    @ownership *out is the caller's, clv_string_free(). What options point to is read during the call alone.
    @errors CLV_E_INVALID for options that do not fit the plan; CLV_E_NOT_FOUND for a symbol that it does not have.
    @threads any. */
CLV_API clv_status clv_plan_html(const clv_plan *p, const clv_html_options *options, char **out);

/** @} */

/* ---- artifacts: a model as one file ------------------------------------------------------------------------------ */

/** @defgroup artifacts Artifacts: a model as one file
 *  @{ */

/** An open `.clv` file: plans, and the tensors they read. It is mapped, so that opening costs milliseconds and weights
    are read from disk when they are used. Made by clv_artifact_open(), never changed, released by
    clv_artifact_close(). */
typedef struct clv_artifact clv_artifact;

/** Options of clv_artifact_open(). */
typedef struct clv_open_options {
	size_t size;                        /**< sizeof(clv_open_options) */
	const char *const *allow_operators; /**< beyond the list of those known to be safe: "aten::from_file", "mylib::*" */
	uint32_t nallow_operators;          /**< how many there are */
	bool check_data; /**< compare all data with its digests, which reads the whole file; a copy too */
	bool copy;       /**< read the file into memory of this process instead of mapping it */
	/** Ed25519 public keys, each the path of a PEM file or its text ("-----BEGIN …"): only a file that one of them signed is
	    opened, and it is copied. NULL: any file. */
	const char *const *trusted_keys;
	uint32_t ntrusted_keys; /**< how many there are */
} clv_open_options;

/* clang-format off */
/** The defaults: `clv_open_options o = CLV_OPEN_OPTIONS_INIT;` */
#define CLV_OPEN_OPTIONS_INIT {.size = sizeof(clv_open_options)}
/* clang-format on */

/** Opens a file, which is taken as hostile: what is damaged, crafted or of a newer major version is refused, and nothing
    in it runs. options NULL: the defaults.
    @ownership the artifact is the caller's, clv_artifact_close(). A file that is mapped must not be changed in place while
    it is open: what it says then is what runs, and one that becomes shorter ends the process (SIGBUS). Replacing it by
    another (rename) is fine, and so is everything with `copy`, `check_data` or `trusted_keys`, which take the bytes once.
    @errors CLV_E_IO; CLV_E_PARSE for what is no artifact, damaged, or of another major version; CLV_E_VERIFY for a plan
    that breaks a rule; CLV_E_UNSUPPORTED for an operator that is not allowed, one that needs Python, or trusted keys in a
    build without OpenSSL; CLV_E_OVERFLOW for sizes; CLV_E_SIGNATURE for a file that is not signed, signed by a key that
    is not trusted, or changed since, before anything else of it is read; CLV_E_INVALID for what is no Ed25519 public key.
    @threads any. */
CLV_API clv_status clv_artifact_open(const char *path, const clv_open_options *options, clv_artifact **out);

/** The same of bytes in memory, which start at a multiple of 64.
    @ownership the artifact is the caller's, clv_artifact_close(). The bytes are borrowed until then, and until all
    runtimes and tensors that were made from it are gone; whoever gives trusted keys also sees that nobody changes them.
    @errors as clv_artifact_open(), without CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_artifact_parse(const void *data, size_t size, const clv_open_options *options,
                                      clv_artifact **out);

/** Releases an artifact. Runtimes made from it, and tensors that came out of them, stay good: they keep the mapping.
    @threads alone. */
CLV_API void clv_artifact_close(clv_artifact *a);

/** Compares all data with the digests that were written with it.
    @errors CLV_E_PARSE with the first tensor that differs.
    @threads any. */
CLV_API clv_status clv_artifact_check_data(const clv_artifact *a);

/** Pieces of data that have a digest of their own: tensors on the same memory are one; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_artifact_entry_count(const clv_artifact *a);

/** Writes an artifact that was made, as clv_trace() makes one, to a file: whole or not at all. The file that it was made of
    may be replaced by it.
    @errors CLV_E_INVALID for an artifact that was opened: its file is there; CLV_E_IO.
    @threads any, but one at a time for one artifact. */
CLV_API clv_status clv_artifact_save(const clv_artifact *a, const char *path);

/** Signs a file with an Ed25519 private key, the path of a PEM file or its text, and writes it to `output`, NULL: in its own
    place; whole or not at all. Before that everything is checked that clv_artifact_open() checks, the data too; `options`
    are as there, NULL: the defaults. A signature that is there is replaced. All other content stays as it is.
    @errors as clv_artifact_open(); CLV_E_INVALID for what is no such key, or an encrypted one; CLV_E_UNSUPPORTED in a build
    without OpenSSL; CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_artifact_sign(const char *path, const char *key, const clv_open_options *options,
                                     const char *output);

/** Fingerprint of the key that a file says it is signed with: SHA-256 of the raw public key, 64 hexadecimal digits. NULL:
    it is not signed. Anybody can write that into a file: clv_artifact_signature_verified() says whether it was verified.
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const char *clv_artifact_signer(const clv_artifact *a);

/** Whether the file was opened with trusted keys, one of which signed it.
    @threads any. */
CLV_API bool clv_artifact_signature_verified(const clv_artifact *a);

/** Makes an Ed25519 key for clv_artifact_sign(): the private one as the file `path`, which its owner alone may read, the public
    one as `path`.pub. Files that are there are left alone.
    @errors CLV_E_IO, also where one is there; CLV_E_UNSUPPORTED in a build without OpenSSL.
    @threads any. */
CLV_API clv_status clv_key_new(const char *path);

/** Fingerprint of an Ed25519 key, public or private: the path of a PEM file, or its text.
    @ownership *out is the caller's, clv_string_free().
    @errors CLV_E_INVALID for what is no such key; CLV_E_UNSUPPORTED in a build without OpenSSL; CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_key_fingerprint(const char *key, char **out);

/** Compares piece i with its digest: clv_artifact_check_data() in steps, for who shows how far it is. *bytes, where it
    is not NULL, is its size.
    @errors CLV_E_PARSE for data that was changed or damaged, with the name of a tensor on it.
    @threads any. */
CLV_API clv_status clv_artifact_check_entry(const clv_artifact *a, uint32_t i, int64_t *bytes);

/** Whether bytes (the first 9 of a file are enough) could be an artifact: a safetensors file.
    @threads any. */
CLV_API bool clv_is_artifact(const void *data, size_t size);

/** Which part of the model the file has: "all", "prefix", "suffix", "stage:2"; "" for NULL.
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const char *clv_artifact_part(const clv_artifact *a);

/** What boundaries call the split; "": the model is not cut.
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const char *clv_artifact_split_id(const clv_artifact *a);

/** Where it was asked to be cut ("after:layer2"), or "".
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const char *clv_artifact_boundary(const clv_artifact *a);

/** The symbol that is the batch ("B"), or "".
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const char *clv_artifact_batch(const clv_artifact *a);

/** False: plans and their constants alone; parameters and buffers are left to clv_runtime_bind().
    @threads any. */
CLV_API bool clv_artifact_has_weights(const clv_artifact *a);

/** Note i of what the file says about where it comes from ("torch", "model", …); false: there are no more.
    @ownership *key and *text are borrowed from the artifact.
    @threads any. */
CLV_API bool clv_artifact_about(const clv_artifact *a, uint32_t i, const char **key, const char **text);

/** Plans in the file; 0 for NULL. The first is the model at the sizes it was captured for; others are for sizes at
    which it does something else.
    @threads any. */
CLV_API uint32_t clv_artifact_plan_count(const clv_artifact *a);

/** Plan i; NULL: there is no such plan.
    @ownership borrowed from the artifact.
    @threads any. */
CLV_API const clv_plan *clv_artifact_plan(const clv_artifact *a, uint32_t i);

/** What goes with a plan of a file, as clv_artifact_plan_info() describes it. */
typedef struct clv_plan_info {
	size_t size;           /**< sizeof(clv_plan_info), set by the caller */
	const char *signature; /**< what boundaries call it */
	uint32_t first, end;   /**< nodes first … end-1 are this file's part */
	int64_t cut;           /**< first node of the suffix; -1: the plan is not cut */
	uint32_t npoints;      /**< sizes at which the model was recorded and the plan is proven */
	uint32_t point_size;   /**< numbers per point: one for each symbol that the inputs give, in order */
	const int64_t *points; /**< npoints * point_size */
} clv_plan_info;

/** Describes what goes with plan i. The caller sets out->size before.
    @ownership everything in *out is borrowed from the artifact.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_artifact_plan_info(const clv_artifact *a, uint32_t i, clv_plan_info *out);

/** Compiled segments of a plan; 0 for NULL, and for a file that nothing was compiled for.
    @threads any. */
CLV_API uint32_t clv_artifact_segment_count(const clv_artifact *a, uint32_t plan);

/** A compiled segment of a plan, as clv_artifact_segment() describes it. */
typedef struct clv_segment_info {
	size_t size;          /**< sizeof(clv_segment_info), set by the caller */
	const char *backend;  /**< what compiled it: "inductor" */
	uint32_t first, end;  /**< it stands for nodes first … end-1 of the plan */
	int64_t bytes;        /**< of its code */
	uint32_t nmembers;    /**< pieces that the code is in */
	uint32_t nsymbols;    /**< symbols of the plan */
	const int64_t *sizes; /**< the smallest and the largest size of each symbol that it was compiled for, in turn */
} clv_segment_info;

/** Describes segment i of a plan. The caller sets out->size before.
    @ownership everything in *out is borrowed from the artifact.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_artifact_segment(const clv_artifact *a, uint32_t plan, uint32_t i, clv_segment_info *out);

/** Options of clv_artifact_report(). */
typedef struct clv_report_options {
	size_t size;                /**< sizeof(clv_report_options) */
	bool json;                  /**< as JSON; false: as text for people */
	uint32_t plan;              /**< the plan that it is about */
	const char *const *on_tape; /**< per segment of that plan: why it does not run here, or NULL; NULL: not known */
	double eager_ms;            /**< a run of the whole in PyTorch; < 0: what the file says, if it does */
	double tape_ms;             /**< likewise, of the tape alone */
	double traced_ms;           /**< likewise, with compiled parts */
} clv_report_options;

/* clang-format off */
/** The defaults: `clv_report_options o = CLV_REPORT_OPTIONS_INIT;` */
#define CLV_REPORT_OPTIONS_INIT {.size = sizeof(clv_report_options), .eager_ms = -1, .tape_ms = -1, .traced_ms = -1}
/* clang-format on */

/** What is compiled of a traced file, what is not and why, and what it is worth. options NULL: the defaults. *covered, where
    it is not NULL: the part of the work that is compiled, 0 to 1.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_NOT_FOUND for a file that was not traced.
    @threads any. */
CLV_API clv_status clv_artifact_report(const clv_artifact *a, const clv_report_options *options, double *covered,
                                       char **out);

/** As clv_plan_html(), for a plan of a file; of a traced one with its segments, those that are compiled by their number and
    after them a group for each reason why nodes are not. report NULL: the first plan, whose segments all run; of the
    others its `plan` and `on_tape` are read. page NULL: the defaults; its own segments go before those of the file.
    @ownership *out is the caller's, clv_string_free(). What options point to is read during the call alone.
    @errors those of clv_plan_html().
    @threads any. */
CLV_API clv_status clv_artifact_html(const clv_artifact *a, const clv_report_options *report,
                                     const clv_html_options *page, char **out);

/** Need k of segment i of a plan: what has to be here for its code to run ("torch", "2.13.0"); false: there are no more.
    @ownership *key and *text are borrowed from the artifact.
    @threads any. */
CLV_API bool clv_artifact_segment_need(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t k, const char **key,
                                       const char **text);

/** Fact k about segment i of a plan: what was measured when it was compiled ("error", "1.2e-7"); false: there are no more.
    @ownership *key and *text are borrowed from the artifact.
    @threads any. */
CLV_API bool clv_artifact_segment_fact(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t k, const char **key,
                                       const char **text);

/** Node i of those of a plan that were to be compiled and are not, and the reason; false: there are no more.
    @ownership *reason is borrowed from the artifact.
    @threads any. */
CLV_API bool clv_artifact_fallback(const clv_artifact *a, uint32_t plan, uint32_t i, uint32_t *node,
                                   const char **reason);

/** A tensor of a file, as clv_artifact_tensor() describes it. */
typedef struct clv_tensor_info {
	size_t size;          /**< sizeof(clv_tensor_info), set by the caller */
	const char *name;     /**< state_dict name, or the name of a constant */
	const char *dtype;    /**< "f32", as in plan text */
	uint32_t ndim;        /**< how many dimensions there are */
	const int64_t *shape; /**< the size of each */
	int64_t bytes;        /**< of its elements */
	bool trainable;       /**< a parameter that requires grad */
	const char *entry;    /**< name in the file; tensors on the same memory are one entry */
	char digest[33];      /**< of the entry's data, hexadecimal */
} clv_tensor_info;

/** Tensors in the file; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_artifact_tensor_count(const clv_artifact *a);

/** Describes tensor i. The caller sets out->size before.
    @ownership everything in *out is borrowed from the artifact.
    @errors CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_artifact_tensor(const clv_artifact *a, uint32_t i, clv_tensor_info *out);

/** Options of clv_artifact_split(). */
typedef struct clv_split_options {
	size_t size;                    /**< sizeof(clv_split_options) */
	const char *boundary;           /**< as for clv_frontiers_choose(); NULL: where the file is cut already */
	const clv_objective *objective; /**< NULL: the defaults */
	clv_sizes sizes;                /**< sizes at which bytes and work are counted */
} clv_split_options;

/* clang-format off */
/** The defaults: `clv_split_options o = CLV_SPLIT_OPTIONS_INIT;` */
#define CLV_SPLIT_OPTIONS_INIT {.size = sizeof(clv_split_options)}
/* clang-format on */

/** Cuts a whole model into two files, each with its own weights only. Both are written beside their places before either
    is put there: each is the old one or the new one, never a part, and one that cannot be written leaves the other as it
    was. A path may be NULL: that half is not written. options NULL: the defaults.
    @errors those of clv_frontiers_choose(); CLV_E_UNSUPPORTED where both halves would have a tensor that one of them
    changes; CLV_E_INVALID for a file that is a half already, or is not cut and no boundary is given; CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_artifact_split(const clv_artifact *a, const clv_split_options *options, const char *prefix_path,
                                      const char *suffix_path);

/** @} */

/* ---- differences ------------------------------------------------------------------------------------------------- */

/** @defgroup differences Differences between plans and between files
 *  @{ */

/** How the data of tensors is compared. */
typedef enum clv_diff_weights {
	CLV_DIFF_EXACT,  /**< tensors with other digests are read: how many elements differ, and by how much */
	CLV_DIFF_DIGEST, /**< digests are compared, no data is read */
	CLV_DIFF_NONE    /**< data is not compared */
} clv_diff_weights;

/** Options of clv_plan_diff() and clv_artifact_diff(). */
typedef struct clv_diff_options {
	size_t size;              /**< sizeof(clv_diff_options) */
	bool json;                /**< one JSON object (docs/diff.md) instead of a page for people */
	uint32_t limit;           /**< most items of each section; 0: all. What is left out is counted too */
	clv_diff_weights weights; /**< how the data of tensors is compared */
} clv_diff_options;

/* clang-format off */
/** The defaults: `clv_diff_options o = CLV_DIFF_OPTIONS_INIT;` */
#define CLV_DIFF_OPTIONS_INIT {.size = sizeof(clv_diff_options)}
/* clang-format on */

/** What changed from plan a to plan b: symbols, inputs, outputs, modules, parameters, nodes, guards, source lines. Nodes
    are the same by what they are, not by their number. *differ is false exactly when the plans are equal; the page is
    then empty. The text is the same in each run. options NULL: the defaults.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_plan_diff(const clv_plan *a, const clv_plan *b, const clv_diff_options *options, char **out,
                                 bool *differ);

/** The same of two files: what they say about themselves, their plans, and their tensors. Tensors with equal digests are
    taken for equal: clv_artifact_check_data() tells whether the digests are those of the data.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_PARSE for data that cannot be read; CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_artifact_diff(const clv_artifact *a, const clv_artifact *b, const clv_diff_options *options,
                                     char **out, bool *differ);

/** @} */

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

/** @defgroup pipe Pipelines: a graph of work cut into stages, stages put on devices
 *
 *      clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
 *      clv_partition *p;
 *      o.k = 4;
 *      if (clv_partition_graph(json, strlen(json), &o, &p))
 *          return 1;
 *      for (uint32_t s = 0; s < clv_partition_stage_count(p); s++) {
 *          clv_pipe_stage stage = {.size = sizeof stage};
 *          clv_partition_stage(p, s, &stage);
 *          printf("stage %u on device %u takes %g us\n", s, stage.device, stage.fwd_us + stage.bwd_us);
 *      }
 *      clv_partition_free(p);
 *
 *  Stages are in an order that is topological: what a stage reads was made by itself or by an earlier one. A stage talks
 *  to the next one alone, so what jumps over stages is relayed by those between.
 *
 *  The graph is JSON, or a plan (clv_plan_partition()), which then comes back with its nodes stage by stage.
 *  @{ */

/** Nodes in stages, stages on devices, and what that costs. Does not change once it was made. */
typedef struct clv_partition clv_partition;

/** What to partition for. Arrays are borrowed for the call. */
typedef struct clv_partition_options {
	size_t size;          /**< sizeof(clv_partition_options) */
	const char *method;   /**< a name of clv_partition_method(); NULL: "auto", which keeps the best of several */
	uint32_t k;           /**< how many devices; each gets a stage at least */
	uint64_t seed;        /**< the same seed gives the same partition, unless `seconds` strikes */
	const double *speeds; /**< k of them: 2 is twice as fast as the graph's times say; NULL: all are 1 */
	const int64_t *memory_limits; /**< k of them, bytes, 0 for no limit; NULL: none has one */
	double bandwidth;             /**< bytes per second of every link; 0: links cost nothing */
	const double *bandwidths;     /**< instead: k*k of them, [from*k + to] */
	double latency_us;            /**< of one transfer */
	const char *schedule;         /**< "gpipe", "1f1b", "interleaved"; NULL: "1f1b" */
	uint32_t microbatches;        /**< of one batch */
	bool inference;               /**< there is no backward */
	bool recompute;               /**< the backward runs the forward again, and a stage keeps its inputs alone */
	double param_copies;          /**< memory per byte of parameters; 0: 2 (weights, gradients), 1 for inference */
	uint32_t max_stages;          /**< at most so many, at least k; 0: as many as the method likes */
	double seconds;               /**< no attempt is begun after; 0: no limit */
	const char *objective;        /**< what "auto" keeps: "bottleneck" (NULL), the smallest time of the slowest device;
	                                   "throughput", the most micro-batches per second under the schedule; "simple",
	                                   the same with one stage a device, unless several give 5 % more */
} clv_partition_options;

/* clang-format off */
/** The defaults: `clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;` */
#define CLV_PARTITION_OPTIONS_INIT {.size = sizeof(clv_partition_options), .k = 1, .microbatches = 8}
/* clang-format on */

/** A stage, for one micro-batch. */
typedef struct clv_pipe_stage {
	size_t size;           /**< sizeof(clv_pipe_stage), set by the caller */
	uint32_t device;       /**< where it runs */
	uint32_t nodes;        /**< how many it has */
	double fwd_us;         /**< its forward, on its device */
	double bwd_us;         /**< its backward, with the second forward when recomputing */
	double comm_us;        /**< what it waits for transfers that its own work does not hide */
	int64_t in_bytes;      /**< come over a link in the forward, to be relayed or not */
	int64_t out_bytes;     /**< go over a link in the forward */
	int64_t relayed_bytes; /**< come in only to go on */
	int64_t param_bytes;   /**< parameters and buffers */
	int64_t memory_bytes;  /**< parameters with copies, what is held for the micro-batches in flight, work */
	uint32_t in_flight;    /**< micro-batches that it holds at once */
} clv_pipe_stage;

/** A device, for one micro-batch. */
typedef struct clv_pipe_device {
	size_t size;          /**< sizeof(clv_pipe_device), set by the caller */
	uint32_t stages;      /**< how many it has */
	uint32_t actions;     /**< how many it does for a batch, clv_partition_action() */
	double time_us;       /**< all its stages, with what they wait for */
	int64_t memory_bytes; /**< all its stages */
} clv_pipe_device;

/** A node of the graph. */
typedef struct clv_pipe_node {
	size_t size;         /**< sizeof(clv_pipe_node), set by the caller */
	int64_t id;          /**< its id in the graph's text; of a plan, the number of the block */
	const char *name;    /**< "" if it has none; borrowed from the partition */
	uint32_t stage;      /**< where it is */
	double fwd_us;       /**< on a device of speed 1 */
	double bwd_us;       /**< likewise */
	int64_t param_bytes; /**< parameters and buffers that it reads */
} clv_pipe_node;

/** What a device does at some time. */
typedef struct clv_pipe_action {
	size_t size;         /**< sizeof(clv_pipe_action), set by the caller */
	bool backward;       /**< otherwise it is a forward */
	uint32_t stage;      /**< of which stage */
	uint32_t microbatch; /**< of which micro-batch */
	double start_us;     /**< predicted, from the start of the batch */
	double end_us;       /**< likewise */
} clv_pipe_action;

/** How good a partition is. */
typedef struct clv_pipe_quality {
	size_t size;           /**< sizeof(clv_pipe_quality), set by the caller */
	const char *method;    /**< that made it: with "auto", the one that was kept; borrowed from the partition */
	double seconds;        /**< that it took */
	double bottleneck_us;  /**< the slowest device: its stages' time for one micro-batch, with what they wait for */
	double lower_bound_us; /**< no partition on these devices can be below */
	double bound_us;       /**< proven by the method for partitions of its kind; the lower bound if it proved no more */
	bool optimal;          /**< the bottleneck is proven to be the smallest of that kind */
	bool stopped;          /**< options.seconds struck */
	double cut_bytes;      /**< each value once for every stage beside its own that reads it */
	double relay_bytes;    /**< more: each value through the stages between */
	double makespan_us;    /**< predicted time of a batch by the schedule; 0: it has too many actions to lay out */
	double bubble;         /**< share of the devices' time that is idle then, 0 to 1 */
	double per_second;     /**< micro-batches */
	bool schedule_fits;    /**< the placement is the one that the schedule is made for, not a free one */
} clv_pipe_quality;

/** Name of way i to partition ("pipedream", "exact"); NULL: there are no more.
    @ownership static text.
    @threads any. */
CLV_API const char *clv_partition_method(uint32_t i);

/** Partitions a graph that is given as JSON (docs/command-line.md, partition): nodes with times and bytes, and edges. options NULL: the
    defaults, one device.
    @ownership the partition is the caller's, clv_partition_free().
    @errors CLV_E_PARSE for text that is no graph; CLV_E_INVALID for a graph with a cycle, edges to nowhere, negative
    weights, fewer nodes than devices; CLV_E_OVERFLOW; CLV_E_NOT_FOUND for an unknown method or schedule;
    CLV_E_UNSUPPORTED where no partition within the memory limits was found.
    @threads any. */
CLV_API clv_status clv_partition_graph(const char *json, size_t n, const clv_partition_options *options,
                                       clv_partition **out);

/** How a plan is folded into blocks, the nodes of the graph that is partitioned, and what they cost. Arrays and texts are
    borrowed for the call. */
typedef struct clv_plan_partition_options {
	size_t size;                            /**< sizeof(clv_plan_partition_options) */
	const clv_partition_options *partition; /**< NULL: the defaults, one device */
	uint32_t depth;                         /**< modules this deep are not opened: "a.b" is 2 deep */
	const char *const *whole;               /**< classes or paths of modules that are not opened either */
	uint32_t nwhole;                        /**< how many they are */
	clv_sizes sizes;                        /**< sizes at which bytes and work are counted */
	bool ties_together;                     /**< what reads the same parameter stays in one stage */
	bool keep_order;                        /**< stages are cut from the plan in its own order */
	const char *profile;                    /**< JSON of a profile of these blocks (docs/pipe.md); NULL: an estimate */
	size_t profile_size;                    /**< bytes of it */
	double flops_per_s;                     /**< of the estimate: what a device of speed 1 reaches */
	double bytes_per_s;                     /**< likewise, of its memory */
	double node_us;                         /**< likewise, what starting an operator takes */
} clv_plan_partition_options;

/* clang-format off */
/** The defaults: all modules are opened, an estimate for a GPU of the data centre.
    `clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;` */
#define CLV_PLAN_PARTITION_OPTIONS_INIT \
	{.size = sizeof(clv_plan_partition_options), .depth = UINT32_MAX, .flops_per_s = 100e12, \
	 .bytes_per_s = 1e12, .node_us = 5}
/* clang-format on */

/** Partitions a plan. It is folded into *blocks* first: layers, modules that are wanted whole, operators between them, and
    more where a cut inside would be wrong. Blocks are the nodes of the graph; their ids are numbers from 0, in an order
    that is topological. Every boundary between stages is safe to cut. options NULL: the defaults, one device.
    @ownership the partition is the caller's, clv_partition_free(); it does not need the plan.
    @errors as clv_partition_graph(); CLV_E_INVALID for fewer blocks than devices, for a profile of other blocks or without
    the backward that is asked for; CLV_E_PARSE for text that is no profile; CLV_E_NOT_FOUND for a symbol, or a module
    that is to be whole, that the plan does not have; CLV_E_INPUT for sizes with which a tensor would have a negative one;
    CLV_E_UNSUPPORTED for a boundary between stages that is not safe.
    @threads any. */
CLV_API clv_status clv_plan_partition(const clv_plan *p, const clv_plan_partition_options *options,
                                      clv_partition **out);

/** The plan with its nodes stage by stage, for clv_plan_stages_source(), clv_view_create() and clv_program_create(): stage
    i is nodes ends[i-1] … ends[i]-1, and as many ends as stages are put at *ends, which may be NULL. NULL: the partition
    is not of a plan.
    @ownership both are borrowed from the partition.
    @threads any. */
CLV_API const clv_plan *clv_partition_plan(const clv_partition *p, const uint32_t **ends);

/** The stage of each node of the plan that was given, in that plan's order, as clv_html_options.stage_of_node has it; NULL:
    the partition is not of a plan.
    @ownership borrowed from the partition.
    @threads any. */
CLV_API const uint32_t *clv_partition_plan_stages(const clv_partition *p);

/** The graph as JSON that clv_partition_graph() and other tools read. In that format a node makes one value: of a plan its
    out_bytes are the sum of what other blocks read, every edge carries all of it, and inputs of the model have no bytes.
    Where blocks must keep an order though nothing goes between them, and no path says so, there is an edge too.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_graph_json(const clv_partition *p, char **out);

/** Releases a partition; NULL is fine.
    @threads alone. */
CLV_API void clv_partition_free(clv_partition *p);

/** How many stages there are; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_partition_stage_count(const clv_partition *p);

/** How many devices there are; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_partition_device_count(const clv_partition *p);

/** How many nodes the graph has; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_partition_node_count(const clv_partition *p);

/** Describes a stage. The caller sets out->size before.
    @ownership nothing in *out is borrowed.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_stage(const clv_partition *p, uint32_t stage, clv_pipe_stage *out);

/** Nodes of a stage by position, ascending; as many as clv_pipe_stage.nodes says. NULL: there is no such stage.
    @ownership borrowed from the partition.
    @threads any. */
CLV_API const uint32_t *clv_partition_stage_nodes(const clv_partition *p, uint32_t stage);

/** Describes a device. The caller sets out->size before.
    @ownership nothing in *out is borrowed.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_device(const clv_partition *p, uint32_t device, clv_pipe_device *out);

/** Describes the node at a position: nodes are in a topological order, which is that of the text if that one is. The
    caller sets out->size before.
    @ownership the name is borrowed from the partition.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_node(const clv_partition *p, uint32_t position, clv_pipe_node *out);

/** Position of the node with an id.
    @errors CLV_E_NOT_FOUND.
    @threads any. */
CLV_API clv_status clv_partition_find(const clv_partition *p, int64_t id, uint32_t *position);

/** Action i of a device, in the order in which it does them. The orders of all devices can always be carried out: none
    waits for another in a circle. The caller sets out->size before.
    @ownership nothing in *out is borrowed.
    @errors CLV_E_OVERFLOW if stages times micro-batches are too many to lay out.
    @threads any. */
CLV_API clv_status clv_partition_action(const clv_partition *p, uint32_t device, uint32_t i, clv_pipe_action *out);

/** How good it is. The caller sets out->size before.
    @ownership the method is borrowed from the partition.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_quality(const clv_partition *p, clv_pipe_quality *out);

/** A table for people: stages, devices, bounds, what is predicted for the schedule.
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_table(const clv_partition *p, char **out);

/** The result as one line of JSON (docs/command-line.md, partition).
    @ownership the text is the caller's, clv_string_free().
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_partition_json(const clv_partition *p, char **out);

/** What each device does, a line each: "device 0: F0.0 F0.1 B0.0 …" is kind, stage and micro-batch.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_OVERFLOW if stages times micro-batches are too many to lay out.
    @threads any. */
CLV_API clv_status clv_partition_timeline(const clv_partition *p, char **out);

/** @} */

/* ---- arrays: tensors of files as plain memory -------------------------------------------------------------------- */

/** @defgroup arrays Arrays: tensors of files as plain memory
 *  @{ */

/** A tensor as plain memory, row-major, and its name. */
typedef struct clv_array {
	size_t size;          /**< sizeof(clv_array), set by the caller */
	const char *name;     /**< "" for that of an .npy file */
	const char *dtype;    /**< "f32", as in plan text */
	uint32_t ndim;        /**< dimensions */
	const int64_t *shape; /**< their sizes */
	const void *data;     /**< need not be aligned; may be NULL where there are no elements */
	size_t bytes;         /**< of data */
} clv_array;

/** Tensors of a file. Made by clv_arrays_load() or clv_arrays_parse(), never changed, released by clv_arrays_free(). */
typedef struct clv_arrays clv_arrays;

/** Reads a safetensors file, or an .npy file of NumPy (versions 1 to 3), which has one tensor without a name; told
    apart by their first bytes, and taken as hostile.
    @ownership the arrays are the caller's, clv_arrays_free().
    @errors CLV_E_IO; CLV_E_PARSE for what is damaged; CLV_E_UNSUPPORTED for types that tensors do not have (Python
    objects, records, big-endian numbers); CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_arrays_load(const char *path, clv_arrays **out);

/** The same of bytes in memory.
    @ownership the arrays are the caller's, clv_arrays_free(); the bytes are borrowed until then.
    @errors as clv_arrays_load(), without CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_arrays_parse(const void *data, size_t size, clv_arrays **out);

/** Releases arrays, and what was borrowed from them.
    @threads alone. */
CLV_API void clv_arrays_free(clv_arrays *a);

/** How many there are; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_arrays_count(const clv_arrays *a);

/** Describes array i. The caller sets out->size before.
    @ownership everything in *out is borrowed from a.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_arrays_get(const clv_arrays *a, uint32_t i, clv_array *out);

/** The number of the array with this name; CLV_NONE if there is none.
    @threads any. */
CLV_API uint32_t clv_arrays_find(const clv_arrays *a, const char *name);

/** Writes arrays as a safetensors file. It is there whole or not at all.
    @errors CLV_E_INVALID for a name that is given twice, or bytes that do not fit the shape; CLV_E_UNSUPPORTED for a
    dtype that the format does not have; CLV_E_IO; CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_arrays_save(const clv_array *arrays, uint32_t n, const char *path);

/** @} */

/* ---- tensors and programs --------------------------------------------------------------------------------------- */

/** @defgroup run Tensors and programs
 *  @{ */

/** One reference to a tensor: elements in memory, with a type, sizes and strides. What PyTorch gives, and what goes to
    it, is on the same memory. */
typedef struct clv_tensor clv_tensor;

/** Copies `data`, row-major, on the CPU. dtype as in plan text: "f32", "i64", …
    @ownership the tensor is the caller's, clv_tensor_free(); the data is not kept.
    @errors CLV_E_OVERFLOW for sizes beyond what a tensor can have; CLV_E_NOMEM.
    @threads any. */
CLV_API clv_status clv_tensor_from_data(const void *data, const char *dtype, uint32_t ndim, const int64_t *shape,
                                        clv_tensor **out);

/** Gives back one reference.
    @threads alone. */
CLV_API void clv_tensor_free(clv_tensor *t);

/** A tensor on the caller's own memory of the CPU: nothing is copied. strides count elements, NULL: row-major. What runs
    may depend on how memory is aligned: 64 bytes are what PyTorch itself gives.
    @ownership the tensor is the caller's, clv_tensor_free(). The memory must stay until `release(ctx)` is called, which
    happens once, on any thread, when the last reference is gone (release may be NULL: the memory then has to outlive all
    that was made of it). On failure it is not called.
    @errors CLV_E_OVERFLOW for sizes beyond what a tensor can have; CLV_E_NOMEM.
    @threads any. */
CLV_API clv_status clv_tensor_wrap(void *data, const char *dtype, uint32_t ndim, const int64_t *shape,
                                   const int64_t *strides, void (*release)(void *ctx), void *ctx, clv_tensor **out);

struct DLManagedTensor; /* of DLPack's header */

/** A tensor of DLPack (without a version), on the same memory.
    @ownership the tensor is the caller's, clv_tensor_free(). It takes `from` over and calls its deleter once, when the
    last reference is gone; on failure `from` stays the caller's.
    @errors CLV_E_UNSUPPORTED for a type or device that tensors do not have; CLV_E_OVERFLOW for sizes.
    @threads any. */
CLV_API clv_status clv_tensor_from_dlpack(struct DLManagedTensor *from, clv_tensor **out);

/** A tensor for DLPack (without a version), on the same memory.
    @ownership *out is the caller's, who calls its deleter; it keeps the memory, t may be freed before.
    @errors CLV_E_UNSUPPORTED for what has no plain memory: sparse, nested, lazily conjugated; CLV_E_TORCH.
    @threads any. */
CLV_API clv_status clv_tensor_to_dlpack(const clv_tensor *t, struct DLManagedTensor **out);

/** Copies the elements, of a quantised tensor its integers, row by row into `size` bytes of the caller's, from any device.
    @errors CLV_E_INVALID if size is not clv_tensor_bytes(); CLV_E_TORCH.
    @threads any. */
CLV_API clv_status clv_tensor_copy_to(const clv_tensor *t, void *to, size_t size);

/** The tensor on another device ("cpu", "cuda:0"); a new reference to itself if it is there.
    @ownership the tensor is the caller's, clv_tensor_free().
    @errors CLV_E_INVALID for what is no device here; CLV_E_TORCH.
    @threads any. */
CLV_API clv_status clv_tensor_to_device(const clv_tensor *t, const char *device, clv_tensor **out);

/** Where a tensor is: "cpu", "cuda:0"; "?" for NULL.
    @ownership borrowed; valid until the next call of this function on this thread.
    @threads any. */
CLV_API const char *clv_tensor_device(const clv_tensor *t);

/** Bytes of the elements of a tensor; -1: it has no plain ones.
    @threads any. */
CLV_API int64_t clv_tensor_bytes(const clv_tensor *t);

/** Row-major data on the CPU; NULL if the tensor is elsewhere or laid out otherwise.
    @ownership borrowed from the tensor.
    @threads any. */
CLV_API const void *clv_tensor_data(const clv_tensor *t);

/** Dimensions of a tensor; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_tensor_ndim(const clv_tensor *t);

/** The size of dimension i; -1 if there is none.
    @threads any. */
CLV_API int64_t clv_tensor_dim(const clv_tensor *t, uint32_t i);

/** "f32", "i64", … as in plan text; "?" for a dtype that plans do not have.
    @ownership static text.
    @threads any. */
CLV_API const char *clv_tensor_dtype(const clv_tensor *t);

/** A plan, or a part of it, ready to run. Made by clv_program_create(), released by clv_program_free(). */
typedef struct clv_program clv_program;

/** Options of clv_program_create(). */
typedef struct clv_program_options {
	size_t size;          /**< sizeof(clv_program_options) */
	uint32_t first, end;  /**< nodes first … end-1; end 0: to the last */
	bool debug;           /**< check every result against the plan and name the first that differs */
	bool inference;       /**< run without autograd, whatever the caller's mode */
	const char *optimize; /**< "none", "safe" (NULL), "fast": what may be rewritten to run faster (docs/optimize.md) */
	int threads; /**< that an operator uses in runs of this program, 1 to 1024; 0: as the thread that runs it has it */
} clv_program_options;

/* clang-format off */
/** The defaults: `clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;` */
#define CLV_PROGRAM_OPTIONS_INIT {.size = sizeof(clv_program_options), .inference = true}
/* clang-format on */

/** Makes a plan, or a part of it, ready to run. options NULL: the defaults.
    @ownership the program is the caller's, clv_program_free(); it borrows the plan, which must outlive it.
    @errors CLV_E_UNSUPPORTED for what cannot run from C (Python code, an operator that PyTorch does not have, a part
    that needs what another part reads from data), and for threads where all of the process have one number;
    CLV_E_INVALID for nodes or arguments that do not exist, or a bad number of threads; CLV_E_TORCH.
    @threads any. [run] */
CLV_API clv_status clv_program_create(const clv_plan *p, const clv_program_options *options, clv_program **out);

/** Releases a program and its references to bound tensors.
    @threads alone. [run] */
CLV_API void clv_program_free(clv_program *g);

/** Binds what a program reads from outside the plan: parameters, buffers, constants. Each by its name as in the plan
    text ("conv1.weight", "#0"), before the first run.
    @ownership the program keeps a reference of its own.
    @errors CLV_E_NOT_FOUND if the program reads nothing of that name.
    @threads alone. [run] */
CLV_API clv_status clv_program_bind(clv_program *g, const char *name, const clv_tensor *t);

/** Tensors that clv_program_run() takes; 0 for NULL.
    @threads any. [run] */
CLV_API uint32_t clv_program_input_count(const clv_program *g);

/** Tensors that clv_program_run() gives: those of the plan's output, or what goes on to the part behind it; then what
    tensors of the model are re-bound to in this part, in the order of the plan's rebinds. 0 for NULL.
    @threads any. [run] */
CLV_API uint32_t clv_program_output_count(const clv_program *g);

/** Runs.
    @ownership inputs are borrowed; each output is a new reference, the caller's, clv_tensor_free().
    @errors CLV_E_INPUT and CLV_E_LAYOUT for inputs, or bound tensors, that do not fit; CLV_E_GUARD where the data leads
    elsewhere than at capture; CLV_E_TORCH from an operator; CLV_E_OVERFLOW for sizes. There are no outputs then.
    @threads any, at the same time too, unless the plan writes to its inputs or to tensors of the model. [run] */
CLV_API clv_status clv_program_run(const clv_program *g, const clv_tensor *const *inputs, uint32_t ninputs,
                                   clv_tensor **outputs, uint32_t noutputs);

/** @} */

/* ---- runtimes: artifacts that run ------------------------------------------------------------------------------- */

/** @defgroup runtimes Runtimes: artifacts that run
 *  @{ */

/** A model of an artifact, or a part of it, with its tensors: on the file's mapped memory where that is possible, or on
    another device. Made by clv_runtime_create(), released by clv_runtime_free(). What the model changes (buffers) is the
    runtime's own: two runtimes of one artifact do not see each other. */
typedef struct clv_runtime clv_runtime;

/** Options of clv_runtime_create(). */
typedef struct clv_runtime_options {
	size_t size;        /**< sizeof(clv_runtime_options) */
	const char *device; /**< "cpu", "cuda:0": everything is moved there; NULL: as it was captured */
	const char *part; /**< "prefix" or "suffix" of a file that has the whole, cut model; NULL: all that the file has */
	bool unproven;    /**< also serve sizes at which the model was never recorded, by the plan's formulas */
	bool debug;       /**< check every result against the plan and name the first that differs */
	bool allow_compiled; /**< compiled parts may run, which are code of whoever made the file; without it only those do
	                          that this user compiled (docs/security.md) */
	bool tape_only;      /**< no compiled part is used */
	const char
		*optimize; /**< "none", "safe" (NULL): the same bits; "fast": within tolerances, chosen by the first run */
	int threads; /**< that an operator, or a compiled part, uses in runs of this runtime, 1 to 1024; 0: as the thread that
	                  runs it has it. Other runtimes keep theirs, at the same time too (docs/optimize.md) */
	bool any_weights; /**< of a suffix: also take boundaries that were made with other weights than it has */
	double timeout;   /**< seconds that a run may take; 0: as long as it likes. Asked between operators. */
	int64_t
		max_memory; /**< bytes of tensors on the CPU that a run may have at once, besides weights and inputs, and that
	                         the elements of one tensor may come to, views too; 0: no limit */
	bool allow_signed; /**< as allow_compiled, but only of an artifact with clv_artifact_signature_verified() */
	bool sandbox; /**< run it in another process that can compute and nothing else (docs/artifact.md). The artifact was
	                   opened with `copy`; timeout 0 is 60 s; not with allow_compiled, nor on a GPU */
	const char *engine; /**< what runs it: "tape" (libtorch), or "auto" (NULL): the first that takes the file */
} clv_runtime_options;

/* clang-format off */
/** The defaults: `clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;` */
#define CLV_RUNTIME_OPTIONS_INIT {.size = sizeof(clv_runtime_options)}
/* clang-format on */

/** Makes an artifact, or a part of it, ready to run. options NULL: the defaults.
    @ownership the runtime is the caller's, clv_runtime_free(). The artifact may be closed afterwards.
    @errors CLV_E_INVALID for a part that the file does not have, a device that is not here, or a bad number of threads;
    CLV_E_UNSUPPORTED for what cannot run from C, be moved to one device, or be cut into runtimes of its own, and for
    threads where all of the process have one number; CLV_E_PARSE for damaged data; CLV_E_TORCH.
    @threads any. */
CLV_API clv_status clv_runtime_create(const clv_artifact *a, const clv_runtime_options *options, clv_runtime **out);

/** The engine that runs it: "tape"; "?" for NULL.
    @ownership static text.
    @threads any. */
CLV_API const char *clv_runtime_engine(const clv_runtime *r);

/** Ends the runs of a runtime that have begun, at their next operator, with CLV_E_CANCELLED. Runs that begin later are not
    concerned.
    @threads any, while other threads run it. */
CLV_API void clv_runtime_cancel(clv_runtime *r);

/** Releases a runtime. Tensors that came out of it stay good.
    @threads alone. */
CLV_API void clv_runtime_free(clv_runtime *r);

/** A tensor that goes in or comes out, as clv_runtime_input() describes it. */
typedef struct clv_port {
	size_t size;             /**< sizeof(clv_port), set by the caller */
	const char *name;        /**< of an input; place of an output ("logits", "past[0]"); label ("%7") at a cut */
	const char *dtype;       /**< "f32" */
	const char *device;      /**< where it has to be */
	uint32_t ndim;           /**< how many dimensions there are */
	const char *const *dims; /**< "3", "B", "4*B+1": as in plan text */
} clv_port;

/** A part of a model that was compiled ahead, as clv_runtime_segment() describes it. */
typedef struct clv_segment_state {
	size_t size;         /**< sizeof(clv_segment_state), set by the caller */
	uint32_t plan;       /**< number of its plan in the file */
	uint32_t first;      /**< its first node */
	uint32_t end;        /**< the node after its last one */
	const char *backend; /**< "inductor": what compiled it */
	bool native;         /**< true: each is code of whoever made the file, whatever compiled it */
	bool compiled;       /**< it runs as compiled code, for the sizes that it was compiled for */
	const char *reason;  /**< why it does not, but operator by operator; NULL where it does */
	uint64_t runs;       /**< of the compiled code */
	uint64_t tape_runs;  /**< operator by operator: at other sizes, or for the reason */
	bool barred;         /**< the reason is that compiled code is not allowed, and this one is not the user's own */
} clv_segment_state;

/** What was done to run its plans faster, in lines: passes and what they changed, ways that were timed, which one runs.
    @ownership the text is the caller's, clv_string_free().
    @errors CLV_E_INVALID, CLV_E_NOMEM.
    @threads any. */
CLV_API clv_status clv_runtime_optimizations(const clv_runtime *r, char **out);

/** Compiled segments of the part that runs; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_runtime_segment_count(const clv_runtime *r);

/** Describes segment i: whether it runs compiled, and how often it ran. The caller sets out->size before. Code that fails
    in a run is not used again: the run goes on operator by operator, and the reason is here.
    @ownership everything in *out is borrowed from the runtime.
    @errors none of its own.
    @threads any, also while it runs. */
CLV_API clv_status clv_runtime_segment(const clv_runtime *r, uint32_t i, clv_segment_state *out);

/** Tensors that clv_runtime_run() takes; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_runtime_input_count(const clv_runtime *r);

/** Tensors that clv_runtime_run() gives; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_runtime_output_count(const clv_runtime *r);

/** Describes input i, as the file's first plan has it. The caller sets out->size before.
    @ownership everything in *out is borrowed from the runtime.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_runtime_input(const clv_runtime *r, uint32_t i, clv_port *out);

/** Describes output i, as the file's first plan has it. The caller sets out->size before.
    @ownership everything in *out is borrowed from the runtime.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_runtime_output(const clv_runtime *r, uint32_t i, clv_port *out);

/** The shape that input i of a plan of the file has at given sizes, and the strides (in elements) that it was
    captured with: ndim numbers each; strides may be NULL. Symbols without a size have their lowest (sizes NULL: all
    have), and symbols that this plan does not have are passed over: plans for single sizes have none.
    @errors CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_runtime_input_shape(const clv_runtime *r, uint32_t plan, uint32_t i, const clv_sizes *sizes,
                                           int64_t *shape, int64_t *strides);

/** Sets a parameter or buffer by its state_dict name; another name of a tied one does too. It is moved to the runtime's
    device. A model that writes it in place writes into the caller's tensor. The version of the weights that boundaries
    name follows the content: halves take each other's boundaries again when the same tensors were bound on both sides.
    For that a tensor of the model that only another part reads is accepted too, and only looked at.
    @ownership the runtime keeps a reference of its own.
    @errors CLV_E_NOT_FOUND if the model has nothing of that name; CLV_E_TORCH. A tensor of another type or shape is
    refused by the next run.
    @threads any: it waits for runs that have begun, and those that come after see the new tensor. Several calls are
    several changes: a run between them sees some of the new tensors. */
CLV_API clv_status clv_runtime_bind(clv_runtime *r, const char *name, const clv_tensor *t);

/** Name i of those that a file without weights leaves to clv_runtime_bind(); NULL: there are no more.
    @ownership borrowed from the runtime.
    @threads any. */
CLV_API const char *clv_runtime_unbound(const clv_runtime *r, uint32_t i);

/** Runs. Which plan of the file serves is decided by the sizes of the inputs; sizes that none is proven for are refused,
    unless `unproven` is set.
    @ownership inputs are borrowed; each output is a new reference, the caller's, clv_tensor_free(). An output may be on
    the memory of an input or of the model, where the forward says so.
    @errors CLV_E_INPUT and CLV_E_LAYOUT for inputs that do not fit, sizes that are not proven, a tensor that is not
    bound; CLV_E_GUARD where the data leads elsewhere than at capture; CLV_E_TORCH from an operator; CLV_E_OVERFLOW for
    sizes. There are no outputs then; what the model wrote in place before stays.
    @threads any, at the same time too; a model that changes its own tensors is run by one at a time. A plan that writes
    to its inputs writes to the caller's. */
CLV_API clv_status clv_runtime_run(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                   clv_tensor **outputs, uint32_t noutputs);

/** What crosses from a prefix to a suffix: tensors by label, and the sizes of the call. Never changed, released by
    clv_boundary_free(). */
typedef struct clv_boundary clv_boundary;

/** Runs a prefix.
    @ownership inputs are borrowed; the boundary is the caller's, clv_boundary_free().
    @errors as clv_runtime_run(); CLV_E_INVALID for a runtime that is no prefix.
    @threads as clv_runtime_run(): any. */
CLV_API clv_status clv_runtime_run_prefix(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                                          clv_boundary **out);

/** Runs a suffix on a boundary of the same split (clv_artifact_split_id()); the boundary may be used again.
    @ownership the boundary is borrowed; each output is a new reference, the caller's, clv_tensor_free().
    @errors as clv_runtime_run(); CLV_E_INPUT for a boundary of another split or plan, of other weights than the runtime
    has (unless any_weights is set), or one that lacks something;
    CLV_E_INVALID for a runtime that is no suffix.
    @threads as clv_runtime_run(): any. */
CLV_API clv_status clv_runtime_run_suffix(const clv_runtime *r, const clv_boundary *b, clv_tensor **outputs,
                                          uint32_t noutputs);

/** Releases a boundary.
    @threads alone. */
CLV_API void clv_boundary_free(clv_boundary *b);

/** Tensors that cross; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_boundary_count(const clv_boundary *b);

/** Label of tensor i, as in plan text ("%7"); NULL: there is no such one.
    @ownership borrowed from the boundary.
    @threads any. */
CLV_API const char *clv_boundary_label(const clv_boundary *b, uint32_t i);

/** Tensor i; NULL: there is no such one.
    @ownership borrowed from the boundary.
    @threads any. */
CLV_API const clv_tensor *clv_boundary_tensor(const clv_boundary *b, uint32_t i);

/** The size that a symbol ("B") had in the prefix; -1: the boundary has none.
    @threads any. */
CLV_API int64_t clv_boundary_size(const clv_boundary *b, const char *symbol);

/** The boundary as bytes: what the Python package writes and reads too. compress: NULL, "fp16", "bf16", "int8", or "zstd",
    which loses nothing (docs/payload.md).
    @ownership the bytes are the caller's, clv_bytes_free().
    @errors CLV_E_UNSUPPORTED for tensors that have no plain memory, and for zstd in a build without it; CLV_E_INVALID for
    another compression, and for numbers that are not finite where int8 is asked for; CLV_E_OVERFLOW; CLV_E_TORCH where
    data comes from another device.
    @threads any. */
CLV_API clv_status clv_boundary_pack(const clv_boundary *b, const char *compress, void **out, size_t *size);

/** The same as a file, which is written beside its place and then put there.
    @errors as clv_boundary_pack(); CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_boundary_save(const clv_boundary *b, const char *compress, const char *path);

/** How a boundary is written. */
typedef struct clv_pack_options {
	size_t size;          /**< sizeof(clv_pack_options) */
	const char *compress; /**< as of clv_boundary_pack(); NULL: as it is */
	const char *path;     /**< write this file; NULL: give bytes */
	bool no_checksum;     /**< leave out the digests by which readers notice that a byte has changed */
} clv_pack_options;

/* clang-format off */
/** The defaults: `clv_pack_options o = CLV_PACK_OPTIONS_INIT;` */
#define CLV_PACK_OPTIONS_INIT {.size = sizeof(clv_pack_options)}
/* clang-format on */

/** clv_boundary_pack(), or with a path clv_boundary_save(), with options (NULL: the defaults). With a path, out and size
    may be NULL, and are not set.
    @ownership the bytes are the caller's, clv_bytes_free().
    @errors as clv_boundary_pack() and clv_boundary_save().
    @threads any. */
CLV_API clv_status clv_boundary_write(const clv_boundary *b, const clv_pack_options *options, void **out, size_t *size);

/** What compression did to a tensor of a boundary, as clv_boundary_loss() says it. Losses are 0 where nothing is lost, and
    infinite where a number became infinite. */
typedef struct clv_loss {
	size_t size;        /**< sizeof(clv_loss), set by the caller */
	const char *method; /**< "int8"; NULL: it was not compressed */
	int64_t bytes;      /**< that it takes in the file, with the memory it shares with others; -1: it is from no file */
	double max_abs;     /**< the largest difference */
	double relative;    /**< what an element lost by its own magnitude: the mean over elements other than 0 */
	double l2;          /**< the root of the sum of squares of the differences, by that of the tensor; NaN: not said */
} clv_loss;

/** What compression cost tensor i of a boundary that was unpacked or loaded. The caller sets out->size before.
    @ownership the text in *out is static.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_boundary_loss(const clv_boundary *b, uint32_t i, clv_loss *out);

/** A boundary of bytes, which are taken as hostile. Where they have digests, these are compared.
    @ownership the boundary is the caller's, clv_boundary_free(); the bytes are not kept.
    @errors CLV_E_PARSE, also for bytes that were changed or cut off; CLV_E_UNSUPPORTED for another version, and for zstd
    in a build without it; CLV_E_OVERFLOW.
    @threads any. */
CLV_API clv_status clv_boundary_unpack(const void *data, size_t size, clv_boundary **out);

/** A boundary of a file, which is taken as hostile.
    @ownership the boundary is the caller's, clv_boundary_free().
    @errors as clv_boundary_unpack(); CLV_E_IO.
    @threads any. */
CLV_API clv_status clv_boundary_load(const char *path, clv_boundary **out);

/** Releases bytes that a function of this header gave.
    @threads alone. */
CLV_API void clv_bytes_free(void *bytes);

/** What a node took in the runs that were timed. Texts are borrowed from the runtime. */
typedef struct clv_profile_node {
	size_t size;        /**< sizeof(clv_profile_node), set by the caller */
	uint32_t plan;      /**< of the artifact */
	uint32_t node;      /**< of that plan */
	const char *name;   /**< "conv2d_1" */
	const char *op;     /**< "aten::conv2d" */
	const char *module; /**< path of the module that it ran in */
	const char *at;     /**< source line, or "" */
	uint32_t runs;      /**< how many were timed */
	int64_t min_ns;     /**< the fastest of them, in nanoseconds */
	int64_t median_ns;  /**< the one in the middle */
	int64_t total_ns;   /**< all of them */
} clv_profile_node;

/** Runs of this runtime are timed from now on, node by node, and what was timed before is forgotten; or no longer
    (on false), and what was timed can be looked at. A device is waited for after each node, which makes such runs slower.
    @errors none of its own.
    @threads alone, and one run at a time while it is on. */
CLV_API clv_status clv_runtime_profile(clv_runtime *r, bool on);

/** Nodes that were timed; 0 for NULL.
    @threads any. */
CLV_API uint32_t clv_runtime_profile_count(const clv_runtime *r);

/** What node i of them took. The caller sets out->size before.
    @ownership texts in *out are borrowed from r.
    @errors none of its own.
    @threads any. */
CLV_API clv_status clv_runtime_profile_get(const clv_runtime *r, uint32_t i, clv_profile_node *out);

/** What `cleave-torch sandbox` does: serves a runtime with `sandbox` over its end of a socket. Other programs do not call it.
    @threads alone, of a process that does nothing else; it does not return before the runtime is gone. [run] */
CLV_API int clv_sandbox_serve(int socket);

/** Waits until a device ("cuda:0") has done all that it was given; the CPU always has.
    @errors CLV_E_TORCH.
    @threads any. [run] */
CLV_API clv_status clv_synchronize(const char *device);

/** How many threads one operator may use, in the whole process; clv_runtime_options.threads says it for one runtime.
    @errors CLV_E_TORCH.
    @threads any; a run that is under way may use the old number. [run] */
CLV_API clv_status clv_set_threads(int n);

/** Seeds the random numbers of the whole process, on the CPU and on devices that are in use: a runtime on another device
    comes before.
    @errors CLV_E_TORCH.
    @threads any. [run] */
CLV_API clv_status clv_set_seed(uint64_t seed);

/** @} */

/* ---- tracing: artifacts with compiled parts [run] --------------------------------------------------------------- */

/** @defgroup tracing Tracing: what can be compiled, compiled [run]
 *  @{ */

/** Inputs of the model at one size, as clv_runtime_run() takes them. */
typedef struct clv_trace_call {
	const clv_tensor *const *inputs; /**< borrowed */
	uint32_t ninputs;                /**< how many they are */
} clv_trace_call;

/** Options of clv_trace(). */
typedef struct clv_trace_options {
	size_t size;             /**< sizeof(clv_trace_options) */
	const char *backend;     /**< "inductor", "openvino", or one that was added */
	const char *const *args; /**< for the compiler; docs/trace.md has those of each back end */
	uint32_t nargs;          /**< how many they are */
	double timeout;          /**< seconds that the compiler has for one segment; 0: as long as it takes */
	const char *workdir;     /**< keeps what compilers read and wrote, a folder per segment; NULL: nothing is kept */
	const char *cache;       /**< folder of what was compiled before; NULL: the user's own; "off": none */
	uint32_t parallel;       /**< compilers at a time; 0: as there are cores */
	const char *python;      /**< interpreter that has Cleave; NULL: $CLEAVE_PYTHON, or python3 */
	const char *const *env;  /**< "NAME=text" for compilers, beside this process's own; ends with NULL; may be NULL */
	uint32_t minimum_segment_size; /**< smaller segments run on the tape */
	uint32_t max_subgraph_count;   /**< segments at most; 0: any number */
	bool fallback;                 /**< what is not compiled runs on the tape; false: it is an error */
	double support_threshold;      /**< 0 to 1: the part of the operators that must be compiled */
	bool dynamic;                  /**< for all sizes of the plans' symbols; false: for those of the first call */
	bool dryrun;                   /**< choose segments, compile nothing */
	const char *const *ops;        /**< operators that are not compiled ("aten::sort", "aten::add.Tensor") */
	uint32_t nops;                 /**< how many they are */
	const char *const *modules;    /**< modules whose operators are not compiled: paths, or names of classes */
	uint32_t nmodules;             /**< how many they are */
	double rtol; /**< how far results may be from the tape's, of the largest number of a tensor; < 0: by dtype */
	double atol; /**< and beside that; < 0: by dtype */
	const clv_trace_call *calls; /**< what compiled parts are compared on; the first is the example */
	uint32_t ncalls;             /**< how many they are, at least one */
	/** Whether node `node` of a plan may be compiled: NULL, or the reason why not. May be NULL.
	    @ownership the text is copied. */
	const char *(*select)(void *ctx, const clv_plan *p, uint32_t node);
	/** Called now and then with what is going on; false stops everything. May be NULL. */
	bool (*progress)(void *ctx, const char *what, uint32_t done, uint32_t total);
	/** Called with a line about what was found. May be NULL. */
	void (*log)(void *ctx, const char *line);
	void *ctx;            /**< for the three functions, which are called on the calling thread */
	bool keep_slower;     /**< keep compiled segments that are slower than the tape; false: they are dropped, as long as
	                       there is fallback. For files that will run elsewhere */
	const char *optimize; /**< how the tape runs that they are timed beside: as in clv_runtime_options */
} clv_trace_options;

/* clang-format off */
/** The defaults: `clv_trace_options o = CLV_TRACE_OPTIONS_INIT;` */
#define CLV_TRACE_OPTIONS_INIT \
	{.size = sizeof(clv_trace_options), .backend = "inductor", .minimum_segment_size = 2, .fallback = true, \
	 .rtol = -1, .atol = -1}
/* clang-format on */

/** Compiles what can be compiled of the plans of an artifact, which must be a whole, uncut model. Every compiled segment was
    compared with the tape on all calls; one that cannot be compiled, or differs, is narrowed down until only the operator
    that is to blame is left on the tape. Then each segment is timed beside the tape of its nodes, and the whole beside the
    whole tape; what takes longer is dropped. The report is in the artifact: clv_artifact_report().
    @ownership the new artifact is the caller's, clv_artifact_close(); it keeps what it needs of `a`.
    @errors CLV_E_NOT_FOUND for a back end that is not there; CLV_E_UNSUPPORTED without fallback and CLV_E_INVALID below the
    threshold list what is not compiled; CLV_E_TIMEOUT; CLV_E_CANCELLED; CLV_E_IO if there is no room to work; CLV_E_INPUT for calls
    that do not fit; CLV_E_TORCH.
    @threads any. */
CLV_API clv_status clv_trace(const clv_artifact *a, const clv_trace_options *options, clv_artifact **out);

/** Whether compiled segments in TorchScript programs may run, whoever made it: programs that Python's
    TracedModule.to_torchscript() wrote call the operator cleave::segment, which is there once this library is loaded. Where
    it is not allowed, which is the default, segments that this user did not compile run operator by operator. It sets
    CLEAVE_ALLOW_COMPILED in the environment to 1 or 0; processes that are started from now on inherit it.
    @errors CLV_E_NOMEM.
    @threads alone: other threads must not read or change the environment meanwhile. */
CLV_API clv_status clv_allow_compiled(bool allow);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
