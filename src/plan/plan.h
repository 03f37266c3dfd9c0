/* The plan: one captured forward pass as flat arrays, the form that every job reads.
 *
 * Ids are indices into the arrays of the plan; nothing points from node to node. Values are inputs, external
 * data (parameters, buffers, module attributes, constants, objects) and results of nodes. The data itself lives
 * outside: a plan holds names, types and shapes. Order of nodes is the order of execution.
 *
 * Text form and grammar: docs/plan-format.md. plan_parse(plan_print(p)) equals p. */
#pragma once

#include "base/mem.h"
#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t node_id, value_id, expr_id, real_id, scope_id, symbol_id, str_id, context_id;
#define NONE UINT32_MAX

typedef struct clv_plan plan;

/* ---- types ------------------------------------------------------------------------------------------------------ */

/* name in text, bits per element (0: unknown), PyTorch's ScalarType number and its name for the type */
#define DTYPE_LIST(X)                                                                                                  \
	X(U8, "u8", 8, 0, "uint8")                                                                                         \
	X(I8, "i8", 8, 1, "int8")                                                                                          \
	X(I16, "i16", 16, 2, "int16")                                                                                      \
	X(I32, "i32", 32, 3, "int32")                                                                                      \
	X(I64, "i64", 64, 4, "int64")                                                                                      \
	X(F16, "f16", 16, 5, "float16")                                                                                    \
	X(F32, "f32", 32, 6, "float32")                                                                                    \
	X(F64, "f64", 64, 7, "float64")                                                                                    \
	X(C32, "c32", 32, 8, "complex32")                                                                                  \
	X(C64, "c64", 64, 9, "complex64")                                                                                  \
	X(C128, "c128", 128, 10, "complex128")                                                                             \
	X(BOOL, "bool", 8, 11, "bool")                                                                                     \
	X(QI8, "qi8", 8, 12, "qint8")                                                                                      \
	X(QU8, "qu8", 8, 13, "quint8")                                                                                     \
	X(QI32, "qi32", 32, 14, "qint32")                                                                                  \
	X(BF16, "bf16", 16, 15, "bfloat16")                                                                                \
	X(QU4X2, "qu4x2", 8, 16, "quint4x2")                                                                               \
	X(QU2X4, "qu2x4", 8, 17, "quint2x4")                                                                               \
	X(BITS1X8, "bits1x8", 8, 18, "bits1x8")                                                                            \
	X(BITS2X4, "bits2x4", 8, 19, "bits2x4")                                                                            \
	X(BITS4X2, "bits4x2", 8, 20, "bits4x2")                                                                            \
	X(BITS8, "bits8", 8, 21, "bits8")                                                                                  \
	X(BITS16, "bits16", 16, 22, "bits16")                                                                              \
	X(F8E5M2, "f8e5m2", 8, 23, "float8_e5m2")                                                                          \
	X(F8E4M3FN, "f8e4m3fn", 8, 24, "float8_e4m3fn")                                                                    \
	X(F8E5M2FNUZ, "f8e5m2fnuz", 8, 25, "float8_e5m2fnuz")                                                              \
	X(F8E4M3FNUZ, "f8e4m3fnuz", 8, 26, "float8_e4m3fnuz")                                                              \
	X(U16, "u16", 16, 27, "uint16")                                                                                    \
	X(U32, "u32", 32, 28, "uint32")                                                                                    \
	X(U64, "u64", 64, 29, "uint64")                                                                                    \
	X(F8E8M0FNU, "f8e8m0fnu", 8, 44, "float8_e8m0fnu")                                                                 \
	X(F4E2M1X2, "f4e2m1x2", 8, 45, "float4_e2m1fn_x2")

typedef enum dtype {
#define X(id, text, bits, number, torch) DT_##id,
	DTYPE_LIST(X)
#undef X
		DT_COUNT
} dtype;

