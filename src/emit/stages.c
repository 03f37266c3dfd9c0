/* Writes the file of a pipeline: a module per stage, a description of their inputs and outputs, and the chain of them.
 *
 * Stages are written by the same code as a single view; each has a writer of its own. The imports and helpers above them
 * are known when all are written, so texts are put together at the end. */
#include <string.h>

#include "emit/emit.h"
#include "plan/ops.h"
#include "split/frontier.h"

typedef struct file {
	arena arena;
	const plan *p;
	const stages_spec *spec;
	writer *w; /* per stage; spec->nstages of each */
	source_spec *views;
	stage_state *states;
	strbuf classes, config, pack;
	writer needs;                              /* of all stages: what the file has above them */
	bool given, blocks, tensors, stays, sized; /* some stage has such, or takes sizes as keywords */
	int64_t *sizes;                            /* per symbol: for the configuration */
	bool *pack_sizes;                          /* per symbol: pack_outputs takes it */
	bool object, whole;
	strbuf device_name;
	twins twins; /* with nodes: the other mode is known */
} file;

/* ---- checks -------------------------------------------------------------------------------------- */

static clv_status check_ends(const plan *p, const node_id *ends, uint32_t n)
{
	if (!n || !ends)
		return fail(CLV_E_INVALID, "a pipeline has at least one stage");
	for (uint32_t i = 0; i < n; i++)
		if ((i && ends[i] < ends[i - 1]) || ends[i] > p->nodes.n)
			return fail(CLV_E_INVALID, "stage %u cannot end at node %u of %u", i, ends[i], p->nodes.n);
	if (ends[n - 1] != p->nodes.n)
		return fail(CLV_E_INVALID, "the last stage ends at node %u, and the plan has %u", ends[n - 1], p->nodes.n);
	return CLV_OK;
}

static clv_status read_stage_sizes(const plan *p, const stages_spec *s, int64_t *sizes)
{
	if (s->batch_symbol && symbol_named(p, s->batch_symbol, strlen(s->batch_symbol)) == NONE)
		return fail(CLV_E_INVALID, "the plan has no symbol %s", s->batch_symbol);
	return choose_sizes(p, &s->sizes, sizes);
}

static bool is_state(uint8_t kind)
{
	return kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR || kind == VALUE_CONST;
}

static const twins *known_twins(const file *f)
{
	return f->twins.node ? &f->twins : NULL;
}

/* Running statistics are written though the operator does not say so. */
static bool updates_statistics(const file *f, node_id id)
{
	const plan *p = f->p;
	const node *n = &p->nodes.at[id];
	if (!node_op(p, id)->statistics || n->nargs <= 5 || p->args.at[n->args + 5].kind != ARG_BOOL)
		return false;
	return p->args.at[n->args + 5].u.b || twins_arg(known_twins(f), id, 5);
}

static void note_written(const file *f, node_id id, bool *written)
{
	const plan *p = f->p;
	const node *n = &p->nodes.at[id];
	for (uint32_t i = 0; i < n->nwrites; i++)
		written[alias_root(p, p->ids.at[n->writes + i])] = true;
	for (uint32_t i = 3; i < 5 && updates_statistics(f, id); i++) {
		const arg *a = &p->args.at[n->args + i];
		if (a->kind == ARG_VALUE)
			written[alias_root(p, a->u.v)] = true;
	}
}

static clv_status fail_shared(const plan *p, value_id v, uint32_t one, uint32_t other)
{
	strbuf b = STRBUF_INIT;
	value_label(p, v, &b);
	strbuf_printf(
		&b,
		" is written by stage %u and used by stage %u, which would have copies of their own: put both into one "
		"stage",
		one, other);
	return strbuf_fail(CLV_E_UNSUPPORTED, &b);
}

/* A tensor of the model that one stage changes must be of no concern to the others. */
static clv_status check_state(const file *f, uint32_t stage, const bool *written)
{
	const plan *p = f->p;
	for (value_id v = 0; v < p->values.n; v++) {
		value_id root = alias_root(p, v);
		if (!written[root] || !is_state(p->values.at[root].kind))
			continue;
		for (uint32_t i = 0; i < f->spec->nstages; i++)
			if (i != stage && f->states[i].used[v])
				return fail_shared(p, root, stage, i);
	}
	return CLV_OK;
}

