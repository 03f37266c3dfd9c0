/* Signs a file.
 * A file signed: opened as any other, so that damaged or refused files are never signed, then written again from
 * the bytes that were checked. */
#include "file/artifact.h"
#include "file/signature.h"

static clv_status write_signed(const mapping *map, const char *key, const char *output)
{
	strbuf head = STRBUF_INIT;
	uint32_t order = 0;
	size_t rest;
	clv_status st = signature_make(map->at, map->n, key, &head, &rest);
	if (st == CLV_OK) {
		st_entry e = {.data = map->at + rest, .nbytes = map->n - rest};
		st_image image = {&e, &order, 1, head.at, head.n, head.n + e.nbytes};
		st = st_save(&image, output);
	}
	strbuf_free(&head);
	return st;
}

clv_status artifact_sign(const char *path, const char *key, const clv_open_options *o, const char *output)
{
	clv_open_options whole = *o;
	artifact *a;
	whole.check_data = true;
	TRY(artifact_open(path, &whole, &a));
	clv_status st = write_signed(&a->map, key, output ? output : path);
	artifact_free(a);
	return st;
}
