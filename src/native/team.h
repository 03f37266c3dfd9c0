/* Teams of threads: got and given back by runtimes, used by kernels (kernels.h). */
#ifndef NATIVE_TEAM_H
#define NATIVE_TEAM_H

#include "base/status.h"
#include "native/kernels.h"

enum { TEAM_MOST = 1024 };

int team_processors(void); /* that this process may use */
/* The team of so many threads, the caller of team_run counted; 0: as many as processors. One thread needs no team: NULL. All
   who ask for one count share the team. */
clv_status team_get(int threads, team **out);
/* Likewise, on threads that somebody else has: `lend` calls work(ctx, i) once for each i below n, at the same time as far as it can,
   and returns when all are done. NULL: threads of our own. */
typedef void (*team_lender)(int n, void (*work)(void *ctx, int i), void *ctx);
clv_status team_get_lent(int threads, team_lender lend, team **out);
void team_put(team *t); /* NULL: nothing. Its threads end with the last user, who has no run under way. */

#endif