/* Two inputs of a stage on the same memory are two tensors once they were sent. */
static clv_status check_inputs(const file *f, uint32_t stage, const bool *written)
{
	const plan *p = f->p;
	const view *v = &f->w[stage].v;
	for (uint32_t i = 0; stage && i < v->inputs.n; i++)
		for (uint32_t k = 0; k < i; k++) {
			value_id root = alias_root(p, v->inputs.at[i]);
			if (written[root] && root == alias_root(p, v->inputs.at[k]))
				return fail(
					CLV_E_UNSUPPORTED,
					"stage %u writes into memory that two of its inputs share (%s and %s): let it begin earlier or "
					"later",
					stage, ident_value(&f->w->ids, v->inputs.at[k]), ident_value(&f->w->ids, v->inputs.at[i]));
		}
	return CLV_OK;
}

static clv_status check_rebinds(const file *f, uint32_t stage)
{
	const view *v = &f->w[stage].v;
	for (uint32_t i = 0; i < v->rebinds.n; i++)
		for (uint32_t k = 0; k < f->spec->nstages; k++)
			if (k != stage && f->states[k].used[f->p->rebinds.at[v->rebinds.at[i]].target])
				return fail_shared(f->p, f->p->rebinds.at[v->rebinds.at[i]].target, stage, k);
	return CLV_OK;
}

static bool is_in(const value_id *at, uint32_t n, value_id v)
{
	for (uint32_t i = 0; i < n; i++)
		if (at[i] == v)
			return true;
	return false;
}

/* What stands for a value in the other mode is there in the stage that makes the value. */
static clv_status check_stands(const file *f, uint32_t stage, const bool *written)
{
	const plan *p = f->p;
	const view *in = &f->w[stage].v;
	for (uint32_t i = 0; f->twins.node && i < in->inputs.n; i++) {
		value_id v = in->inputs.at[i];
		if (twins_absent(&f->twins, v) && written[alias_root(p, v)])
			return fail(CLV_E_UNSUPPORTED, "stage %u would not have %s, which it writes", stage,
			            ident_value(&f->w->ids, v));
	}
	for (value_id v = 0; f->twins.stand && v < p->values.n; v++) {
		value_id own = f->twins.stand[v];
		node_id made = p->values.at[v].def;
		if (own == NONE || made < f->views[stage].first || made >= f->views[stage].end)
			continue;
		node_id before = p->values.at[own].def;
		bool here = before != NONE && before >= f->views[stage].first;
		if (!here && !is_in(in->inputs.at, in->inputs.n, own) && !is_in(in->externals.at, in->externals.n, own))
			return fail(CLV_E_UNSUPPORTED, "stage %u would need %s there, which it does not have", stage,
			            ident_value(&f->w->ids, own));
	}
	return CLV_OK;
}

static uint32_t stage_at(const node_id *ends, node_id n)
{
	uint32_t i = 0;
	while (n >= ends[i])
		i++;
	return i;
}

/* The stages are those of the captured mode. */
static clv_status check_captured(const file *f)
{
	const node_id *ends = f->spec->captured;
	for (node_id n = 0; ends && n < f->p->nodes.n; n++)
		if (!twins_alone(&f->twins, n) && stage_at(f->spec->ends, n) != stage_at(ends, f->twins.node[n]))
			return fail(CLV_E_UNSUPPORTED, "stage %u would not have %s", stage_at(ends, f->twins.node[n]),
			            plan_s(f->p, f->p->nodes.at[n].op));
	return CLV_OK;
}

static clv_status check_stages(file *f)
{
	const plan *p = f->p;
	bool *written = arena_alloc(&f->arena, p->values.n);
	TRY(arena_status(&f->arena));
	for (uint32_t i = 0; i < f->spec->nstages; i++) {
		memset(written, 0, p->values.n);
		for (node_id n = f->views[i].first; n < f->views[i].end; n++)
			note_written(f, n, written);
		twins_spread(known_twins(f), written);
		TRY(check_stands(f, i, written));
		TRY(check_state(f, i, written));
		TRY(check_rebinds(f, i));
		TRY(check_inputs(f, i, written));
	}
	return CLV_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static void note_stage_use(void *ctx, value_id v)
{
	stage_state *st = ctx;
	st->used[v] = true;
}

bool stage_trains(const writer *w)
{
	return w->p->training == !w->stage->spec->captured;
}

const char *stage_device(const writer *w)
{
	const stage_state *st = w->stage;
	const char *given = st->spec->devices ? st->spec->devices[st->number] : NULL;
	return given ? given : st->device != NONE ? plan_s(w->p, st->device) : "cpu";
}

bool is_elsewhere(const writer *w, value_id v)
{
	const value *x = &w->p->values.at[v];
	return x->type == TYPE_TENSOR && x->device != w->stage->device;
}

/* The device of the model: the one of its tensors that is not the CPU, if there is one. */
static str_id model_device(const plan *p)
{
	str_id found = NONE;
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->type == TYPE_TENSOR && (found == NONE || !strcmp(plan_s(p, found), "cpu")))
			found = x->device;
	}
	return found;
}

