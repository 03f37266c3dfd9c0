/* Trainers: made from a file, stepped. Suffix and loss are runtimes of an engine that leaves graphs behind its results; a step
 * runs both and asks for the gradients of the boundary and of the parameters. */
#include "exec/trainer.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "exec/tape.h"

/* ---- making one ------------------------------------------------------------------------------------------------------- */

static clv_runtime_options runtime_options(const clv_trainer_options *o)
{
	clv_runtime_options r = CLV_RUNTIME_OPTIONS_INIT;
	r.unproven = o->unproven;
	r.any_weights = true; /* those of the prefix change with every step */
	r.tape_only = true;
	r.optimize = "none";
	r.sandbox = CLV_SANDBOX_OFF; /* who may train was asked before */
	r.threads = o->threads;
	r.timeout = o->timeout;
	return r;
}

static bool reads_trained(const runtime *r)
{
	for (uint32_t i = 0; i < r->nstate; i++)
		if (r->state[i] && r->state[i]->requires_grad)
			return true;
	return false;
}

static clv_status make_loss(trainer *t, const artifact *a, const clv_runtime_options *o)
{
	artifact *loss;
	TRY(training_loss(a, &loss));
	clv_status st = runtime_create_on(loss, o, &engine_training, &t->loss);
	artifact_free(loss);
	if (st == CLV_OK && (t->loss->plans.at[0].outputs.n != 1 || t->loss->inputs.n < t->suffix->plans.at[0].outputs.n))
		st = fail(CLV_E_INVALID, "it gives %u tensors and takes %u, and the suffix gives %u",
		          t->loss->plans.at[0].outputs.n, t->loss->inputs.n, t->suffix->plans.at[0].outputs.n);
	if (st == CLV_OK && (t->loss->stateful || reads_trained(t->loss)))
		st =
			fail(CLV_E_UNSUPPORTED, "it trains parameters, or changes tensors, of its own: they belong into the model");
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "the loss");
}

static clv_status add_parameter(trainer *t, const training_group *g, const char *name)
{
	trained x = {.name = name, .group = g, .tied = training_is_tied(&t->about, name)};
	x.slot = payload_find(t->suffix->a->tensors, name);
	if (x.slot == NONE || !t->suffix->state[x.slot])
		return fail(CLV_E_INVALID, "no plan of the file reads the parameter \"%.64s\"", name);
	return vec_push(&t->params, x);
}

static clv_status add_parameters(trainer *t)
{
	for (uint32_t i = 0; i < t->about.groups.n; i++)
		for (uint32_t k = 0; k < t->about.groups.at[i].names.n; k++)
			TRY(add_parameter(t, &t->about.groups.at[i], t->about.groups.at[i].names.at[k]));
	return CLV_OK;
}

static clv_status check_device(const runtime *r)
{
	for (uint32_t i = 0; i < r->inputs.n; i++)
		if (strcmp(r->inputs.at[i].device, "cpu") != 0)
			return fail(CLV_E_UNSUPPORTED, "the model was captured on %s, and files train on the CPU alone",
			            r->inputs.at[i].device);
	return CLV_OK;
}

static clv_status identify(const artifact *a, digest *out)
{
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; i < a->plans.n; i++)
		strbuf_printf(&b, "%s ", a->plans.at[i].signature);
	strbuf_printf(&b, "%llx", (unsigned long long)a->weight_version);
	clv_status st = b.failed ? fail_nomem() : CLV_OK;
	if (st == CLV_OK)
		*out = digest_of_three(b.at, b.n, a->training, strlen(a->training), a->loss, a->loss_n);
	strbuf_free(&b);
	return st;
}

static clv_status fill(trainer *t, const artifact *a, const clv_trainer_options *o)
{
	clv_runtime_options r = runtime_options(o);
	t->threads = o->threads;
	t->timeout = o->timeout;
	TRY(identify(a, &t->id));
	TRY(training_read(a->training, &t->about));
	TRY(runtime_create_on(a, &r, &engine_training, &t->suffix));
	TRY(check_device(t->suffix));
	TRY(make_loss(t, a, &r));
	TRY(add_parameters(t));
	TRY(update_sites_new(&t->sites));
	if (runtime_draws(t->suffix) || runtime_draws(t->loss))
		TRY(br_random_seeded(o->has_seed ? o->seed : t->about.seed, &t->random));
	return CLV_OK;
}

