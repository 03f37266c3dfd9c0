// How many threads operators use: of the process, and of the calling thread for the time of a run.
//
// ATen asks OpenMP, which keeps a number per thread that calls it; MKL keeps its own. So a thread can have
// another number for a while, and no other thread notices. at::set_num_threads would not do: it also changes what threads get
// that start later, and throws away what oneDNN keeps.
#include <ATen/Parallel.h>

#include "bridge/impl.hpp"

// Of the OpenMP and MKL that libtorch is linked with. Where there is none of them, they are NULL. (MKL's name in small letters is
// Fortran's, which takes an address.)
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int n);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int n);
}

int br_threads(void)
{
	return at::get_num_threads();
}

// Asking first has ATen set up what it has per thread: later it would put its own number back.
void br_team_enter(int n, br_team *had)
{
	had->operators = at::get_num_threads();
	if (omp_set_num_threads)
		omp_set_num_threads(n);
	had->mkl = MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(n) : 0;
}

void br_team_leave(const br_team *had)
{
	if (omp_set_num_threads)
		omp_set_num_threads(had->operators);
	if (MKL_Set_Num_Threads_Local)
		MKL_Set_Num_Threads_Local(had->mkl);
}

void br_parallel(int n, void (*work)(void *ctx, int i), void *ctx)
{
	at::parallel_for(0, n, 1, [&](int64_t first, int64_t end) {
		for (int64_t i = first; i < end; i++)
			work(ctx, static_cast<int>(i));
	});
}

clv_status br_team_check(int n)
{
	br_team had;
	if (n == 0)
		return CLV_OK;
	if (n < 0 || n > MOST_THREADS)
		return fail(CLV_E_INVALID, "threads is a number from 1 to %d, or 0 for as many as the process has, not %d",
		            static_cast<int>(MOST_THREADS), n);
	br_team_enter(n, &had);
	int got = at::get_num_threads();
	br_team_leave(&had);
	if (got == n)
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED,
	            "this PyTorch has one number of threads for the whole process, not one per run: OMP_NUM_THREADS or "
	            "torch.set_num_threads changes it, and threads stays 0");
}
