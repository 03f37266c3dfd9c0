/* The operators of the engine, by id. */
#include "native/native.h"

#include <pthread.h>

#define X(family) extern const native_op native_ops_##family[];
NATIVE_FAMILIES(X)
#undef X

static const native_op *by_id[OP_COUNT];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill(void)
{
	static const native_op *const families[] = {
#define X(family) native_ops_##family,
		NATIVE_FAMILIES(X)
#undef X
	};
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		for (const native_op *o = families[i]; o->id != OP_UNKNOWN; o++)
			by_id[o->id] = o;
}

const native_op *native_op_of(uint16_t id)
{
	pthread_once(&filled, fill);
	return id < OP_COUNT ? by_id[id] : NULL;
}