/* Which numbers the integers of a quantised tensor stand for: element k is (k - zero point) * scale. */
typedef enum quant_scheme { QUANT_TENSOR, QUANT_CHANNEL, QUANT_CHANNEL_FLOAT, QUANT_SCHEMES } quant_scheme;

typedef struct quantiser {
	quant_scheme scheme;
	uint32_t axis;                      /* of the channels */
	uint32_t n;                         /* channels; 1 for QUANT_TENSOR */
	const double *scales, *zero_points; /* n each; zero points are integers but for QUANT_CHANNEL_FLOAT */
} quantiser;

/* What a value is when it is not a tensor: the host result of an operator (item, is_nonzero, equal, …). */
typedef enum value_type {
	TYPE_TENSOR,
	TYPE_BOOL,
	TYPE_INT,
	TYPE_FLOAT,
	TYPE_COMPLEX,
	TYPE_STR,
	TYPE_OBJECT
} value_type;

typedef enum value_kind {
	VALUE_INPUT,  /* %n, listed in plan->inputs                                                                     */
	VALUE_PARAM,  /* @name: nn.Parameter, by state_dict name                                                        */
	VALUE_BUFFER, /* @name: registered buffer                                                                       */
	VALUE_ATTR,   /* @name: tensor attribute of a module that is neither                                            */
	VALUE_CONST,  /* #n: tensor whose data goes with the plan                                                       */
	VALUE_OBJECT, /* #n: something that is no tensor (packed weights, generator, Python callable); name is its type */
	VALUE_RESULT  /* %n, result of a node                                                                           */
} value_kind;

/* ---- expressions: integers over symbols; hash-consed, so equal expressions have equal ids ----------------------- */

typedef enum expr_op {
	EXPR_CONST, /* k             */
	EXPR_SYM,   /* symbol number k */
	EXPR_ADD,
	EXPR_SUB,
	EXPR_MUL,
	EXPR_FLOORDIV, /* rounds towards minus infinity, as Python's // */
	EXPR_MOD,      /* sign of the divisor, as Python's %            */
	EXPR_MIN,
	EXPR_MAX
} expr_op;

typedef struct expr {
	expr_op op;
	expr_id a, b; /* operands, NONE for leaves */
	int64_t k;
} expr;

/* ---- reals: floats over integer expressions, computed in double as Python does; hash-consed ---------------------- */

typedef enum real_op {
	REAL_CONST, /* k                                                                       */
	REAL_INT,   /* int(e): an integer as a float; defined up to 2^53, where that is exact  */
	REAL_NEG,
	REAL_SQRT,
	REAL_EXP,
	REAL_LOG,
	REAL_LOG2,
	REAL_LOG10,
	REAL_ADD,
	REAL_SUB,
	REAL_MUL,
	REAL_DIV,
	REAL_POW
} real_op;

typedef struct real {
	real_op op;
	real_id a, b; /* operands, NONE where there are none */
	expr_id e;    /* INT, else NONE */
	double k;     /* CONST, else 0; there is one nan */
} real;

typedef struct symbol {
	str_id name;
	int64_t lo, hi; /* inclusive; lo >= 0 */
	uint8_t data;   /* 1: read from data by a node of the plan (data.h), not given by the inputs */
} symbol;

/* ---- arguments -------------------------------------------------------------------------------------------------- */

typedef enum arg_kind {
	ARG_NONE,    /* none                                                             */
	ARG_VALUE,   /* %n @name #n                                                      */
	ARG_INT,     /* expression                                                       */
	ARG_FLOAT,   /* 1.5                                                              */
	ARG_BOOL,    /* true                                                             */
	ARG_COMPLEX, /* complex(1.0, 2.0)                                                */
	ARG_STR,     /* "…"                                                              */
	ARG_DTYPE,   /* dtype:f32                                                        */
	ARG_LAYOUT,  /* layout:strided                                                   */
	ARG_MEMFMT,  /* memory:channels_last                                             */
	ARG_DEVICE,  /* device:cpu                                                       */
	ARG_LIST,    /* [a, b]; elements are consecutive in plan->args                   */
	ARG_REAL     /* float(1.0/int(B))                                                */
} arg_kind;