static void release(trainer *t)
{
	for (uint32_t i = 0; i < t->params.n; i++) {
		br_unref(t->params.at[i].grad);
		for (int k = 0; k < KEPT_COUNT; k++)
			br_unref(t->params.at[i].kept[k]);
	}
	vec_free(&t->params);
	update_sites_free(t->sites);
	br_unref(t->random);
	clv_runtime_free(t->suffix);
	clv_runtime_free(t->loss);
	training_free(&t->about);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

static clv_status create(const artifact *a, const clv_trainer_options *o, trainer **out)
{
	trainer *t = mem_alloc(sizeof *t);
	TRY_MEM(t);
	pthread_mutex_init(&t->lock, NULL);
	clv_status st = fill(t, a, o);
	if (st == CLV_OK)
		*out = t;
	else
		release(t);
	return st;
}

static void cancel(trainer *t)
{
	atomic_fetch_add(&t->stops, 1);
}

static const runtime *suffix_of(const trainer *t)
{
	return t->suffix;
}

static const runtime *loss_of(const trainer *t)
{
	return t->loss;
}

clv_status trainer_own(trainer *t)
{
	if (!t->owned)
		TRY(runtime_own_state(t->suffix));
	t->owned = true;
	return CLV_OK;
}

clv_status trained_leaf(const trainer *t, const trained *x, br_tensor **out)
{
	return br_of(t->suffix->state[x->slot], out);
}

/* ---- what a failed step puts back ------------------------------------------------------------------------------------- */

/* Tensors that the forward changes (statistics), and copies of their elements. */
typedef struct backup {
	clv_tensor **was, **copies; /* per place in the state; NULL: it does not change */
} backup;

static void backup_free(const runtime *r, backup *b)
{
	for (uint32_t i = 0; i < r->nstate; i++) {
		clv_tensor_free(b->was ? b->was[i] : NULL);
		clv_tensor_free(b->copies ? b->copies[i] : NULL);
	}
	mem_free(b->was);
	mem_free(b->copies);
}

static clv_status backup_make(const runtime *r, backup *b)
{
	b->was = mem_alloc((r->nstate + 1) * sizeof *b->was);
	b->copies = mem_alloc((r->nstate + 1) * sizeof *b->copies);
	TRY_MEM(b->was && b->copies);
	for (uint32_t i = 0; i < r->nstate; i++) {
		if (!r->changes[i] || !r->state[i])
			continue;
		TRY(engine_clone(r->engine, r->state[i], &b->copies[i]));
		b->was[i] = tensor_ref(r->state[i]);
	}
	return CLV_OK;
}

static clv_status backup_restore(runtime *r, const backup *b)
{
	for (uint32_t i = 0; i < r->nstate; i++) {
		if (!b->was[i])
			continue;
		TRY(engine_write(r->engine, b->copies[i], b->was[i]));
		clv_tensor_free(r->state[i]);
		r->state[i] = tensor_ref(b->was[i]);
	}
	return runtime_refresh(r);
}

/* ---- the backward ----------------------------------------------------------------------------------------------------- */

/* One run of suffix, loss and backward, and what it found. */
typedef struct pass {
	trainer *t;
	clv_boundary *leaves;
	clv_tensor **tensors; /* what the loss takes: outputs, which are owned, and targets */
	clv_tensor *loss;
	VEC(br_tensor *) wanted; /* borrowed: boundary tensors that require grad, then every parameter */
	VEC(uint32_t) crossing;  /* which boundary tensors these are */
	br_tensor **grads;       /* as `wanted`; owned */
} pass;

static void pass_free(pass *x)
{
	for (uint32_t i = 0; x->grads && i < x->wanted.n; i++)
		br_unref(x->grads[i]);
	for (uint32_t i = 0; x->tensors && i < x->t->suffix->plans.at[0].outputs.n; i++)
		clv_tensor_free(x->tensors[i]);
	clv_tensor_free(x->loss);
	clv_boundary_free(x->leaves);
	vec_free(&x->wanted);
	vec_free(&x->crossing);
	mem_free(x->tensors);
	mem_free(x->grads);
}

static clv_status find_wanted(pass *x)
{
	br_tensor *leaf;
	for (uint32_t i = 0; i < clv_boundary_count(x->leaves); i++) {
		TRY(br_of(clv_boundary_tensor(x->leaves, i), &leaf));
		if (!br_requires_grad(leaf))
			continue;
		TRY(vec_push(&x->wanted, leaf));
		TRY(vec_push(&x->crossing, i));
	}
	for (uint32_t i = 0; i < x->t->params.n; i++) {
		TRY(trained_leaf(x->t, &x->t->params.at[i], &leaf));
		TRY(vec_push(&x->wanted, leaf));
	}
	x->grads = mem_alloc((x->wanted.n + 1) * sizeof *x->grads);
	return x->grads ? CLV_OK : fail_nomem();
}

static clv_status run_forward(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n)
{
	const trainer *t = x->t;
	uint32_t nout = t->suffix->plans.at[0].outputs.n;
	x->tensors = mem_alloc((nout + n + 1) * sizeof *x->tensors);
	TRY_MEM(x->tensors);
	TRY(boundary_leaves(t->suffix, b, &x->leaves));
	TRY(clv_runtime_run_suffix(t->suffix, x->leaves, x->tensors, nout));
	for (uint32_t i = 0; i < n; i++)
		x->tensors[nout + i] = (clv_tensor *)targets[i];
	TRY_MORE(clv_runtime_run(t->loss, (const clv_tensor *const *)x->tensors, nout + n, &x->loss, 1), "the loss");
	return CLV_OK;
}

static clv_status check_strided(const br_tensor *grad, const char *of)
{
	br_meta m;
	TRY(br_meta_get(grad, &m));
	return m.strided ? CLV_OK
	                 : fail(CLV_E_UNSUPPORTED, "the gradient of %.64s is %s; train without sparse gradients", of,
	                        layout_names[m.layout]);
}

static clv_status check_gradients(const pass *x)
{
	uint32_t crossing = x->crossing.n;
	for (uint32_t i = 0; i < x->wanted.n; i++)
		if (x->grads[i])
			TRY(check_strided(x->grads[i], i < crossing ? clv_boundary_label(x->leaves, x->crossing.at[i])
			                                            : x->t->params.at[i - crossing].name));
	return CLV_OK;
}

static clv_status run_backward(pass *x)
{
	br_tensor *loss;
	TRY(br_of(x->loss, &loss));
	if (br_numel(loss) != 1)
		return fail(CLV_E_INPUT, "the loss has %lld elements: there must be one", (long long)br_numel(loss));
	if (!br_requires_grad(loss))
		return fail(CLV_E_INPUT,
		            "the loss depends on nothing that is trained: neither boundary nor suffix require grad");
	TRY(find_wanted(x));
	limits most = {.seconds = x->t->timeout};
	limits_enter(&most);
	clv_status st = br_gradients(loss, x->wanted.at, x->wanted.n, x->grads), over = limits_check();
	limits_leave(&most);
	TRY(over); /* whatever was made of it on the way here */
	TRY(st);
	return check_gradients(x);
}

/* ---- around it -------------------------------------------------------------------------------------------------------- */

static clv_status run_pass(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n)
{
	TRY(run_forward(x, b, targets, n));
	return run_backward(x);
}

/* Draws from the trainer's generator; *after is its state then. */
static clv_status run_drawing(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n,
                              br_tensor **after)
{
	br_tensor *outside;
	if (!x->t->random)
		return run_pass(x, b, targets, n);
	TRY(br_random_get("cpu", &outside));
	clv_status st = br_random_set("cpu", x->t->random);
	if (st == CLV_OK)
		st = run_pass(x, b, targets, n);
	if (st == CLV_OK)
		st = br_random_get("cpu", after);
	clv_status put = br_random_set("cpu", outside);
	br_unref(outside);
	return st == CLV_OK ? put : st;
}

static clv_status run_alone(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n,
                            br_tensor **after)
{
	bool alone = x->t->random;
	if (alone)
		pthread_mutex_lock(&tape_drawing);
	clv_status st = run_drawing(x, b, targets, n, after);
	if (alone)
		pthread_mutex_unlock(&tape_drawing);
	return st;
}

/* Grad mode, no autocast but that of the plans, and the threads of the trainer, which the backward has too. */
typedef struct around {
	br_modes modes;
	br_team team;
} around;

static clv_status enter(const trainer *t, bool grad, around *a)
{
	br_modes_get(&a->modes);
	if (a->modes.inference)
		return fail(CLV_E_INPUT, "nothing trains under torch.inference_mode(): leave it");
	br_modes mine = a->modes;
	mine.grad = grad;
	memset(mine.autocast, 0, sizeof mine.autocast);
	br_modes_set(&mine, 0);
	if (t->threads)
		br_team_enter(t->threads, &a->team);
	return CLV_OK;
}

static void leave(const trainer *t, const around *a)
{
	if (t->threads)
		br_team_leave(&a->team);
	br_modes_set(&a->modes, 0);
}

static clv_status run_with_grad(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n,
                                br_tensor **after)
{
	around a;
	TRY(enter(x->t, true, &a));
	clv_status st = run_alone(x, b, targets, n, after);
	leave(x->t, &a);
	return st;
}

/* ---- results ---------------------------------------------------------------------------------------------------------- */

static clv_status give_gradient(clv_boundary *to, const char *label, br_tensor *grad)
{
	clv_tensor *t;
	TRY(br_give(br_ref(grad), &t));
	return boundary_add(to, label, t);
}

static clv_status give_share(clv_boundary *to, const char *name, br_tensor *grad)
{
	char *label;
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "@%s", name);
	TRY(strbuf_take(&b, &label));
	clv_status st = give_gradient(to, label, grad);
	mem_free(label);
	return st;
}

