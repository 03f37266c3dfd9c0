/* Operators: the rows of ops.def, and its lists of names.
 *
 * A node has the id of its operator as well as the text, found once when the node is made; all but the bridge and what people
 * read asks by id. OP_UNKNOWN, id 0, is an operator that has no row: nothing is known of it. Only what it does with memory is
 * taken from a row of the same name, whatever overload and namespace that has: such are the ids up to OP_UNKNOWN_LAST, one
 * for each op_memory. */
#pragma once

#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum op_memory {
	MEMORY_OWN,
	MEMORY_BEYOND,
	MEMORY_RESIZED,
	MEMORY_JOINED,
	MEMORY_SHARED,
	MEMORY_EMPTY,
	MEMORY_COUNT
} op_memory;

enum op_ids {
	OP_UNKNOWN,
	OP_UNKNOWN_LAST = OP_UNKNOWN + MEMORY_COUNT - 1,
#define OP(id, ...) OP_##id,
#include "plan/ops.def"
	OP_COUNT
};

/* Columns: see ops.def. 0 is what a row does not say. */
typedef enum op_view { VIEW_NEVER, VIEW_ANY, VIEW_FITTING, VIEW_MAYBE } op_view;
typedef enum op_strides {
	STRIDES_UNKNOWN,
	STRIDES_FRESH,
	STRIDES_FIRST,
	STRIDES_DENSE,
	STRIDES_EVERY, /* ELEMENTWISE */
	STRIDES_FORMAT,
	STRIDES_OUTERMOST,
	STRIDES_PRODUCT
} op_strides;
typedef enum op_gaps { GAPS_UNKNOWN, GAPS_ANY, GAPS_SAME, GAPS_FRESH } op_gaps;
typedef enum op_work { WORK_ELEMENTS, WORK_CONV, WORK_CONV_BACK, WORK_PRODUCT, WORK_SUM, WORK_ATTENTION } op_work;

typedef enum image_kind {
	IMAGE_NONE,
	IMAGE_CONV, /* argument 0 is an image, 1 the weight                                        */
	IMAGE_MAP,  /* argument 0 is an image; every other tensor is a vector                      */
	IMAGE_MIX,  /* arguments 0 and 1 are images, numbers, or what is spread over an image      */
	IMAGE_CAT,  /* argument 0 is a list of images                                              */
	IMAGE_PART, /* argument 0 is an image; results are slices of it by channels                */
	IMAGE_ROWS  /* no image, but row-major arguments give row-major results                    */
} image_kind;

typedef enum image_rule {
	RULE_ANY,
	RULE_OFF,      /* the argument is false                                                                  */
	RULE_CHANNELS, /* it is dimension 1                                                                      */
	RULE_SPATIAL,  /* it is the dimensions 2 and 3. That gives one pixel, or none: there is no layout then   */
	RULE_CONSTANT, /* it is the word "constant"                                                              */
	RULE_UNSET     /* it is none                                                                             */
} image_rule;

/* On which devices a channels-last image gives a channels-last one. */
enum image_where { WHERE_NOWHERE, WHERE_CPU, WHERE_CUDA, WHERE_BOTH };

/* When rows of a batch stay apart; see ops.def. */
typedef enum batch_rule {
	BATCH_ALONE,     /* argument 0 is rows                                                                       */
	BATCH_DIMS,      /* likewise, and the argument is dimensions, a number or a list, without 0; not left out    */
	BATCH_TWO_DIMS,  /* it and the one behind it                                                                 */
	BATCH_SHAPE,     /* it is a list of fewer dimensions than argument 0 has                                     */
	BATCH_OFF,       /* it is false                                                                              */
	BATCH_RESHAPE,   /* the order of elements stays: rows stay rows where the first size stays                   */
	BATCH_EXPAND,    /* argument 0 is rows, or spread over all of them                                           */
	BATCH_PRODUCT,   /* the argument is a matrix that all share, or rows like argument 0                         */
	BATCH_EVERY,     /* all tensors are rows                                                                     */
	BATCH_ATTENTION, /* likewise, up to the argument, a mask                                                     */
	BATCH_MASK,      /* it is a mask over argument 0                                                             */
	BATCH_GATHER,    /* it is a dimension, not 0; the one behind it is rows too                                  */
	BATCH_LIST,      /* it is a dimension, not 0; argument 0 is a list of rows                                   */
	BATCH_INDICES,   /* it is rows; argument 0 is shared                                                         */
	BATCH_SECOND     /* it is rows of a matrix; argument 0 is spread over it                                     */
} batch_rule;

typedef struct op_row {
	const char *text;             /* "aten::add.Tensor"; "" of OP_UNKNOWN */
	const char *head, *signature; /* CALL; NULL: none */
	uint16_t writer;              /* op_ids; OP_UNKNOWN: none */
	uint8_t view, strides, gaps, memory, work;
	uint8_t layers[4]; /* arguments; 0: no more */
	uint8_t off[2];    /* SWITCH: likewise */
	struct {
		uint8_t kind, rule, at, where; /* at: the argument that the rule is about */
	} image;
	struct {
		uint8_t least, rule, at; /* dimensions of argument 0, 0: nothing is known; batch_rule, and the argument */
	} batch;
	bool writes, fresh, formats, norm, host, statistics;
} op_row;

extern const op_row op_rows[OP_COUNT];

uint16_t op_find(const char *text);
/* Of a library that comes with torch: it does what its schema says and nothing else. Operators of others may count, log,
   draw or keep what they get, and no schema tells. */
bool op_known(const char *text);

static inline const op_row *node_op(const plan *p, node_id n)
{
	return &op_rows[p->nodes.at[n].op_id];
}

/* The result is on memory of its own, whatever the arguments are. */
bool op_makes_new(const op_row *r);
/* Reads or changes memory that is not among the elements of its arguments. */
static inline bool op_reaches(const op_row *r)
{
	return r->memory == MEMORY_BEYOND || r->memory == MEMORY_RESIZED || r->memory == MEMORY_JOINED;
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

/* "aten::add_.Tensor", taken apart as the dispatcher does: at the first "::", then at the first dot. */
typedef struct op_name {
	const char *text, *base; /* base: "add_.Tensor" */
	size_t space;            /* length of "aten"; 0: it has none, and base is the text */
	size_t n;                /* length of "add_" */
	size_t plain;            /* length of "add": without what says that it writes in place */
} op_name;

op_name op_split(const char *text);
bool op_in(const op_name *o, const char *space); /* a namespace: "aten" */
/* "aten::sort" is every overload of it, "aten::sort.stable" that one, "mylib::*" a namespace. Without a namespace it is an
   operator of aten, in place too: "linalg_qr", "nanmedian.dim". */
bool op_covers(const char *entry, const op_name *o);

typedef enum op_list {
	FILE_ALLOW,
	FILE_REFUSE,
	FILE_SPARSE,
	INDUCTOR_REFUSE,
	OPENVINO_TAKE,
	OPENVINO_REFUSE,
	OPENVINO_COUNT,
	OPENVINO_MOVE,
	OPENVINO_CAST,
	OPENVINO_FLOAT,
	OPENVINO_DIMS,
	OPENVINO_INDEX,
	TAKES_SHAPE
} op_list;

/* Where the operator is on the list, the head of its block: the reason, or the namespace; NULL: it is not. */
const char *op_listed(op_list list, const op_name *o);

#ifdef __cplusplus
}
#endif