/* What an argument or a leaf of a tree holds; its kind says which member. */
typedef union arg_data {
	value_id v;
	expr_id e;
	real_id r;
	double f;
	bool b;
	str_id s;      /* STR, DEVICE, BYTES, OPAQUE, OBJECT */
	uint32_t code; /* DTYPE: dtype; LAYOUT, MEMFMT: index in its name table */
	struct {
		double re, im;
	} c;
	struct {
		uint32_t first, n; /* slice of plan->args */
	} list;
} arg_data;

typedef struct arg {
	uint8_t kind;    /* arg_kind                                                                                 */
	uint8_t wrapped; /* INT FLOAT BOOL COMPLEX REAL only: a Python number where the operator takes a tensor (num(2.5));
	                    it takes part in type promotion as a number, not as a 0-dim tensor                       */
	arg_data u;
} arg;

/* ---- values, nodes, scopes -------------------------------------------------------------------------------------- */

enum {
	MOST_DIMS = 64
}; /* of a tensor: tables and kernels have room for so many, and torch for no more in most operators */

enum value_flags {
	VALUE_TRAINABLE = 1,  /* parameter with requires_grad                                                  */
	VALUE_GUARD = 2,      /* tensor: shape is data-dependent and checked; host value: compared with expect  */
	VALUE_PERSISTENT = 4, /* CONST: lives in the program (closure, global); not made by the forward itself   */
	VALUE_ODD = 16,       /* tensor that is sparse, nested or opaque: its shape is not checked */
	VALUE_GRAD = 8        /* tensor required grad when captured with grad enabled                            */
};

typedef struct value {
	uint8_t kind;  /* value_kind */
	uint8_t type;  /* value_type */
	uint8_t dtype; /* TENSOR only */
	uint8_t flags;
	uint32_t ndim;
	uint32_t shape;   /* first of ndim expr ids in plan->dims                                    */
	uint32_t strides; /* likewise; NONE: row-major contiguous (kept for inputs and constants)    */
	str_id device;    /* "cpu", "cuda:0"; TENSOR only                                            */
	str_id name;      /* input name, state_dict name, object's type; NONE for results and consts */
	value_id alias;   /* the first value on the same storage; NONE: owns its storage             */
	node_id def;      /* RESULT: the node; else NONE                                             */
	uint32_t expect;  /* host value with VALUE_GUARD: index of an arg (literal) in plan->args; else NONE */
} value;

enum node_flags {
	NODE_RANDOM = 1, /* draws from a generator                                     */
	NODE_HOST = 2,   /* reads tensor data on the host                              */
	NODE_IMPURE = 4  /* must not be removed or moved though no result is used (asserts, prints, python) */
};

typedef struct node {
	str_id op;                  /* "aten::add.Tensor"; "cleave::…" are ours (docs/plan-format.md)              */
	uint32_t args, nargs;       /* slice of plan->args                                                          */
	uint32_t results, nresults; /* slice of plan->args: VALUE, NONE, or LIST of VALUE/NONE                  */
	uint32_t writes, nwrites;   /* slice of plan->ids: values written in place                              */
	scope_id scope;
	context_id context;
	str_id at; /* "file.py:12", NONE if unknown */
	uint32_t flags;
	uint16_t op_id; /* the operator's row (ops.h) */
} node;

/* A module: path is unique; the root has path "". Parents come before children. */
typedef struct scope {
	scope_id parent; /* NONE for the root */
	str_id path;     /* "layer1.0.conv1"  */
	str_id cls;      /* "Conv2d"          */
} scope;

