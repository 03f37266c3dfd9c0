/* Writes __init__, which declares the tensors from outside, and where the generated module keeps them. */
#include <string.h>

#include "emit/emit.h"
#include "plan/intern.h"

static bool is_module_kind(uint8_t kind)
{
	return kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR;
}

/* ---- places: where tensors from outside are kept ---------------------------------------------------------------- */

/* A path whose parts are all there; a module takes anything else as a name. */
bool source_path_ok(const char *s)
{
	size_t n = strlen(s);
	return n && s[0] != '.' && s[n - 1] != '.' && !strstr(s, "..");
}

uint32_t source_marks(const plan *p)
{
	uint32_t most = 0;
	for (value_id v = 0; v < p->values.n; v++) {
		const char *name = is_module_kind(p->values.at[v].kind) ? plan_s(p, p->values.at[v].name) : "";
		size_t word = !strncmp(name, "const_", 6) ? 5 : !strncmp(name, "tensor_", 7) ? 6 : strlen(name);
		uint32_t marks = (uint32_t)strspn(name + word, "_");
		most = marks > most ? marks : most;
	}
	return most + 1;
}

void source_place(const plan *p, uint32_t marks, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	if (is_module_kind(x->kind) && source_path_ok(plan_s(p, x->name))) {
		strbuf_puts(b, plan_s(p, x->name));
		return;
	}
	strbuf_puts(b, x->kind == VALUE_CONST ? "const" : "tensor");
	for (uint32_t i = 0; i < marks; i++)
		strbuf_putc(b, '_');
	strbuf_int(b, x->kind == VALUE_CONST ? value_number(p, v) : v);
}

/* Where a path stops: after its last dot, or at its start. */
static const char *last_part(const char *path)
{
	const char *dot = strrchr(path, '.');
	return dot ? dot + 1 : path;
}

static bool all_digits(const char *s, size_t n)
{
	return n && strspn(s, "0123456789") >= n && (n == 1 || s[0] != '0') && n < 10;
}

/* self.layer1[0].conv; parts that Python cannot write after a dot go through getattr. */
static void put_path(writer *w, const char *path, const char *end, strbuf *b)
{
	strbuf text = STRBUF_INIT;
	strbuf_puts(&text, "self");
	while (path < end) {
		size_t n = strcspn(path, ".");
		if (path + n > end)
			n = (size_t)(end - path);
		if (ident_ok(path, n)) {
			strbuf_putc(&text, '.');
			strbuf_add(&text, path, n);
		} else if (all_digits(path, n)) {
			w->part = true;
			w->root_part |= text.n == 4;
			strbuf_putc(&text, '[');
			strbuf_add(&text, path, n);
			strbuf_putc(&text, ']');
		} else {
			strbuf outer = STRBUF_INIT;
			strbuf_puts(&outer, "getattr(");
			strbuf_move(&outer, &text);
			strbuf_puts(&outer, ", ");
			write_string(path, n, &outer);
			strbuf_putc(&outer, ')');
			text = outer;
		}
		path += n + (path + n < end);
	}
	strbuf_move(b, &text);
}

/* In a stage a layer may hold the tensor under a second name. */
void place_path(const writer *w, value_id v, strbuf *b)
{
	const layers *all = w->stage ? &w->stage->layers : NULL;
	if (all && all->holder[v] != NONE)
		strbuf_printf(b, "%s.%s", all->path[v], all->slots.at[all->holder[v]].name);
	else
		source_place(w->p, w->marks, v, b);
}

static clv_status place_path_text(const writer *w, value_id v, char **out)
{
	strbuf b = STRBUF_INIT;
	place_path(w, v, &b);
	return strbuf_take(&b, out);
}

void write_path(writer *w, const char *path, strbuf *b)
{
	put_path(w, path, path + strlen(path), b);
}