/* "device", unless a module tensor or a module of the model is called so. */
static void choose_device_name(const plan *p, strbuf *b)
{
	bool taken = true;
	for (strbuf_puts(b, "device"); taken && !b->failed; strbuf_puts(b, taken ? "_" : "")) {
		taken = false;
		for (value_id v = 0; v < p->values.n; v++) {
			const char *name = plan_s(p, p->values.at[v].name);
			taken |= is_state(p->values.at[v].kind) && !strncmp(name, b->at, b->n) &&
			         (name[b->n] == '\0' || name[b->n] == '.');
		}
		for (scope_id s = 0; s < p->scopes.n; s++) {
			const char *path = plan_s(p, p->scopes.at[s].path);
			taken |= !strncmp(path, b->at, b->n) && (path[b->n] == '\0' || path[b->n] == '.');
		}
	}
	strbuf_putc(b, '\0');
}

static clv_status open_stage(file *f, uint32_t i)
{
	const stages_spec *s = f->spec;
	f->views[i] = (source_spec){.first = i ? s->ends[i - 1] : 0,
	                            .end = s->ends[i],
	                            .del = s->del,
	                            .asked = s->asked,
	                            .ctx = s->ctx,
	                            .literal = s->literal,
	                            .formal = s->formal};
	f->states[i] = (stage_state){.spec = s,
	                             .number = i,
	                             .device = model_device(f->p),
	                             .device_name = f->device_name.at,
	                             .sizes = f->sizes,
	                             .twins = known_twins(f),
	                             .used = arena_alloc(&f->arena, f->p->values.n)};
	f->w[i] = (writer){.p = f->p, .s = &f->views[i], .stage = &f->states[i]};
	TRY(arena_status(&f->arena));
	for (node_id n = f->views[i].first; n < f->views[i].end; n++)
		node_each_arg(f->p, n, note_stage_use, &f->states[i]);
	return writer_init(&f->w[i]);
}

static clv_status open_stages(file *f)
{
	uint32_t n = f->spec->nstages;
	choose_device_name(f->p, &f->device_name);
	f->w = arena_array(&f->arena, n, sizeof *f->w);
	f->views = arena_array(&f->arena, n, sizeof *f->views);
	f->states = arena_array(&f->arena, n, sizeof *f->states);
	f->pack_sizes = arena_alloc(&f->arena, f->p->symbols.n);
	f->sizes = arena_array(&f->arena, f->p->symbols.n, sizeof *f->sizes);
	TRY_MEM(!f->arena.failed && !f->device_name.failed);
	TRY(read_stage_sizes(f->p, f->spec, f->sizes));
	for (uint32_t i = 0; i < n; i++)
		TRY(open_stage(f, i));
	return CLV_OK;
}

static void file_free(file *f)
{
	for (uint32_t i = 0; f->w && f->states && i < f->spec->nstages; i++) {
		writer_free(&f->w[i]);
		layers_free(&f->states[i].layers);
		vec_free(&f->states[i].given);
	}
	arena_free(&f->arena);
	strbuf_free(&f->classes);
	strbuf_free(&f->config);
	strbuf_free(&f->pack);
	strbuf_free(&f->device_name);
	twins_free(&f->twins);
}

static bool takes_size(const writer *w, symbol_id s)
{
	value_id input;
	uint32_t dim;
	return w->symbol_used[s] && !symbol_shown(w, s, &input, &dim);
}

static bool any_takes_size(const file *f, symbol_id s)
{
	for (uint32_t i = 0; i < f->spec->nstages; i++)
		if (takes_size(&f->w[i], s))
			return true;
	return false;
}