static clv_status fill_gradients(const pass *x, clv_boundary *to)
{
	uint32_t crossing = x->crossing.n;
	for (uint32_t i = 0; i < crossing; i++)
		if (x->grads[i])
			TRY(give_gradient(to, clv_boundary_label(x->leaves, x->crossing.at[i]), x->grads[i]));
	for (uint32_t i = 0; i < x->t->params.n; i++)
		if (x->t->params.at[i].tied && x->grads[crossing + i])
			TRY(give_share(to, x->t->params.at[i].name, x->grads[crossing + i]));
	return CLV_OK;
}

typedef struct results {
	clv_tensor *loss;
	clv_boundary *gradients;
} results;

static void results_free(results *r)
{
	clv_tensor_free(r->loss);
	clv_boundary_free(r->gradients);
}

static clv_status make_results(const pass *x, results *out)
{
	br_tensor *loss, *detached;
	TRY(br_of(x->loss, &loss));
	TRY(br_leaf(loss, false, &detached));
	TRY(br_give(detached, &out->loss));
	TRY(boundary_empty(x->leaves, &out->gradients));
	return fill_gradients(x, out->gradients);
}

/* ---- adding up, stepping ---------------------------------------------------------------------------------------------- */

/* What the parameters' gradients are with those of a pass; to[i] is owned, NULL: none. */
static clv_status add_up(const pass *x, br_tensor **to)
{
	const trainer *t = x->t;
	for (uint32_t i = 0; i < t->params.n; i++) {
		const trained *p = &t->params.at[i];
		br_tensor *now = p->tied ? NULL : x->grads[x->crossing.n + i];
		if (now && p->grad)
			TRY(update_add(t->sites, p->grad, now, &to[i]));
		else
			to[i] = br_ref(now ? now : p->grad);
	}
	return CLV_OK;
}