/* self.encoder.get_parameter("layers.0.weight"): members of a module that is given may have no other way to be read. */
static bool put_given_place(writer *w, value_id v, strbuf *b)
{
	const layers *all = w->stage ? &w->stage->layers : NULL;
	uint32_t number = all ? all->holder[v] : NONE;
	for (uint32_t i = 0; number != NONE && i < all->at.n; i++) {
		const layer *l = &all->at.at[i];
		if (!l->block || number - l->first >= l->nslots)
			continue;
		write_path(w, all->path[v], b);
		strbuf_puts(b, w->p->values.at[v].kind == VALUE_PARAM ? ".get_parameter(" : ".get_buffer(");
		write_string(all->slots.at[number].name, strlen(all->slots.at[number].name), b);
		strbuf_putc(b, ')');
		return true;
	}
	return false;
}

void write_place(writer *w, value_id v, strbuf *b)
{
	char *path = NULL;
	if (put_given_place(w, v, b))
		return;
	if (place_path_text(w, v, &path) != CLV_OK) {
		b->failed = true;
		return;
	}
	put_path(w, path, path + strlen(path), b);
	mem_free(path);
}

/* ---- __init__ --------------------------------------------------------------------------------------------------- */

typedef struct container {
	const char *path; /* borrowed from the plan's names */
	size_t n;
} container;

typedef struct containers {
	VEC(container) at;
	table by_path;
} containers;

typedef struct container_key {
	const containers *all;
	container c;
} container_key;

static bool container_same(const void *ctx, uint32_t id)
{
	const container_key *k = ctx;
	const container *c = &k->all->at.at[id];
	return c->n == k->c.n && memcmp(c->path, k->c.path, c->n) == 0;
}

/* self.layer1.conv = init */
static void declare_module(writer *w, const char *path, size_t n, const char *init, strbuf *b)
{
	strbuf line = STRBUF_INIT;
	size_t parent = n;
	while (parent && path[parent - 1] != '.')
		parent--;
	put_path(w, path, path + (parent ? parent - 1 : 0), &line);
	size_t start = line.n;
	bool plain = ident_ok(path + parent, n - parent);
	if (plain) {
		strbuf_putc(&line, '.');
		strbuf_add(&line, path + parent, n - parent);
		strbuf_printf(&line, " = %.*s(", (int)strcspn(init, "("), init);
		plain = layout_fits(BODY, &line); /* else a call: it can be broken into lines wherever its object stands */
		line.n -= line.failed ? 0 : 1;
	}
	if (plain) {
		strbuf_puts(&line, strchr(init, '('));
	} else {
		line.n = start;
		strbuf_puts(&line, ".add_module(");
		write_string(path + parent, n - parent, &line);
		strbuf_printf(&line, ", %s)", init);
	}
	layout_line(b, BODY, &line);
}

/* From now on the module is there; *fresh: it was not. */
static clv_status note_container(containers *all, const char *path, size_t n, bool *fresh)
{
	container_key k = {all, {path, n}};
	uint32_t hash = hash_bytes(path, n, (uintptr_t)all);
	*fresh = table_find(&all->by_path, hash, container_same, &k) == TABLE_NONE;
	if (!*fresh)
		return CLV_OK;
	TRY(vec_push(&all->at, k.c));
	return table_add(&all->by_path, hash, all->at.n - 1);
}

static clv_status declare_container(writer *w, containers *all, const char *path, size_t n, strbuf *b)
{
	bool fresh;
	TRY(note_container(all, path, n, &fresh));
	if (!fresh)
		return CLV_OK;
	declare_module(w, path, n, "Part()", b);
	w->part = true;
	return CLV_OK;
}

static clv_status declare_containers(writer *w, containers *all, const char *path, strbuf *b)
{
	for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
		TRY(declare_container(w, all, path, (size_t)(dot - path), b));
	return CLV_OK;
}

/* Sizes at the low end of each symbol: a placeholder until the caller gives the tensor. */
static clv_status put_low_sizes(const plan *p, uint32_t first, uint32_t n, const int64_t *low, strbuf *b)
{
	for (uint32_t i = 0; i < n; i++) {
		int64_t k = 0;
		TRY(expr_eval(p, p->dims.at[first + i], low, &k));
		strbuf_puts(b, i ? ", " : "");
		strbuf_int(b, k);
	}
	return CLV_OK;
}