/* SIZES = ("B",): keywords that the forward takes; in all stages or in none. */
static void write_sizes(const file *f, const writer *w, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	uint32_t count = 0;
	strbuf_puts(&line, "SIZES = (");
	for (symbol_id s = 0; s < f->p->symbols.n; s++)
		if (takes_size(w, s))
			strbuf_printf(&line, "%s\"%s\"", count++ ? ", " : "", ident_symbol(&w->ids, s));
	strbuf_puts(&line, count == 1 ? ",)" : ")");
	layout_line(b, INDENT, &line);
}

/* GIVEN = ("const_0",): tensors that must be set though no state_dict has them. */
static void write_given(const writer *w, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, "GIVEN = (");
	for (uint32_t i = 0; i < w->stage->given.n; i++) {
		strbuf path = STRBUF_INIT;
		place_path(w, w->stage->given.at[i], &path);
		strbuf_puts(&line, i ? ", " : "");
		write_string_of(&path, &line);
	}
	strbuf_puts(&line, w->stage->given.n == 1 ? ",)" : ")");
	layout_line(b, INDENT, &line);
}

/* STAY = (1,): inputs that do not go to the device of the stage; in all stages or in none. */
static void write_stays(const writer *w, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	uint32_t count = 0;
	strbuf_puts(&line, "STAY = (");
	for (uint32_t k = 0; k < w->v.inputs.n; k++)
		if (is_elsewhere(w, w->v.inputs.at[k]))
			strbuf_printf(&line, "%s%u", count++ ? ", " : "", k);
	strbuf_puts(&line, count == 1 ? ",)" : ")");
	layout_line(b, INDENT, &line);
}

static void write_what(const writer *w, strbuf *b)
{
	const source_spec *s = w->s;
	if (s->first == s->end)
		strbuf_puts(b, "    \"\"\"Only passes values on.\"\"\"\n\n");
	else
		strbuf_printf(b, "    \"\"\"Nodes %u to %u of the %u of the model.\"\"\"\n\n", s->first, s->end - 1,
		              w->p->nodes.n);
}

/* A mode that is not in this file is refused when it is asked for. */
static void write_train(const file *f, strbuf *b)
{
	strbuf text = STRBUF_INIT, line = STRBUF_INIT;
	bool trains = f->p->training;
	strbuf_printf(&text, "the model was captured in %s mode, and in %s mode ", trains ? "training" : "evaluation",
	              trains ? "evaluation" : "training");
	write_harmless(f->spec->only, &text);
	strbuf_printf(b, "\n    def train(self, mode=True):\n        if %smode:\n", trains ? "not " : "");
	strbuf_puts(&line, "raise RuntimeError(");
	write_string_of(&text, &line);
	strbuf_putc(&line, ')');
	layout_line(b, BODY + INDENT, &line);
	strbuf_puts(b, "        return super().train(mode)\n");
}

static void write_stage(file *f, uint32_t i, strbuf *init /* taken */)
{
	writer *w = &f->w[i];
	strbuf *b = &f->classes;
	strbuf_printf(b, "\n\nclass Stage%u(%s):\n", i, w->root_part ? "Part" : "nn.Module");
	write_what(w, b);
	size_t before = b->n;
	if (f->given)
		write_given(w, b);
	if (f->sized)
		write_sizes(f, w, b);
	if (f->stays)
		write_stays(w, b);
	strbuf_puts(b, b->n > before ? "\n" : "");
	strbuf_move(b, init);
	if (f->spec->only)
		write_train(f, b);
	write_forward(w, b);
}

/* After all bodies and constructors are written. */
static void find_needs(file *f)
{
	writer *all = &f->needs;
	for (uint32_t i = 0; i < f->spec->nstages; i++) {
		const writer *w = &f->w[i];
		all->part |= w->part;
		all->call |= w->call;
		all->flag |= w->flag;
		all->guard |= w->guard;
		all->copy |= w->copy;
		all->math |= w->math;
		all->torchvision |= w->torchvision;
		f->given |= f->states[i].given.n > 0;
		f->blocks |= f->states[i].blocks;
		f->tensors |= f->states[i].tensors;
		for (uint32_t k = 0; k < w->v.inputs.n; k++)
			f->stays |= is_elsewhere(w, w->v.inputs.at[k]);
	}
	for (symbol_id s = 0; s < f->p->symbols.n; s++)
		f->sized |= any_takes_size(f, s);
}