/* Modes around a node. Context 0 is always the default: grad as the caller has it, autocast off, no flags. */
typedef struct context {
	bool nograd;                  /* inside no_grad                                                       */
	bool inference;               /* inside inference_mode                                                */
	uint32_t autocast, nautocast; /* slice of plan->autocasts                                         */
	uint32_t flags_mask, flags;   /* global flags (CTX_FLAG_LIST) this region sets, and their values  */
} context;

typedef struct autocast {
	str_id device; /* "cpu", "cuda" */
	uint8_t dtype;
	bool cache;
} autocast;

#define CTX_FLAG_LIST(X)                                                                                               \
	X(SDP_FLASH, "sdp_flash")                                                                                          \
	X(SDP_MEM_EFFICIENT, "sdp_mem_efficient")                                                                          \
	X(SDP_MATH, "sdp_math")                                                                                            \
	X(SDP_CUDNN, "sdp_cudnn")                                                                                          \
	X(CUDNN, "cudnn")                                                                                                  \
	X(MKLDNN, "mkldnn")                                                                                                \
	X(DETERMINISTIC, "deterministic")

enum ctx_flag_bit {
#define X(id, text) CTX_BIT_##id,
	CTX_FLAG_LIST(X)
#undef X
		CTX_FLAG_COUNT
};

/* ---- value trees: nested inputs and outputs --------------------------------------------------------------------- */

typedef enum tree_kind {
	TREE_NONE,
	TREE_BOOL,
	TREE_INT, /* expression */
	TREE_FLOAT,
	TREE_COMPLEX,
	TREE_STR,
	TREE_BYTES,
	TREE_VALUE,
	TREE_OPAQUE, /* s: how it prints; equality is by that text; the object itself lives in Python */
	TREE_LIST,
	TREE_TUPLE,
	TREE_DICT,   /* children alternate key, value */
	TREE_OBJECT, /* s: "module:Class"; children alternate field name (STR), value */
	TREE_REAL
} tree_kind;

/* Trees are stored in prefix order: a container is followed by its n children. */
typedef struct tree {
	uint8_t kind;
	uint32_t n; /* children (pairs count as two) */
	arg_data u;
} tree;

typedef VEC(tree) trees;

/* ---- the plan --------------------------------------------------------------------------------------------------- */

/* At the end of a run module tensor `target` (PARAM, BUFFER, ATTR) is re-bound to `value`. */
typedef struct rebind {
	value_id target, value;
} rebind;

/* Nodes first … end-1. */
typedef struct node_span {
	node_id first, end;
} node_span;

/* A second name of the same parameter (tied weights). */
typedef struct tie {
	value_id value;
	str_id name;
} tie;

typedef struct str {
	const char *s; /* NUL-terminated, in the arena; may hold NUL bytes for TREE_BYTES */
	uint32_t n;
} str;

/* The arrays are for reading; build.c grows them. What it has no function for may be set directly: model, training,
   grad_modes, flags and aliases of values, trees, rebinds, ties. */
struct clv_plan {
	str_id model;       /* class name */
	bool training;      /* root module's flag */
	uint8_t grad_modes; /* bit 0: proven equal to eager without grad; bit 1: with grad */
	bool moved;         /* a write to a tensor from outside and a use of another changed places: see plan_reorder */

	VEC(str) strs; /* interned */
	VEC(symbol) symbols;
	VEC(expr) exprs;
	VEC(real) reals;
	VEC(scope) scopes;
	VEC(context) contexts;
	VEC(autocast) autocasts;
	VEC(value) values;
	VEC(node) nodes;
	VEC(arg) args;
	VEC(uint32_t) dims; /* expr ids: shapes and strides */
	VEC(uint32_t) ids;  /* value ids: writes */
	VEC(value_id) inputs;
	trees in_tree; /* TUPLE of two: (args tuple, kwargs dict); empty array: none given */
	trees out_tree;
	VEC(rebind) rebinds;
	VEC(tie) ties;
	VEC(node_span) groups; /* nodes that are evaluated as one (group.c); ascending, apart. Only engines look at them: a
	                          plan does the same without. An edit, another order or a part of a plan has none */

