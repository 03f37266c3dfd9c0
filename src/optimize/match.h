/* Patterns of node trees that a single node can replace.
 *
 * A tree has a node at its top, whose result stays, and nodes below that make something for the others alone and go.
 * What it reads from outside are its leaves. Trees are found by patterns, which are text:
 *
 *     mul(x, rsqrt(add(mean(square(x)), E)))
 *
 * A word is a class of operators (the table in match.c: `add` in place or not, of tensors or with a number; `mean`
 * over the last dimension, which it keeps). A small letter is a tensor, the same wherever it stands; a capital is a
 * number. Numbers must be there, up to rounding. `~to(x)` is to(x) or x. Words that commute take their arguments in
 * either order. */
#pragma once

#include "optimize/rewrite.h"

enum { TREE_NODES = 24, TREE_LEAVES = 16, LETTERS = 26 };

typedef struct found_tree {
	node_id top;
	node_id nodes[TREE_NODES]; /* the top is the first */
	uint32_t n;
	value_id leaves[TREE_LEAVES];
	uint32_t nleaves;
	value_id tensors[LETTERS]; /* per small letter; NONE */
	double numbers[LETTERS];   /* per capital */
	bool has_number[LETTERS];
} found_tree;

/* Whether the pattern describes what node `top` makes. */
bool match_tree(const edit *e, node_id top, const char *pattern, found_tree *out);

static inline value_id tensor_of(const found_tree *t, char letter)
{
	return t->tensors[letter - 'a'];
}

static inline double number_of(const found_tree *t, char letter)
{
	return t->numbers[letter - 'A'];
}

/* @ in a pattern stands for another. False: that is too long. */
enum { PATTERN_SIZE = 256 };
bool pattern_with(const char *outer, const char *core, char out[PATTERN_SIZE]);

bool add_once(uint32_t *at, uint32_t *n, uint32_t most, uint32_t id); /* to a set of ids; false: it is full */
/* For trees that are found in another way. */
void tree_new(node_id top, found_tree *out);
bool tree_add_node(found_tree *t, node_id n); /* false: it is too large */
bool tree_add_leaf(found_tree *t, value_id v);
/* A node that may be below the top: plain, in the context of the top, not part of something else already. */
bool may_join(const edit *e, node_id top, node_id n);

/* Only the tree needs what the nodes below the top make, and the leaves are the same when the top runs. A tree that is
   closed can go, as a whole, for something else that does what the top does. */
bool tree_is_closed(const edit *e, const found_tree *t);
bool makes_new(const edit *e, node_id n); /* its result is on memory of its own, and it writes nothing */
clv_status tree_remove(edit *e, const found_tree *t);