static bool has_tied(const trainer *t)
{
	return t->about.tied.n > 0;
}

static void forget_gradients(trainer *t)
{
	for (uint32_t i = 0; i < t->params.n; i++) {
		br_unref(t->params.at[i].grad);
		t->params.at[i].grad = NULL;
	}
}

static clv_status update_all(trainer *t, br_tensor *const *grads)
{
	for (uint32_t i = 0; i < t->params.n; i++) {
		br_tensor *leaf;
		if (!grads[i])
			continue;
		t->broken = true; /* until all are done */
		TRY(trained_leaf(t, &t->params.at[i], &leaf));
		TRY(update_parameter(t->sites, &t->params.at[i], leaf, grads[i]));
	}
	t->broken = false;
	return CLV_OK;
}

static clv_status update(trainer *t, br_tensor *const *grads)
{
	around a;
	TRY(enter(t, false, &a));
	clv_status st = update_all(t, grads);
	leave(t, &a);
	return st;
}

static clv_status check_whole(const trainer *t)
{
	return t->broken
	           ? fail(CLV_E_INVALID, "a step of the optimizer ended in the middle, and left some parameters stepped "
	                                 "and others not: clv_trainer_restore() goes on from a state")
	           : CLV_OK;
}

/* The end of a step: what cannot fail comes last. */
static clv_status finish(const pass *x, bool apply, br_tensor **sums)
{
	trainer *t = x->t;
	TRY(add_up(x, sums));
	if (apply)
		TRY(update(t, sums));
	forget_gradients(t);
	for (uint32_t i = 0; i < t->params.n && !apply; i++) {
		t->params.at[i].grad = sums[i];
		sums[i] = NULL;
	}
	t->steps += apply;
	t->due = t->due || (apply && has_tied(t));
	return CLV_OK;
}

