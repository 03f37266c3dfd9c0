/* cleave.h: the public C interface of Cleave.
 *
 * Cleave holds a PyTorch model as a *plan*: the operators of one forward pass, in order, with the shapes of all
 * values, the modules they came from and the names of the parameters they read. A plan is captured once (from
 * Python), is plain text, and can be cut and run in pieces from C.
 *
 * Two libraries implement this header:
 *
 *   libcleave-core   plans: parse, print, verify, look at, cut. Needs libc and jansson.
 *   libcleave        all of that and running: links libtorch, needs no Python.
 *
 * Functions marked [run] are only in libcleave.
 *
 * Conventions
 *   - A function that can fail returns a clv_status; its result goes into the last parameter, which is left alone
 *     on failure. clv_last_error() has the message of the last failure on the calling thread.
 *   - Handles are opaque. What a *_create, *_parse or *_print gives, the caller releases with the matching
 *     *_free (or clv_string_free). Everything else is borrowed and lives as long as the handle it came from.
 *   - A plan does not change after it was made, and a program never does: any number of threads may use one at
 *     the same time. Tensors follow PyTorch's rules.
 *   - Nothing prints, nothing aborts, no C++ exception comes out.
 *
 * A complete program
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
 */
#ifndef CLEAVE_H
#define CLEAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CLV_API __attribute__((visibility("default")))
#else
#define CLV_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CLV_VERSION "0.1.0"

/* Every status with what it means. */
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
	X(E_IO, "reading or writing failed")

typedef enum clv_status {
#define X(id, text) CLV_##id,
	CLV_STATUS_LIST(X)
#undef X
		CLV_STATUS_COUNT
} clv_status;

/* "E_PARSE"; "?" for a number that is no status. */
CLV_API const char *clv_status_name(clv_status s);

/* Message of the last failure on this thread, "" if there was none; valid until the next failure on this thread. */
CLV_API const char *clv_last_error(void);

/* Version of the library ("0.1.0"), which may be newer than CLV_VERSION of the header. */
CLV_API const char *clv_version(void);

CLV_API void clv_string_free(char *s); /* NULL is allowed */

/* ---- plans ------------------------------------------------------------------------------------------------------ */

typedef struct clv_plan clv_plan;

/* Reads and verifies the text form; errors say line and column. The text is taken as hostile. */
CLV_API clv_status clv_plan_parse(const char *text, size_t size, clv_plan **out);
CLV_API void clv_plan_free(clv_plan *p); /* NULL is allowed */

/* The canonical text; parsing it gives an equal plan. Caller frees with clv_string_free. */
CLV_API clv_status clv_plan_print(const clv_plan *p, char **out);
CLV_API clv_status clv_plan_verify(const clv_plan *p);
CLV_API bool clv_plan_equal(const clv_plan *a, const clv_plan *b);

/* A page about the plan for people: inputs, outputs, parameters, operators, guards. Caller frees. */
CLV_API clv_status clv_plan_inspect(const clv_plan *p, char **out);

CLV_API uint32_t clv_plan_node_count(const clv_plan *p);
CLV_API uint32_t clv_plan_input_count(const clv_plan *p);
CLV_API uint32_t clv_plan_output_count(const clv_plan *p); /* tensors in the output tree, in its order */

typedef struct clv_source_options {
	size_t size;            /* sizeof(clv_source_options)                             */
	uint32_t first, end;    /* nodes first … end-1; end 0: to the last                */
	const char *class_name; /* of the generated class; NULL: "Segment"                */
	bool del;               /* values are deleted after their last use                */
} clv_source_options;

/* clang-format off */
#define CLV_SOURCE_OPTIONS_INIT {sizeof(clv_source_options), 0, 0, NULL, false}
/* clang-format on */

/* Python source of a plan, or of a part of it: an nn.Module that needs nothing but torch. Parameters and buffers have
   the model's names, constants are buffers const_0, const_1, … for the caller to load. Its forward takes what comes in
   and returns a tuple of what goes out (of a whole plan: the tensors of the output). A node that cannot be written
   (Python code, packed weights) is CLV_E_UNSUPPORTED. options NULL: the defaults. Caller frees with clv_string_free. */
CLV_API clv_status clv_plan_source(const clv_plan *p, const clv_source_options *options, char **out);

/* ---- frontiers: where a plan can be cut ------------------------------------------------------------------------- */

typedef struct clv_frontier {
	size_t size;               /* sizeof(clv_frontier), set by the caller                     */
	uint32_t position;         /* the prefix is nodes 0 … position                            */
	const char *name;          /* of the last prefix node: "relu_3"; borrowed               */
	const char *module;        /* its module path                                             */
	uint32_t boundary_tensors; /* that cross, passthrough inputs among them                   */
	uint32_t passthrough_inputs;
	int64_t boundary_bytes; /* at the sizes of the options; INT64_MAX: too many, or none   */
	double prefix_cost;     /* share of the estimated work before the cut, 0 … 1           */
	bool trainable_suffix;  /* the suffix reads a parameter that requires grad             */
	const char *unsafe;     /* NULL, or the reason why the plan cannot be cut here         */
	uint32_t prefix_nodes, suffix_nodes;
	double prefix_flops, suffix_flops;              /* estimated from shapes, at the same sizes     */
	int64_t prefix_params, suffix_params;           /* elements of the parameters that a side reads */
	int64_t prefix_param_bytes, suffix_param_bytes; /* one that both sides read counts on both      */
	int64_t prefix_memory, suffix_memory; /* bytes of all tensors of the model that a side reads, and the most that
	                                         its inputs and results take at one time */
} clv_frontier;

