/* The public functions of trainers. What they do is in libcleave; libcleave-core has them too, so that a server links with
 * either, and says there what is missing. */
#include "runtime/trainer.h"

#include "base/options.h"
#include "file/training.h"
#include "runtime/runtime.h"

/* NULL in libcleave-core. */
extern const trainer_fns trainer_torch __attribute__((weak));

static clv_status check_trains(const artifact *a)
{
	if (!a->training)
		return fail(CLV_E_INVALID, "this file does not train: clv_runtime_create() runs it. SplitRuntime.save_trainer "
		                           "writes one that does");
	return &trainer_torch
	           ? CLV_OK
	           : fail(CLV_E_UNSUPPORTED, "training needs libtorch, which libcleave-core does not have: link libcleave");
}

/* Who vouches for a file vouches for its header; the loss is data there, and has a plan. */
static clv_status check_loss_vouched(const artifact *a)
{
	artifact *loss;
	if (a->vouching == VOUCHED_SIGNED) /* every byte is */
		return CLV_OK;
	TRY(training_loss(a, &loss));
	clv_status st = CLV_OK;
	if (artifact_unvouched(loss))
		st = fail_unvouched(loss,
		                    fail(CLV_E_UNSUPPORTED, "so its loss would run in a sandbox, and nothing trains there"));
	artifact_free(loss);
	return st;
}

const char *clv_artifact_training(const clv_artifact *a)
{
	return a ? a->training : NULL;
}

clv_status clv_trainer_create(const clv_artifact *a, const clv_trainer_options *options, clv_trainer **out)
{
	clv_trainer_options o = CLV_TRAINER_OPTIONS_INIT;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_trainer_create needs an artifact and a place for the trainer");
	TRY(options_read(&o, sizeof o, options, "clv_trainer_options"));
	if (o.sandbox > CLV_SANDBOX_OFF)
		return fail(CLV_E_INVALID, "clv_trainer_options.sandbox is %u; it is CLV_SANDBOX_AUTO or _OFF", o.sandbox);
	TRY(check_trains(a));
	if (o.sandbox == CLV_SANDBOX_ON)
		return fail(CLV_E_UNSUPPORTED, "nothing trains in a sandbox");
	if (o.sandbox == CLV_SANDBOX_AUTO && artifact_unvouched(a))
		return fail_unvouched(a, fail(CLV_E_UNSUPPORTED, "so it would run in a sandbox, and nothing trains there"));
	if (o.sandbox == CLV_SANDBOX_AUTO)
		TRY(check_loss_vouched(a));
	return trainer_torch.create(a, &o, out);
}

void clv_trainer_free(clv_trainer *t)
{
	if (t)
		trainer_torch.release(t);
}

void clv_trainer_cancel(clv_trainer *t)
{
	if (t)
		trainer_torch.cancel(t);
}

const clv_runtime *trainer_suffix(const clv_trainer *t)
{
	return trainer_torch.suffix(t);
}

bool trainer_draws(const clv_trainer *t)
{
	return runtime_draws(trainer_torch.suffix(t)) || runtime_draws(trainer_torch.loss(t));
}

uint32_t clv_trainer_input_count(const clv_trainer *t)
{
	return t ? clv_runtime_input_count(trainer_torch.suffix(t)) : 0;
}

clv_status clv_trainer_input(const clv_trainer *t, uint32_t i, clv_port *out)
{
	return t ? clv_runtime_input(trainer_torch.suffix(t), i, out)
	         : fail(CLV_E_INVALID, "clv_trainer_input: the trainer is NULL");
}

/* The loss takes the outputs of the suffix first. */
static uint32_t outputs_of(const clv_trainer *t)
{
	return clv_runtime_output_count(trainer_torch.suffix(t));
}

uint32_t clv_trainer_target_count(const clv_trainer *t)
{
	return t ? clv_runtime_input_count(trainer_torch.loss(t)) - outputs_of(t) : 0;
}

clv_status clv_trainer_target(const clv_trainer *t, uint32_t i, clv_port *out)
{
	return t && i < clv_trainer_target_count(t) ? clv_runtime_input(trainer_torch.loss(t), outputs_of(t) + i, out)
	                                            : fail(CLV_E_INVALID, "clv_trainer_target: there is no target %u", i);
}

static clv_status step(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets, uint32_t n, bool apply,
                       clv_tensor **loss, clv_boundary **gradients)
{
	if (!t || !b || (n && !targets))
		return fail(CLV_E_INVALID, "clv_trainer_step or clv_trainer_accumulate: an argument is NULL");
	for (uint32_t i = 0; i < n; i++)
		if (!targets[i])
			return fail(CLV_E_INVALID, "target %u is NULL", i);
	if (n != clv_trainer_target_count(t))
		return fail(CLV_E_INPUT, "the loss takes %u targets, the call has %u", clv_trainer_target_count(t), n);
	return trainer_torch.step(t, b, targets, n, apply, loss, gradients);
}

clv_status clv_trainer_accumulate(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets,
                                  uint32_t ntargets, clv_tensor **loss, clv_boundary **gradients)
{
	return step(t, b, targets, ntargets, false, loss, gradients);
}

clv_status clv_trainer_step(clv_trainer *t, const clv_boundary *b, const clv_tensor *const *targets, uint32_t ntargets,
                            clv_tensor **loss, clv_boundary **gradients)
{
	return step(t, b, targets, ntargets, true, loss, gradients);
}

clv_status clv_trainer_apply(clv_trainer *t)
{
	return t ? trainer_torch.apply(t) : fail(CLV_E_INVALID, "clv_trainer_apply: the trainer is NULL");
}

clv_status clv_trainer_apply_tied(clv_trainer *t, const char *const *names, const clv_tensor *const *gradients,
                                  uint32_t n)
{
	if (!t || (n && (!names || !gradients)))
		return fail(CLV_E_INVALID, "clv_trainer_apply_tied: an argument is NULL");
	for (uint32_t i = 0; i < n; i++)
		if (!names[i] || !gradients[i])
			return fail(CLV_E_INVALID, "clv_trainer_apply_tied: gradient %u, or its name, is NULL", i);
	return trainer_torch.apply_tied(t, names, gradients, n);
}

uint64_t clv_trainer_steps(const clv_trainer *t)
{
	return t ? trainer_torch.steps(t) : 0;
}

clv_status clv_trainer_state(const clv_trainer *t, void **out, size_t *size)
{
	return t && out && size ? trainer_torch.state(t, out, size)
	                        : fail(CLV_E_INVALID, "clv_trainer_state: an argument is NULL");
}

clv_status clv_trainer_restore(clv_trainer *t, const void *data, size_t size)
{
	return t && data ? trainer_torch.restore(t, data, size)
	                 : fail(CLV_E_INVALID, "clv_trainer_restore: an argument is NULL");
}

clv_status clv_trainer_weights(const clv_trainer *t, const clv_artifact *suffix, const char *path)
{
	return t && suffix && path ? trainer_torch.weights(t, suffix, path)
	                           : fail(CLV_E_INVALID, "clv_trainer_weights: an argument is NULL");
}