static clv_status finish_pass(const pass *x, bool apply)
{
	uint32_t n = x->t->params.n;
	br_tensor **sums = mem_alloc((n + 1) * sizeof *sums);
	TRY_MEM(sums);
	clv_status st = finish(x, apply, sums);
	for (uint32_t i = 0; i < n; i++)
		br_unref(sums[i]);
	mem_free(sums);
	return st;
}

static clv_status step_on(pass *x, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n, bool apply,
                          results *out)
{
	br_tensor *random = NULL;
	clv_status st = run_with_grad(x, b, targets, n, &random);
	if (st == CLV_OK)
		st = make_results(x, out);
	if (st == CLV_OK)
		st = finish_pass(x, apply);
	if (st == CLV_OK && random) {
		br_unref(x->t->random);
		x->t->random = br_ref(random);
	}
	br_unref(random);
	return st;
}

static clv_status step_locked(trainer *t, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n,
                              bool apply, results *out)
{
	pass x = {.t = t};
	backup saved = {0};
	TRY(check_whole(t));
	TRY(trainer_own(t));
	if (t->due)
		return fail(CLV_E_INPUT,
		            "the step of %.64s is due: clv_trainer_apply_tied() with the prefix's gradients comes first",
		            t->about.tied.at[0]);
	if (!boundary_trains(b))
		return fail(CLV_E_INPUT,
		            "this boundary was made for inference: a training prefix makes those that are trained on "
		            "(run_training_prefix)");
	clv_status st = backup_make(t->suffix, &saved);
	if (st == CLV_OK) {
		limits most = {.stops = &t->stops};
		limits_enter(&most);
		st = step_on(&x, b, targets, n, apply, out);
		limits_leave(&most);
		if (st != CLV_OK && backup_restore(t->suffix, &saved) != CLV_OK)
			t->broken = true;
	}
	backup_free(t->suffix, &saved);
	pass_free(&x);
	return st;
}