typedef struct clv_frontiers clv_frontiers; /* all candidate frontiers of one plan */

typedef struct clv_frontiers_options {
	size_t size;                /* sizeof(clv_frontiers_options)                                            */
	const char *const *symbols; /* names of symbols ("B")                                                   */
	const int64_t *values;      /* the size of each when bytes and work are counted; others have the lowest */
	uint32_t nsymbols;
} clv_frontiers_options;

/* clang-format off */
#define CLV_FRONTIERS_OPTIONS_INIT {sizeof(clv_frontiers_options), NULL, NULL, 0}
/* clang-format on */

/* Borrows p. options NULL: the defaults. Linear in the plan. */
CLV_API clv_status clv_frontiers_create(const clv_plan *p, const clv_frontiers_options *options, clv_frontiers **out);
CLV_API void clv_frontiers_free(clv_frontiers *f);
CLV_API uint32_t clv_frontiers_count(const clv_frontiers *f);
CLV_API clv_status clv_frontiers_get(const clv_frontiers *f, uint32_t i, clv_frontier *out);

/* Bytes that cross as a formula in the symbols: "401408*B", "4*B*S+1024". Wherever no size is negative it is exactly
   boundary_bytes at those sizes. Caller frees with clv_string_free. */
CLV_API clv_status clv_frontiers_bytes_text(const clv_frontiers *f, uint32_t i, char **out);
/* Labels of the tensors that cross, as in the plan text, with a space between: "%3 %17". Caller frees. */
CLV_API clv_status clv_frontiers_labels(const clv_frontiers *f, uint32_t i, char **out);

/* What a good frontier is. minimize is one of

     boundary_bytes                what crosses
     latency                       prefix_flops / prefix_flops_per_s + boundary_bytes / bandwidth_bytes_per_s
                                   + suffix_flops / suffix_flops_per_s, in seconds; needs the bandwidth
     prefix_memory, suffix_memory  as in clv_frontier
     prefix_flops, suffix_flops    the work on one side
     balance                       the difference of the work of both sides

   and NULL for the fewest boundary_bytes among frontiers with 20 to 80 % of the work on each side (among all, where
   there is none). It counts for "auto"; of equal frontiers the one with fewer bytes is taken, then the earlier.
   The rest are constraints, which every boundary has to meet. */
typedef struct clv_objective {
	size_t size; /* sizeof(clv_objective) */
	const char *minimize;
	bool trainable_suffix;      /* the suffix must read a parameter that requires grad */
	int64_t max_boundary_bytes; /* negative, here and below: any */
	int64_t max_prefix_memory, max_suffix_memory;
	int64_t max_prefix_params, max_suffix_params;
	double min_prefix_flops_fraction, max_prefix_flops_fraction; /* of prefix_cost, 0 … 1 */
	double max_latency_s;                                        /* 0: any */
	double bandwidth_bytes_per_s;                                /* 0: not known */
	double prefix_flops_per_s, suffix_flops_per_s;               /* 0: 1e12, a fast processor, on both sides */
} clv_objective;

/* clang-format off */
#define CLV_OBJECTIVE_INIT {sizeof(clv_objective), NULL, false, -1, -1, -1, -1, -1, 0, 1, 0, 0, 0, 0}
/* clang-format on */

/* Finds the frontier a boundary text names: "after:<module path|node name>", "50%", "percent:50", "at:50%", "auto".
   A named frontier that is unsafe, or breaks a constraint, is an error with the reason; percentages and auto skip such
   ones. Percentages are of the estimated work. An unknown name is CLV_E_NOT_FOUND and lists the nearest names. When no
   frontier meets the constraints, the error names the one that excludes the most and the best value in reach.
   objective NULL: the defaults. */
CLV_API clv_status clv_frontiers_choose(const clv_frontiers *f, const char *boundary, const clv_objective *objective,
                                        uint32_t *out);
/* Whether frontier i can be cut and meets the constraints; if not, the error says why. */
CLV_API clv_status clv_frontiers_check(const clv_frontiers *f, uint32_t i, const clv_objective *objective);

typedef struct clv_exact_options {
	size_t size;                    /* sizeof(clv_exact_options)                                              */
	const char *const *must_prefix; /* module paths and node names, as after "after:"; none: the nodes with   */
	uint32_t nmust_prefix;          /* the first 20 % of the work in the plan's order                         */
	const char *const *must_suffix; /* likewise; none: the nodes beyond 80 % of the work                      */
	uint32_t nmust_suffix;
} clv_exact_options;

/* clang-format off */
#define CLV_EXACT_OPTIONS_INIT {sizeof(clv_exact_options), NULL, 0, NULL, 0}
/* clang-format on */