/* Bodies first: they show what the heads need. */
static clv_status write_stages(file *f)
{
	uint32_t n = f->spec->nstages;
	strbuf *inits = arena_array(&f->arena, n, sizeof *inits);
	clv_status st = arena_status(&f->arena);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		st = layers_find(&f->w[i], &f->states[i].layers);
		if (st == CLV_OK)
			st = write_body(&f->w[i]);
		if (st == CLV_OK)
			st = write_init(&f->w[i], &inits[i]);
		if (st != CLV_OK)
			st = fail_more(st, "stage %u: ", i);
	}
	find_needs(f);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		write_stage(f, i, &inits[i]);
	for (uint32_t i = 0; inits && i < n; i++)
		strbuf_free(&inits[i]);
	return st;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void put_model_name(const char *s, strbuf *b)
{
	for (; *s; s++)
		strbuf_putc(b, (unsigned char)*s < 0x20 || (unsigned char)*s >= 0x7F || strchr("\"\\", *s) ? '?' : *s);
}

static void write_docstring(const file *f, strbuf *b)
{
	const plan *p = f->p;
	strbuf_puts(b, "\"\"\"");
	put_model_name(plan_s(p, p->model), b);
	strbuf_printf(b,
	              " as a pipeline of %u stage%s. Written by Cleave.\n\n"
	              "    pipeline = Pipeline(%s)  # all stages, one after the other\n"
	              "    load_model_state(pipeline.stages, model.state_dict())\n"
	              "    output = pipeline(inputs)\n\n"
	              "Each stage is a module by itself: its forward takes what the stage before it returns,\n"
	              "its parameters and buffers have the model's names. create_pipeline_configuration()\n"
	              "says what goes in and out of each.\n\n"
	              "The model was captured in %s mode. ",
	              f->spec->nstages, f->spec->nstages == 1 ? "" : "s", f->blocks ? "blocks=blocks" : "",
	              stage_trains(f->w) ? "training" : "evaluation");
	if (f->spec->only)
		strbuf_puts(b, "What it does in the other one is not in this\nfile: a stage refuses to be switched to it.\n");
	else if (known_twins(f))
		strbuf_puts(b, "train() and eval() switch the stages as they\nswitch the model.\n");
	else
		strbuf_puts(b, "train() and eval() switch layers of torch.nn;\n"
		               "whatever else the model did by its mode is as it was captured.\n");
	if (f->given)
		strbuf_puts(b, "\nTensors in a stage's GIVEN are in no state_dict of the model: load_model_state must be\n"
		               "given them too, under these names. state_dict() of the PartitionedPlan has them.\n");
	if (f->blocks)
		strbuf_puts(b, "\nModules that the model runs as a whole are not part of this file: Pipeline, and each\n"
		               "stage that calls some, takes blocks={path: module}, and has them from then on.\n");
	strbuf_puts(b, "\"\"\"\n\n");
}

/* The name is used by itself, and not as the end of another: F. and not self.F. */
static bool uses_word(const strbuf *b, const char *word)
{
	size_t n = strlen(word);
	for (size_t i = 1; !b->failed && i + n <= b->n; i++)
		if (!memcmp(b->at + i, word, n) && strchr(" (,[{-", b->at[i - 1]))
			return true;
	return false;
}

static void write_top(const file *f, strbuf *b)
{
	const writer all = f->needs;
	bool tensors = f->tensors;
	write_docstring(f, b);
	strbuf_puts(b, all.flag ? "import contextlib\n" : "");
	strbuf_puts(b, tensors ? "import dataclasses\n" : "");
	strbuf_puts(b, all.math ? "import math\n" : "");
	strbuf_puts(b, all.flag || tensors || all.math ? "\n" : "");
	strbuf_puts(b, "import torch\n");
	strbuf_puts(b, uses_word(&f->classes, "F.") ? "import torch.nn.functional as F\n" : "");
	strbuf_puts(b, all.torchvision ? "import torchvision  # noqa: F401 (it registers operators)\n" : "");
	strbuf_puts(b, "from torch import nn\n");
	write_helpers(&all, b);
	if (f->blocks)
		strbuf_puts(b, "\n\ndef given_block(blocks, name):\n"
		               "    \"\"\"A module that was kept whole, and is not part of this file.\"\"\"\n"
		               "    if not blocks or name not in blocks:\n"
		               "        raise ValueError(\n"
		               "            f\"the stage needs the model's {name}: blocks={{{name!r}: module}}\"\n"
		               "        )\n"
		               "    return blocks[name]\n");
	if (tensors)
		strbuf_puts(b, "\n\ndef tensors_of(tree):\n"
		               "    \"\"\"The tensors of a nested structure, in order.\"\"\"\n"
		               "    if torch.is_tensor(tree):\n"
		               "        return [tree]\n"
		               "    if isinstance(tree, dict):\n"
		               "        tree = list(tree.values())\n"
		               "    elif dataclasses.is_dataclass(tree):\n"
		               "        names = [f.name for f in dataclasses.fields(tree)]\n"
		               "        tree = [getattr(tree, name, None) for name in names]\n"
		               "    parts = tree if isinstance(tree, (list, tuple)) else ()\n"
		               "    return [t for part in parts for t in tensors_of(part)]\n");
	if (f->object)
		strbuf_puts(b, "\n\nclass Output(dict):\n"
		               "    \"\"\"Fields as keys and as attributes; it stands for a class of the model's own.\"\"\"\n\n"
		               "    def __getattr__(self, name):\n"
		               "        try:\n"
		               "            return self[name]\n"
		               "        except KeyError:\n"
		               "            raise AttributeError(name) from None\n");
}