static clv_status make_step(trainer *t, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n, bool apply,
                            clv_tensor **loss, clv_boundary **gradients)
{
	results r = {0};
	pthread_mutex_lock(&t->lock);
	clv_status st = step_locked(t, b, targets, n, apply, &r);
	pthread_mutex_unlock(&t->lock);
	if (st == CLV_OK && loss) {
		*loss = r.loss;
		r.loss = NULL;
	}
	if (st == CLV_OK && gradients) {
		*gradients = r.gradients;
		r.gradients = NULL;
	}
	results_free(&r);
	return st;
}

static clv_status apply_locked(trainer *t)
{
	TRY(check_whole(t));
	br_tensor **grads = mem_alloc((t->params.n + 1) * sizeof *grads);
	TRY_MEM(grads);
	for (uint32_t i = 0; i < t->params.n; i++)
		grads[i] = t->params.at[i].grad;
	clv_status st = update(t, grads);
	mem_free(grads);
	TRY(st);
	forget_gradients(t);
	t->steps++;
	t->due = has_tied(t);
	return CLV_OK;
}

static clv_status apply(trainer *t)
{
	pthread_mutex_lock(&t->lock);
	clv_status st = apply_locked(t);
	pthread_mutex_unlock(&t->lock);
	return st;
}

static clv_status find_tied(const trainer *t, const char *name, uint32_t *out)
{
	name += *name == '@';
	for (*out = 0; *out < t->params.n; ++*out)
		if (t->params.at[*out].tied && strcmp(t->params.at[*out].name, name) == 0)
			return CLV_OK;
	return fail(CLV_E_NOT_FOUND, "%.64s is not among the parameters that both halves train", name);
}

static clv_status apply_tied_to(trainer *t, const char *const *names, const clv_tensor *const *gradients, uint32_t n,
                                br_tensor **grads)
{
	TRY(check_whole(t));
	TRY(trainer_own(t));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k;
		TRY(find_tied(t, names[i], &k));
		TRY(tensor_check_like(t->suffix->state[t->params.at[k].slot], gradients[i], names[i]));
		TRY(br_of(gradients[i], &grads[k]));
	}
	TRY(update(t, grads));
	t->due = false;
	return CLV_OK;
}

static clv_status apply_tied(trainer *t, const char *const *names, const clv_tensor *const *gradients, uint32_t n)
{
	br_tensor **grads = mem_alloc((t->params.n + 1) * sizeof *grads); /* borrowed */
	TRY_MEM(grads);
	pthread_mutex_lock(&t->lock);
	clv_status st = apply_tied_to(t, names, gradients, n, grads);
	pthread_mutex_unlock(&t->lock);
	mem_free(grads);
	return st;
}

/* ---- states ----------------------------------------------------------------------------------------------------------- */

static void lock_of(const trainer *t)
{
	pthread_mutex_lock(&((trainer *)t)->lock);
}

static void unlock_of(const trainer *t)
{
	pthread_mutex_unlock(&((trainer *)t)->lock);
}

static uint64_t steps(const trainer *t)
{
	lock_of(t);
	uint64_t n = t->steps;
	unlock_of(t);
	return n;
}

static clv_status state(const trainer *t, void **out, size_t *size)
{
	lock_of(t);
	clv_status st = check_whole(t);
	if (st == CLV_OK)
		st = trainer_pack(t, out, size);
	unlock_of(t);
	return st;
}

static clv_status restore(trainer *t, const void *data, size_t size)
{
	pthread_mutex_lock(&t->lock);
	clv_status st = trainer_unpack(t, data, size);
	pthread_mutex_unlock(&t->lock);
	return st;
}

static clv_status weights(const trainer *t, const artifact *suffix, const char *path)
{
	lock_of(t);
	clv_status st = check_whole(t);
	if (st == CLV_OK)
		st = trainer_save(t, suffix, path);
	unlock_of(t);
	return st;
}

const trainer_fns trainer_torch = {.create = create,
                                   .release = release,
                                   .cancel = cancel,
                                   .suffix = suffix_of,
                                   .loss = loss_of,
                                   .step = make_step,
                                   .apply = apply,
                                   .apply_tied = apply_tied,
                                   .steps = steps,
                                   .state = state,
                                   .restore = restore,
                                   .weights = weights};