/* The cut with the fewest bytes of all that keep the order of effects, not only of those at a position of the plan's
   order; of equal ones the one with the smallest prefix. *plan_out (caller frees) is the same plan with the nodes of
   the prefix first, each side in its order, where frontier *position_out is the cut. Inputs and values from outside
   keep their numbers. Where cuts are unsafe because written memory would cross twice, ways around it are searched, some
   hundred of them at most. options NULL: the defaults. */
CLV_API clv_status clv_frontiers_exact(const clv_frontiers *f, const clv_exact_options *options, clv_plan **plan_out,
                                       uint32_t *position_out);

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

#define CLV_DOT_NO_CUT UINT32_MAX
#define CLV_DOT_ALL_MODULES UINT32_MAX

typedef struct clv_dot_options {
	size_t size;                 /* sizeof(clv_dot_options)                                                     */
	uint32_t cut;                /* position of the frontier to mark; CLV_DOT_NO_CUT: the plan as it is         */
	const char *detail;          /* "module": a call of a module is one node; "operation": each operation is    */
	uint32_t max_module_depth;   /* modules this deep are one node ("a.b" is 2 deep), or CLV_DOT_ALL_MODULES;
	                              with "operation": clusters are nested this deep                             */
	const char *direction;       /* where the picture goes: "TB" "BT" "LR" "RL"                                 */
	bool show_operation_targets; /* operators: aten::conv2d                                                   */
	bool show_debug_markers;     /* in place, view, random …; dtypes, bytes, buffers                          */
	bool show_node_indices;      /* numbers and names of nodes, as "after:" takes them                        */
	const char *const *symbols;  /* as in clv_frontiers_options: at which sizes bytes are counted             */
	const int64_t *values;
	uint32_t nsymbols;
} clv_dot_options;

/* clang-format off */
#define CLV_DOT_OPTIONS_INIT {sizeof(clv_dot_options), CLV_DOT_NO_CUT, "module", 4, "TB", false, false, false, NULL, NULL, 0}
/* clang-format on */

/* A picture of a plan in the DOT language, which Graphviz turns into SVG, PDF or PNG; nothing of Graphviz is needed here.
   Operations are folded into modules, modules that have others inside are clusters. With a cut, what is before and
   behind it, what crosses and what it costs is marked; an unsafe cut is drawn too, with the reason. The same plan and
   options give the same text. Linear in the plan. options NULL: the defaults. Caller frees with clv_string_free. */
CLV_API clv_status clv_plan_dot(const clv_plan *p, const clv_dot_options *options, char **out);

/* ---- tensors and programs [run] --------------------------------------------------------------------------------- */

typedef struct clv_tensor clv_tensor; /* one reference to a PyTorch tensor */

/* Copies `data`, row-major, on the CPU. dtype as in plan text: "f32", "i64", … */
CLV_API clv_status clv_tensor_from_data(const void *data, const char *dtype, uint32_t ndim, const int64_t *shape,
                                        clv_tensor **out);
CLV_API void clv_tensor_free(clv_tensor *t); /* NULL is allowed */
/* Row-major data on the CPU; NULL if the tensor is elsewhere or laid out otherwise. */
CLV_API const void *clv_tensor_data(const clv_tensor *t);
CLV_API uint32_t clv_tensor_ndim(const clv_tensor *t);
CLV_API int64_t clv_tensor_dim(const clv_tensor *t, uint32_t i); /* -1 if out of range */
CLV_API const char *clv_tensor_dtype(const clv_tensor *t);

typedef struct clv_program clv_program; /* a plan, or a part of it, ready to run */

typedef struct clv_program_options {
	size_t size;         /* sizeof(clv_program_options)                                         */
	uint32_t first, end; /* nodes first … end-1; end 0: to the last                             */
	bool debug;          /* check every result against the plan and name the first that differs */
	bool inference;      /* run without autograd, whatever the caller's mode                    */
} clv_program_options;

/* clang-format off */
#define CLV_PROGRAM_OPTIONS_INIT {sizeof(clv_program_options), 0, 0, false, true}
/* clang-format on */

/* options NULL: the defaults. The program keeps a reference to what it needs; the plan must outlive it. */
CLV_API clv_status clv_program_create(const clv_plan *p, const clv_program_options *options, clv_program **out);
CLV_API void clv_program_free(clv_program *g);

/* What a program reads from outside the plan: parameters, buffers, constants. Bind each by its name as in the
   plan text ("conv1.weight", "#0") before the first run; the program keeps a reference. Not thread-safe. */
CLV_API clv_status clv_program_bind(clv_program *g, const char *name, const clv_tensor *t);

CLV_API uint32_t clv_program_input_count(const clv_program *g);
CLV_API uint32_t clv_program_output_count(const clv_program *g);

/* Runs. Inputs are borrowed; outputs are new references, the caller frees each. */
CLV_API clv_status clv_program_run(const clv_program *g, const clv_tensor *const *inputs, uint32_t ninputs,
                                   clv_tensor **outputs, uint32_t noutputs);

#ifdef __cplusplus
}
#endif
#endif