	/* private to build.c: intern tables and the string arena */
	struct plan_intern *intern;
};

/* build.c. Every id passed in must be of this plan; bad ids are CLV_E_INVALID, never undefined. */
clv_status plan_new(plan **out);
void plan_free(plan *p);
clv_status plan_str(plan *p, const char *s, size_t n, str_id *out);
clv_status plan_cstr(plan *p, const char *s, str_id *out);
clv_status plan_symbol(plan *p, const char *name, int64_t lo, int64_t hi, symbol_id *out);
symbol_id plan_find_symbol(const plan *p, const plan *other, symbol_id s); /* of the same name; NONE: none */
/* An existing path gives its id. The parent is the nearest module above the path that is already there; it may be
   passed, or NONE. */
clv_status plan_scope(plan *p, scope_id parent, const char *path, const char *cls, scope_id *out);
/* Hash-consed. The autocasts are ac[0 … c->nautocast-1]; c->autocast is ignored. */
clv_status plan_context(plan *p, const context *c, const autocast *ac, context_id *out);

typedef struct tensor_spec {
	enum dtype dtype;
	uint32_t ndim;
	const expr_id *shape;
	const expr_id *strides; /* NULL: contiguous or not kept */
	const char *device;
} tensor_spec;

clv_status plan_tensor(plan *p, value_kind kind, const char *name /* or NULL */, const tensor_spec *t, value_id *out);
clv_status plan_object(plan *p, const char *type_name, value_id *out);
clv_status plan_host(plan *p, value_type type, value_id *out);

typedef struct node_spec {
	const char *op;
	const arg *args; /* lists: already pushed with plan_list */
	uint32_t nargs;
	const arg *results;
	uint32_t nresults;
	const value_id *writes;
	uint32_t nwrites;
	scope_id scope;
	context_id context;
	const char *at; /* or NULL */
	uint32_t flags;
} node_spec;

clv_status plan_list(plan *p, const arg *elems, uint32_t n, arg *out); /* copies elems into plan->args */
clv_status plan_node(plan *p, const node_spec *s, node_id *out);       /* sets def of the results */
clv_status plan_expect(plan *p, value_id host, const arg *literal);    /* makes the host value a guard */

const char *plan_s(const plan *p, str_id s);    /* "" for NONE */
value_id alias_root(const plan *p, value_id v); /* v itself when it owns its storage */

/* Tables of names */
const char *dtype_name(dtype d);
uint32_t dtype_bits(dtype d);
bool dtype_quantised(dtype d);
bool dtype_has_grad(dtype d); /* floating point or complex: a tensor of it may require grad */
bool dtype_parse(const char *s, size_t n, dtype *out);
bool device_is(const char *device, const char *type); /* "cuda:0" is of type "cuda" */
/* strided sparse_coo sparse_csr mkldnn sparse_csc sparse_bsr sparse_bsc jagged: PyTorch's order; NULL ends */
extern const char *const layout_names[];
extern const char *const memfmt_names[]; /* contiguous preserve channels_last channels_last_3d; NULL ends */
extern const char *const ctx_flag_names[CTX_FLAG_COUNT];

/* "relu_17": operator name without namespace and overload, and which occurrence it is ("relu" is the first).
   name.c builds the table once per plan in O(nodes). */
typedef struct node_names node_names;
clv_status node_names_new(const plan *p, node_names **out); /* caller frees */
void node_names_free(node_names *t);
const char *node_name(const node_names *t, node_id n);
node_id node_find(const node_names *t, const char *name); /* NONE if there is none */

/* place.c */
const char *module_path(const plan *p, node_id n);     /* of the module a node ran in; "": the root, or none */
bool is_inside(const char *path, const char *module);  /* the module itself counts */
void place_print(const plan *p, node_id n, strbuf *b); /* " in body.0 at model.py:12", as far as it is known */