static clv_status put_empty(const plan *p, const value *x, const int64_t *low, strbuf *b)
{
	if (x->strides == NONE) {
		strbuf_puts(b, x->ndim ? "torch.empty(" : "torch.empty(()");
		return put_low_sizes(p, x->shape, x->ndim, low, b);
	}
	strbuf_puts(b, "torch.empty_strided([");
	TRY(put_low_sizes(p, x->shape, x->ndim, low, b));
	strbuf_puts(b, "], [");
	TRY(put_low_sizes(p, x->strides, x->ndim, low, b));
	strbuf_putc(b, ']');
	return CLV_OK;
}

/* A stage is moved to its device as a whole. */
static void put_options(const writer *w, const value *x, strbuf *b)
{
	const plan *p = w->p;
	strbuf_printf(b, ", dtype=torch.%s", torch_dtype(x->dtype));
	if (!w->stage && strcmp(plan_s(p, x->device), "cpu") != 0) {
		strbuf_puts(b, ", device=");
		write_string(plan_s(p, x->device), strlen(plan_s(p, x->device)), b);
	}
	strbuf_putc(b, ')');
}

/* torch.empty(…), or torch.tensor(…) for a constant that fits into the source. */
static clv_status put_new_tensor(writer *w, value_id v, const int64_t *low, bool *literal, strbuf *b)
{
	const value *x = &w->p->values.at[v];
	strbuf text = STRBUF_INIT;
	clv_status st = CLV_OK;
	*literal = false;
	if (x->kind == VALUE_CONST && w->s->literal && x->strides == NONE && !(x->flags & VALUE_GRAD))
		st = w->s->literal(w->s->ctx, v, &text, literal);
	if (st == CLV_OK && *literal) {
		strbuf_puts(b, "torch.tensor(");
		strbuf_move(b, &text);
	} else if (st == CLV_OK) {
		st = put_empty(w->p, x, low, b);
	}
	strbuf_free(&text);
	put_options(w, x, b);
	return st;
}

static void put_assignment(writer *w, const char *path, const char *head, strbuf *b)
{
	const char *last = last_part(path);
	const char *end = last == path ? path : last - 1;
	put_path(w, path, end, b);
	if (!head) {
		strbuf_printf(b, ".%s = ", last);
		return;
	}
	strbuf_printf(b, ".%s(", head);
	write_string(last, strlen(last), b);
	strbuf_puts(b, ", ");
}

static bool is_declared(const writer *w, value_id v)
{
	return w->stage && w->stage->layers.holder[v] != NONE;
}

/* No state_dict of the model has it. */
static bool is_given(const writer *w, value_id v)
{
	const value *x = &w->p->values.at[v];
	if (x->kind == VALUE_CONST || x->kind == VALUE_ATTR)
		return true;
	for (uint32_t i = 0; w->stage && x->kind == VALUE_BUFFER && i < w->stage->spec->nnot_saved; i++)
		if (!strcmp(w->stage->spec->not_saved[i], plan_s(w->p, x->name)))
			return true;
	return false;
}

/* self.layer1.weight = nn.Parameter(torch.empty(…)) */
static clv_status declare_tensor(writer *w, value_id v, const char *path, const int64_t *low, strbuf *b)
{
	const value *x = &w->p->values.at[v];
	bool param = x->kind == VALUE_PARAM, literal = false;
	bool plain = ident_ok(last_part(path), strlen(last_part(path)));
	strbuf line = STRBUF_INIT, place = STRBUF_INIT;
	put_assignment(w, path, NULL, &place);
	strbuf_puts(&place, "nn.Parameter(");
	plain = plain && layout_fits(BODY, &place);
	line.failed = place.failed;
	strbuf_free(&place);
	put_assignment(w, path, !param ? "register_buffer" : plain ? NULL : "register_parameter", &line);
	strbuf_puts(&line, param ? "nn.Parameter(" : "");
	clv_status st = put_new_tensor(w, v, low, &literal, &line);
	bool given = !literal && is_given(w, v);
	bool lost = literal || x->kind == VALUE_ATTR || (w->stage && given);
	if (param)
		strbuf_puts(&line, x->flags & VALUE_TRAINABLE ? ")" : ", requires_grad=False)");
	if (!param)
		strbuf_puts(&line, lost ? ", persistent=False)" : ")");
	else if (!plain)
		strbuf_putc(&line, ')');
	if (given)
		strbuf_printf(b, "%*s# to be set: no state_dict of the model has it\n", BODY, "");
	layout_line(b, BODY, &line);
	if (st == CLV_OK && w->stage && given)
		st = vec_push(&w->stage->given, v);
	return st;
}

