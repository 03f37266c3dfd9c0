/* Remembers in the cache (segment/compile.h) which variant of a program was the fastest.
 *
 * The same plan at the same sizes on the same machine is measured once. CPU only: nothing here tells one GPU from another. */
#pragma once

#include "base/digest.h"
#include "exec/program.h"

/* ways: in words, all there are to choose from. False: this choice is not kept. */
bool choice_key(const clv_program *g, const run_spec *r, const char *ways, digest *out);

/* A cache that cannot be read or written is no reason not to choose: these fail for want of memory alone. */
clv_status choice_find(digest key, char **name); /* *name: caller frees with mem_free; NULL: it was not chosen before */
clv_status choice_keep(digest key, const char *name);