/* effects.c: what flags say, unless the arguments take it back */
bool node_draws(const plan *p, node_id n);     /* NODE_RANDOM, and it is no dropout that drops nothing */
bool value_guarded(const plan *p, value_id v); /* VALUE_GUARD, and it is not made by indexing with numbers alone */
/* Its result is on memory of its own in the plan, but may be a view of its argument where that lies otherwise: the memory
   that it may be on, and the result. */
bool node_may_view(const plan *p, node_id n, value_id *from, value_id *to);
/* Per value that owns its memory: what is written on one side of such a node may be on the other. */
void written_through(const plan *p, node_id first, node_id end, bool *written);

/* expr.c */
clv_status expr_const(plan *p, int64_t k, expr_id *out);
clv_status expr_sym(plan *p, symbol_id s, expr_id *out);
clv_status expr_make(plan *p, expr_op op, expr_id a, expr_id b, expr_id *out); /* folds constants, x+0, x*1, x*0 … */
clv_status expr_eval(const plan *p, expr_id e, const int64_t *syms, int64_t *out); /* overflow, division by 0: error */
/* Of all expressions at once: out and ok have p->exprs.n elements; ok is false where one is not defined. A symbol that
   is negative is not known yet. */
clv_status expr_eval_all(const plan *p, const int64_t *syms, int64_t *out, bool *ok);
clv_status expr_parse(plan *p, const char *text, size_t n, expr_id *out); /* hostile text, over p's symbols */
bool expr_is_const(const plan *p, expr_id e, int64_t *k);
/* The symbol and its value where e, which has one symbol times and plus constants alone, is n; false: it is not such. */
bool expr_solve(const plan *p, expr_id e, int64_t n, symbol_id *s, int64_t *out);
void expr_print(const plan *p, expr_id e, strbuf *b);

/* real.c */
clv_status real_const(plan *p, double k, real_id *out);
clv_status real_int(plan *p, expr_id e, real_id *out);
clv_status real_make(plan *p, real_op op, real_id a, real_id b /* NONE: op takes one */, real_id *out);
/* False where Python would raise (1/0, sqrt(-1), an overflow). `ints`, `ok`: of all expressions (expr_eval_all). */
bool real_eval(const plan *p, real_id r, const int64_t *ints, const bool *ok, double *out);
bool real_at(const plan *p, real_id r, const int64_t *syms, double *out); /* slower: from values of the symbols */
void real_print(const plan *p, real_id r, strbuf *b);
bool same_bits(double a, double b); /* any nan is like any other; 0.0 is not -0.0 */

static inline bool tree_has_children(uint8_t kind)
{
	return kind >= TREE_LIST && kind <= TREE_OBJECT;
}

/* print.c, parse.c, verify.c, same.c */
void plan_print(const plan *p, strbuf *b);
void node_print(const plan *p, node_id n, strbuf *b); /* one line, no newline */
void arg_print(const plan *p, const arg *a, strbuf *b);
void value_label(const plan *p, value_id v, strbuf *b);             /* %5 @conv1.weight #2 */
clv_status value_label_text(const plan *p, value_id v, char **out); /* caller frees with mem_free */
void value_print_type(const plan *p, value_id v, strbuf *b);        /* f32[B,64] */
clv_status plan_parse(const char *text, size_t n, plan **out);      /* hostile input; errors "line:col: …" */
clv_status plan_verify(const plan *p);         /* a plan that was only parsed or built may still break a rule */
bool plan_equal(const plan *a, const plan *b); /* both must verify */
/* The nodes before `end` do the same on the same inputs, in calls with these values of their symbols (-1: read from data);
   each may be for other sizes, too. same_const: whether a constant of each has the same data, which is not in a plan. */
clv_status plan_same_at(const plan *a, const int64_t *symbols_a, const plan *b, const int64_t *symbols_b, node_id end,
                        bool (*same_const)(void *ctx, value_id a, value_id b), void *ctx, bool *out);

