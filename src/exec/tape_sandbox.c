/* What the tape's operators depend on besides their arguments, so that the process of a sandbox computes as this one does. */
#include <string.h>

#include "exec/tape.h"

typedef struct torch_settings {
	br_modes modes;
	br_settings rest;
} torch_settings;

_Static_assert(sizeof(torch_settings) <= sizeof(engine_settings), "engine_settings has no room for those of torch");

static clv_status get_settings(engine_settings *out)
{
	torch_settings s = {0};
	br_modes_get(&s.modes);
	TRY(br_settings_get(&s.rest));
	memcpy(out->bytes, &s, sizeof s);
	return CLV_OK;
}

static clv_status set_settings(const engine_settings *from)
{
	torch_settings s;
	memcpy(&s, from->bytes, sizeof s);
	br_modes_set(&s.modes, UINT32_MAX >> (32 - CTX_FLAG_COUNT));
	return br_settings_set(&s.rest);
}

static void set_threads(int n)
{
	br_team had;
	br_team_enter(n, &had);
}

static clv_status get_random(clv_tensor **out)
{
	br_tensor *state;
	TRY(br_random_get("cpu", &state));
	return br_give(state, out);
}

static clv_status check_random(const clv_tensor *state)
{
	br_tensor *t;
	TRY(br_of(state, &t));
	return br_random_check(t);
}

static clv_status set_random(const clv_tensor *state)
{
	br_tensor *t;
	TRY(br_of(state, &t));
	return br_random_set("cpu", t);
}

const engine_sandbox tape_sandbox = {.program = "cleave-torch",
                                     .variable = "CLEAVE_TORCH_PROGRAM",
                                     .warm = br_warm,
                                     .threads = br_threads,
                                     .set_threads = set_threads,
                                     .settings = get_settings,
                                     .set_settings = set_settings,
                                     .random = get_random,
                                     .check_random = check_random,
                                     .set_random = set_random};