static void write_load(const file *f, strbuf *b)
{
	bool given = f->given;
	strbuf_puts(b, "\n\ndef load_model_state(stages, state):\n"
	               "    \"\"\"Copies the tensors of a state_dict of the model into the stages that have them.\"\"\"\n"
	               "    for stage in stages:\n"
	               "        own = dict(stage.named_parameters(remove_duplicate=False))\n"
	               "        own.update(stage.named_buffers(remove_duplicate=False))\n");
	strbuf_printf(b, "        for name in %s:\n", given ? "[*stage.state_dict(), *stage.GIVEN]" : "stage.state_dict()");
	strbuf_puts(b, "            if name not in state:\n"
	               "                if name.endswith(\"" STATISTICS_COUNTER "\"):\n"
	               "                    continue  # old files lack it\n"
	               "                raise KeyError(f\"the state has no {name}");
	strbuf_puts(b, given ? "; see GIVEN\")\n" : "\")\n");
	strbuf_puts(b, "            if own[name].shape != state[name].shape:\n"
	               "                raise ValueError(f\"{name} has another shape in the state\")\n"
	               "            with torch.no_grad():\n"
	               "                own[name].copy_(state[name])\n");
}

/* Sizes that stages or the output take, from the inputs of the model. */
static clv_status write_pipeline_sizes(const file *f, strbuf *b)
{
	const writer *w = f->w;
	for (symbol_id s = 0; s < f->p->symbols.n; s++) {
		value_id input;
		uint32_t dim;
		if (!f->pack_sizes[s] && !any_takes_size(f, s))
			continue;
		if (!symbol_shown(w, s, &input, &dim))
			return fail(CLV_E_UNSUPPORTED, "no input of the model shows the size %s, which the source needs",
			            plan_s(f->p, f->p->symbols.at[s].name));
		strbuf line = STRBUF_INIT;
		strbuf_printf(&line, "%s = ", ident_symbol(&w->ids, s));
		put_symbol_from(f->p, s, ident_value(&w->ids, input), input, dim, &line);
		layout_line(b, BODY, &line);
	}
	if (!f->sized)
		return CLV_OK;
	strbuf line = STRBUF_INIT;
	bool any = false;
	strbuf_puts(&line, "sizes = {");
	for (symbol_id s = 0; s < f->p->symbols.n; s++)
		if (any_takes_size(f, s)) {
			strbuf_printf(&line, "%s\"%s\": %s", any ? ", " : "", ident_symbol(&w->ids, s), ident_symbol(&w->ids, s));
			any = true;
		}
	strbuf_putc(&line, '}');
	layout_line(b, BODY, &line);
	return CLV_OK;
}