static clv_status declare_one(writer *w, containers *all, value_id v, const int64_t *low, strbuf *b)
{
	const plan *p = w->p;
	const value *x = &p->values.at[v];
	char *path = NULL;
	if (x->kind == VALUE_OBJECT || is_declared(w, v))
		return CLV_OK; /* the node that takes it is refused, with its name */
	TRY(place_path_text(w, v, &path));
	clv_status st = CLV_OK;
	if ((x->flags & VALUE_ODD) || dtype_quantised(x->dtype))
		st = fail(CLV_E_UNSUPPORTED, "%s is sparse, nested or quantized, and cannot be declared as source", path);
	else if (w->stage && is_in_block(p, &w->stage->layers, path))
		st = fail(CLV_E_UNSUPPORTED,
		          "%s is read from outside the module that has it, and is none of its parameters "
		          "and buffers",
		          path);
	/* names of the plan live as long as it; a container may keep pointing into them */
	bool module = is_module_kind(x->kind) && source_path_ok(plan_s(p, x->name));
	if (st == CLV_OK)
		st = declare_containers(w, all, module ? plan_s(p, x->name) : "", b);
	if (st == CLV_OK)
		st = declare_tensor(w, v, path, low, b);
	mem_free(path);
	return st;
}

/* In a stage: layers in the order of their calls, each after the modules above it. */
static clv_status declare_layers(writer *w, containers *all, strbuf *b)
{
	const layers *found = &w->stage->layers;
	bool fresh;
	for (uint32_t i = 0; i < found->at.n; i++) {
		const char *path = plan_s(w->p, w->p->scopes.at[found->at.at[i].scope].path);
		TRY(declare_containers(w, all, path, b));
		declare_module(w, path, strlen(path), found->at.at[i].init, b);
		if (found->at.at[i].block)
			TRY(note_container(all, path, strlen(path), &fresh));
	}
	return CLV_OK;
}

/* self.head.weight = self.embedding.weight; self.head.weight.requires_grad_(False) */
static void write_slot(writer *w, const layer *l, const layer_slot *s, uint32_t number, strbuf *b)
{
	const layers *found = &w->stage->layers;
	const value *x = &w->p->values.at[s->v];
	strbuf line = STRBUF_INIT;
	write_path(w, plan_s(w->p, w->p->scopes.at[l->scope].path), &line);
	strbuf_printf(&line, ".%s", s->name);
	if (found->holder[s->v] != number) {
		strbuf_puts(&line, " = ");
		write_place(w, s->v, &line);
	} else if (x->kind == VALUE_PARAM && !(x->flags & VALUE_TRAINABLE)) {
		strbuf_puts(&line, ".requires_grad_(False)");
	} else {
		line.n = 0;
	}
	layout_line(b, BODY, &line);
}

static void write_slots(writer *w, strbuf *b)
{
	const layers *found = &w->stage->layers;
	for (uint32_t i = 0; i < found->at.n; i++)
		for (uint32_t k = 0; !found->at.at[i].block && k < found->at.at[i].nslots; k++) {
			uint32_t number = found->at.at[i].first + k;
			write_slot(w, &found->at.at[i], &found->slots.at[number], number, b);
		}
}

static void write_stage_head(const writer *w, strbuf *b)
{
	const stage_state *st = w->stage;
	const char *device = stage_device(w);
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, "def __init__(self, device=");
	write_string(device, strlen(device), &line);
	strbuf_puts(&line, st->blocks ? ", blocks=None):" : "):");
	layout_line(b, INDENT, &line);
	strbuf_printf(b, "        super().__init__()\n        self.%s = torch.device(device)\n", st->device_name);
}

