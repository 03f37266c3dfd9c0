/* Scans a whole stream before a plan is built from it.
 * Looks at a whole stream before a plan is made of it: what torch.tensor left behind, which memory is written or given
 * away, and whether memory from empty() is read before an operator wrote it. */
#include "capture/builder.h"

#include <string.h>

void each_tensor(builder *b, const br_arg *args, uint32_t n, tensor_fn f, void *ctx)
{
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_TENSOR)
			f(b, args[i].u.id, ctx);
		else if (args[i].kind == BR_LIST)
			each_tensor(b, args[i].u.list.at, args[i].u.list.n, f, ctx);
	}
}

/* What torch.tensor leaves behind: the buffer it fills from Python, and its conversion. */
static bool is_residue_op(const stream_op *o)
{
	return op_rows[o->op_id].memory == MEMORY_EMPTY || o->op_id == OP_to_device || o->op_id == OP_to_dtype ||
	       o->op_id == OP_to_dtype_layout || o->op_id == OP_to_other || o->op_id == OP__to_copy ||
	       o->op_id == OP_detach;
}

static void count_stream_use(builder *b, uint32_t t, void *ctx)
{
	(void)b;
	((uint32_t *)ctx)[t]++;
}

static void any_used(builder *b, uint32_t t, void *ctx)
{
	(void)b;
	uint32_t **later_and_found = ctx;
	if (later_and_found[0][t])
		*later_and_found[1] = 1;
}

clv_status drop_residue(builder *b)
{
	const stream *s = b->s;
	uint32_t *later = mem_alloc((s->tensors.n + 1) * sizeof *later), found;
	TRY_MEM(later);
	for (uint32_t i = 0; i < s->outputs.n; i++)
		later[s->outputs.at[i]]++;
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		later[s->rebinds.at[i].tensor]++;
	for (uint32_t i = s->ops.n; i-- > 0;) {
		const stream_op *o = &s->ops.at[i];
		found = 0;
		each_tensor(b, o->results, o->nresults, any_used, (uint32_t *[]){later, &found});
		b->drop[i] = is_residue_op(o) && !found;
		if (!b->drop[i])
			each_tensor(b, o->args, o->nargs, count_stream_use, later);
	}
	mem_free(later);
	return CLV_OK;
}

static void touch_storage(builder *b, uint32_t t, void *ctx)
{
	(void)ctx;
	if (b->s->tensors.at[t].storage != NONE)
		b->touched[b->s->tensors.at[t].storage] = true;
}

void find_touched(builder *b)
{
	const stream *s = b->s;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		for (uint32_t k = 0; k < o->nwrites && o->op_id != OP_detach_; k++)
			touch_storage(b, o->writes[k], NULL);
		if (o->op_id == OP_cleave_python)
			each_tensor(b, o->args, o->nargs, touch_storage, NULL);
	}
	for (uint32_t i = 0; i < s->outputs.n; i++)
		touch_storage(b, s->outputs.at[i], NULL);
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		touch_storage(b, s->rebinds.at[i].tensor, NULL);
}

static clv_status note_op(const stream *s, const stream_op *o, clv_status st)
{
	detail(op, "%s", o->op);
	detail(module, "%s", o->scope ? s->scopes.at[o->scope].path : "");
	detail(source, "%s", o->at ? o->at : "");
	return st;
}

clv_status fail_at(const stream *s, const stream_op *o, const char *what)
{
	clv_status st = fail(CLV_E_UNSUPPORTED, "%s%s%s%s%s: %s", o->op, o->scope ? " in " : "",
	                     o->scope ? s->scopes.at[o->scope].path : "", o->at ? " at " : "", o->at ? o->at : "", what);
	return note_op(s, o, st);
}

/* As fail_at, for an error that is on its way and does not name the operator yet. */
clv_status more_at(const stream *s, const stream_op *o, clv_status st)
{
	if (status_details()->op[0])
		return st;
	st = fail_more(st, "%s%s%s%s%s", o->op, o->scope ? " in " : "", o->scope ? s->scopes.at[o->scope].path : "",
	               o->at ? " at " : "", o->at ? o->at : "");
	return note_op(s, o, st);
}

static int64_t elements(const stream_tensor *t)
{
	int64_t n = 1;
	for (uint32_t i = 0; i < t->ndim; i++)
		n *= t->sizes[i];
	return n;
}

typedef struct read_check {
	const stream_op *op;
	bool bad;
	uint32_t storage; /* shares_storage: looked for */
	bool shares;
} read_check;

static void shares_storage(builder *b, uint32_t t, void *ctx)
{
	read_check *c = ctx;
	c->shares |= b->s->tensors.at[t].storage == c->storage;
}

static void check_read(builder *b, uint32_t t, void *ctx)
{
	read_check *c = ctx;
	const stream_tensor *x = &b->s->tensors.at[t];
	if (x->storage == NONE || !b->unwritten[x->storage] || elements(x) == 0)
		return;
	for (uint32_t k = 0; k < c->op->nwrites; k++)
		if (b->s->tensors.at[c->op->writes[k]].storage == x->storage)
			return;
	c->storage = x->storage;
	c->shares = false;
	each_tensor(b, c->op->results, c->op->nresults, shares_storage, c);
	c->bad |= !c->shares;
}

static bool reads_no_data(const stream_op *o)
{
	op_name name = op_split(o->op);
	return op_listed(TAKES_SHAPE, &name) || o->op_id == OP_cleave_python;
}

/* Memory from empty() must be written by a recorded operator before one reads it. */
clv_status check_unwritten(builder *b)
{
	const stream *s = b->s;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		read_check c = {.op = o};
		if (b->drop[i])
			continue;
		if (!reads_no_data(o))
			each_tensor(b, o->args, o->nargs, check_read, &c);
		if (c.bad)
			return fail_at(s, o,
			               "it reads memory from empty() that no recorded operator wrote; it was filled from "
			               "outside PyTorch's operators, or not at all");
		for (uint32_t k = 0; k < o->nwrites; k++)
			if (s->tensors.at[o->writes[k]].storage != NONE)
				b->unwritten[s->tensors.at[o->writes[k]].storage] = false;
		if (op_rows[o->op_id].memory == MEMORY_EMPTY && o->nresults == 1 && o->results[0].kind == BR_TENSOR &&
		    !o->nwrites) {
			uint32_t st = s->tensors.at[o->results[0].u.id].storage;
			if (st != NONE)
				b->unwritten[st] = true;
		}
	}
	return CLV_OK;
}