static void write_pipeline_head(const file *f, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	const view *v = &f->w->v;
	strbuf_puts(b, "\n\nclass Pipeline(nn.Module):\n"
	               "    \"\"\"All stages in sequence: takes the model's input tensors, gives its output.\"\"\"\n\n");
	strbuf_puts(&line, "stages = [");
	for (uint32_t i = 0; i < f->spec->nstages; i++)
		strbuf_printf(&line, "%sStage%u(%s)", i ? ", " : "", i, f->states[i].blocks ? "blocks=blocks" : "");
	strbuf_putc(&line, ']');
	strbuf_printf(b,
	              "    def __init__(self, stages=None%s):\n        super().__init__()\n"
	              "        if stages is None:\n",
	              f->blocks ? ", blocks=None" : "");
	layout_line(b, BODY + INDENT, &line);
	strbuf_puts(b, "        self.stages = nn.ModuleList(stages)\n");
	if (any_shared(f->p, f->w, f->spec->nstages))
		strbuf_puts(b, "        shared = create_pipeline_configuration()[\"shared\"]\n"
		               "        for (first, name), *others in (list(c.items()) for c in shared.values()):\n"
		               "            kept = self.stages[first].get_parameter(name)\n"
		               "            for i, other in others:  # on one device they are one parameter\n"
		               "                path, _, key = other.rpartition(\".\")\n"
		               "                if self.stages[i].get_parameter(other).device == kept.device:\n"
		               "                    setattr(self.stages[i].get_submodule(path), key, kept)\n");
	strbuf_putc(b, '\n');
	strbuf_puts(&line, "def forward(self");
	for (uint32_t i = 0; i < v->inputs.n; i++)
		strbuf_printf(&line, ", %s", ident_value(&f->w->ids, v->inputs.at[i]));
	strbuf_puts(&line, "):");
	layout_line(b, INDENT, &line);
}

static clv_status write_pipeline(const file *f, strbuf *b)
{
	const view *v = &f->w->v;
	strbuf line = STRBUF_INIT;
	write_pipeline_head(f, b);
	TRY(write_pipeline_sizes(f, b));
	strbuf_puts(&line, "values = (");
	for (uint32_t i = 0; i < v->inputs.n; i++)
		strbuf_printf(&line, "%s%s", i ? ", " : "", ident_value(&f->w->ids, v->inputs.at[i]));
	strbuf_puts(&line, v->inputs.n == 1 ? ",)" : ")");
	layout_line(b, BODY, &line);
	strbuf_printf(b,
	              "        for stage in self.stages:\n"
	              "            device = stage.%s\n",
	              f->device_name.at);
	strbuf_puts(b, f->stays ? "            moved = [\n"
	                          "                v.to(device) if torch.is_tensor(v) and i not in stage.STAY else v\n"
	                          "                for i, v in enumerate(values)\n"
	                          "            ]\n"
	                        : "            moved = [v.to(device) if torch.is_tensor(v) else v for v in values]\n");
	strbuf_printf(b,
	              "            values = stage(*moved%s)\n"
	              "            values = values if isinstance(values, tuple) else (values,)\n",
	              f->sized ? ", **{name: sizes[name] for name in stage.SIZES}" : "");
	strbuf_puts(&line, f->whole ? "return pack_outputs(values" : "return values");
	for (symbol_id s = 0; f->whole && s < f->p->symbols.n; s++)
		if (f->pack_sizes[s])
			strbuf_printf(&line, ", %s", ident_symbol(&f->w->ids, s));
	strbuf_puts(&line, f->whole ? ")" : "");
	layout_line(b, BODY, &line);
	return CLV_OK;
}

static clv_status write_file(file *f, strbuf *b)
{
	TRY(write_stages(f));
	TRY(write_config(f->w, &f->config));
	TRY(write_pack(&f->w[f->spec->nstages - 1], f->pack_sizes, &f->object, &f->whole, &f->pack));
	TRY_MEM(!f->classes.failed && !f->config.failed && !f->pack.failed);
	write_top(f, b);
	strbuf_move(b, &f->classes);
	strbuf_move(b, &f->config);
	strbuf_move(b, &f->pack);
	write_load(f, b);
	TRY(write_pipeline(f, b));
	return b->failed ? fail_nomem() : CLV_OK;
}

clv_status plan_stages_source(const plan *p, const stages_spec *s, strbuf *b)
{
	TRY(check_symbols(p));
	TRY(check_ends(p, s->ends, s->nstages));
	if (s->captured)
		TRY(check_ends(s->other, s->captured, s->nstages));
	file f = {.p = p, .spec = s};
	clv_status st = s->other ? twins_find(p, s->other, s->same, s->ctx, &f.twins) : CLV_OK;
	if (st == CLV_OK)
		st = open_stages(&f);
	if (st == CLV_OK)
		st = check_captured(&f);
	if (st == CLV_OK)
		st = check_stages(&f);
	if (st == CLV_OK)
		st = write_file(&f, b);
	file_free(&f);
	return st;
}