/* self.const_0 = self.const_0.to("cpu"): it was not where the model was. */
static clv_status put_back(writer *w, value_id v, strbuf *b)
{
	const char *device = plan_s(w->p, w->p->values.at[v].device);
	strbuf line = STRBUF_INIT;
	char *path = NULL;
	TRY(place_path_text(w, v, &path));
	if (w->p->values.at[v].kind == VALUE_PARAM || is_declared(w, v)) {
		clv_status st = fail(CLV_E_UNSUPPORTED,
		                     "%s is on %s and the model on %s: a stage has all its parameters on one "
		                     "device",
		                     path, device, plan_s(w->p, w->stage->device));
		mem_free(path);
		return st;
	}
	bool plain = ident_ok(last_part(path), strlen(last_part(path)));
	put_assignment(w, path, plain ? NULL : "register_buffer", &line);
	put_path(w, path, path + strlen(path), &line);
	strbuf_puts(&line, ".to(");
	write_string(device, strlen(device), &line);
	strbuf_puts(&line, plain ? ")" : "), persistent=False)");
	layout_line(b, BODY, &line);
	mem_free(path);
	return CLV_OK;
}

static clv_status write_stage_end(writer *w, strbuf *b)
{
	strbuf_puts(b, stage_trains(w) ? "" : "        self.eval()\n");
	strbuf_puts(b, "        self.to(device)\n");
	for (uint32_t i = 0; i < w->v.externals.n; i++)
		if (is_elsewhere(w, w->v.externals.at[i]))
			TRY(put_back(w, w->v.externals.at[i], b));
	return CLV_OK;
}

static clv_status declare_all(writer *w, const int64_t *low, strbuf *b)
{
	containers all = {0};
	clv_status st = CLV_OK;
	bool *seen = arena_alloc(&w->arena, w->p->values.n);
	TRY(arena_status(&w->arena));
	if (w->stage)
		st = declare_layers(w, &all, b);
	for (uint32_t i = 0; st == CLV_OK && i < w->v.externals.n; i++) {
		seen[w->v.externals.at[i]] = true;
		st = declare_one(w, &all, w->v.externals.at[i], low, b);
	}
	for (uint32_t i = 0; st == CLV_OK && !w->s->return_rebinds && i < w->v.rebinds.n; i++) {
		value_id target = w->p->rebinds.at[w->v.rebinds.at[i]].target;
		if (!seen[target])
			st = declare_one(w, &all, target, low, b);
	}
	if (w->stage && st == CLV_OK)
		write_slots(w, b);
	vec_free(&all.at);
	table_free(&all.by_path);
	return st;
}

clv_status write_init(writer *w, strbuf *b)
{
	int64_t *low = arena_array(&w->arena, w->p->symbols.n, sizeof *low);
	TRY(arena_status(&w->arena));
	for (symbol_id s = 0; s < w->p->symbols.n; s++)
		low[s] = w->p->symbols.at[s].lo;
	if (w->stage)
		write_stage_head(w, b);
	else
		strbuf_puts(b, "    def __init__(self):\n        super().__init__()\n");
	TRY(declare_all(w, low, b));
	return w->stage ? write_stage_end(w, b) : CLV_OK;
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

/* self.layer1.state = value */
static clv_status put_store(writer *w, const char *path, const arg *what, strbuf *b)
{
	const char *last = last_part(path);
	bool plain = ident_ok(last, strlen(last));
	strbuf line = STRBUF_INIT;
	strbuf_puts(&line, plain ? "" : "setattr(");
	put_path(w, path, last == path ? path : last - 1, &line);
	strbuf_puts(&line, plain ? "." : ", ");
	if (plain)
		strbuf_puts(&line, last);
	else
		write_string(last, strlen(last), &line);
	strbuf_puts(&line, plain ? " = " : ", ");
	clv_status st = write_arg(w, what, &line);
	strbuf_puts(&line, plain ? "" : ")");
	layout_line(b, BODY, &line);
	return st;
}

clv_status write_store(writer *w, value_id target, const arg *what, strbuf *b)
{
	char *path = NULL;
	TRY(place_path_text(w, target, &path));
	clv_status st = put_store(w, path, what, b);
	mem_free(path);
	return st;
}