/* copy.c. All ids stay; in a reordered plan node i is node order[i] of p. An order that breaks a rule is CLV_E_VERIFY, one
   that changes what the plan does is not noticed; but `moved` is set where it would be another plan if tensors from outside
   shared memory. */
clv_status plan_copy(const plan *p, plan **out);
clv_status plan_reorder(const plan *p, const node_id *order, plan **out);

/* extract.c. Nodes first … end-1 as a plan of their own that says nothing about the rest: its inputs are the inputs of
   view_segment, in that order, its output is a tuple of the view's outputs, likewise; values have the ids that its text gives
   them. `origin`, unless NULL: per value of it, the one of p; caller frees with mem_free. CLV_E_UNSUPPORTED: a value that is
   no tensor, a shape that depends on data. */
clv_status plan_extract(const plan *p, node_id first, node_id end, plan **out, value_id **origin);
/* Whether inputs and results have ascending ids in the order of the text. It is so after parsing; the order of a view's
   inputs then survives a file. */
bool plan_in_text_order(const plan *p);

/* retarget.c. The plan with its one device (the one that is not the CPU, if there is one) changed for another. */
clv_status plan_retarget(const plan *p, const char *device, plan **out);

/* group.c. Nodes that an engine may evaluate row by row without storing what is between them: pure, each result a dense tensor
   on memory of its own, and a space in common: all results have its shape, or that without or with 1 for the last dimension (a
   number per row). `space`: a value that has the shape. The first node may be anything that makes such a result, a matrix
   product for instance. Gives NULL, or the rule that the nodes break, and the node that does. */
const char *group_fault(const plan *p, node_span s, node_id *at, value_id *space);
typedef enum group_shape { SHAPE_OTHER, SHAPE_WHOLE, SHAPE_ROWS, SHAPE_ROWS_DROPPED } group_shape;
group_shape shape_in(const plan *p, value_id v, value_id space); /* ROWS: 1 in place of the last dimension */

/* inspect.c: a page for people */
clv_status plan_inspect(const plan *p, strbuf *b);

/* brief.c: facts for a few lines, each "title<tab>text<newline>": parameters, inputs, outputs, symbols, mode */
clv_status plan_brief(const plan *p, strbuf *b);

/* bytes of a tensor value with these symbol values; 0 for a value that is no tensor */
clv_status value_bytes(const plan *p, value_id v, const int64_t *syms, int64_t *out);

/* live.c: uses of values. first/last use by node position; outputs count as use at p->nodes.n. */
typedef struct liveness {
	node_id *last; /* per value: last node that has it among its arguments or writes; NONE: never used; p->nodes.n: it
	                  is in the output tree or bound by a rebind. A view counts only for itself: holding a tensor
	                  keeps its storage, so a value may be dropped here though views of it are used later */
} liveness;
clv_status liveness_new(const plan *p, liveness *out);
/* The same for a plan that is cut into parts: a rebind is done by the part that has its place, so its value is needed no
   longer than that. A place is the last node that uses the old tensor, makes the new one or writes its memory; nodes.n:
   the part that ends the plan (the output tree has the old tensor, or the new one is another of the model's).
   places: per rebind; NULL: not wanted. */
clv_status liveness_parts(const plan *p, liveness *out, node_id *places);
void liveness_free(liveness *l);

/* Calls f for each VALUE among the args (or results) of a node, lists included. */
typedef void (*value_fn)(void *ctx, value_id v);
void node_each_arg(const plan *p, node_id n, value_fn f, void *ctx);
void node_each_result(const plan *p, node_id n, value_fn f, void *ctx);
void node_each_use(const plan *p, node_id n, value_fn f, void *ctx); /* arguments, then what it writes */
uint32_t sort_unique_ids(value_id *at, uint32_t n);                  /* ascending, each once; how many are left */
void plan_each_output(const plan *p, value_fn f, void *ctx);         /* values in the output tree */

#ifdef __cplusplus
}
#endif
