/* gzip and deflate by zlib, with bounds. */
#include "net/inflate.h"

#include <string.h>
#include <zlib.h>

#include "base/number.h"

/* Small bodies may become large: tensors of zeros do. Beyond FREE bytes a body grows RATIO times at most. */
enum { FREE = 8 << 20, RATIO = 256, PART = 1 << 30, STEP = 16 * 1024 };

/* ---- names --------------------------------------------------------------------------------------------------------- */

static const char *const names[] = {"identity", "gzip", "deflate"};

const char *coding_name(coding c)
{
	return names[c];
}

bool coding_of(const char *text, coding *out)
{
	*out = CODING_NONE;
	if (!text)
		return true;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (strcasecmp(text, names[i]) == 0) {
			*out = (coding)i;
			return true;
		}
	return false;
}

/* One element of a list: whether it is `name`, and not with q=0. */
static bool element_is(const char *at, size_t n, const char *name)
{
	size_t k = strlen(name);
	double q = 1;
	char text[8] = "";
	if (n < k || strncasecmp(at, name, k) != 0 || (n > k && !strchr(" \t;", at[k])))
		return false;
	const char *weight = memchr(at, '=', n);
	size_t left = weight ? n - (size_t)(weight + 1 - at) : 0;
	memcpy(text, weight ? weight + 1 : "", left < sizeof text - 1 ? left : sizeof text - 1);
	text[strcspn(text, " \t;")] = '\0';
	return !weight || (number_parse(text, &q) && q > 0);
}

coding coding_accepted(const char *list)
{
	bool has[sizeof names / sizeof *names] = {false};
	while (list && *list) {
		list += strspn(list, " \t,");
		size_t n = strcspn(list, ",");
		for (unsigned i = CODING_GZIP; i <= CODING_DEFLATE; i++)
			has[i] |= element_is(list, n, names[i]);
		list += n;
	}
	return has[CODING_GZIP] ? CODING_GZIP : has[CODING_DEFLATE] ? CODING_DEFLATE : CODING_NONE;
}

/* ---- zlib -------------------------------------------------------------------------------------------------------------- */

static void *get_memory(void *ctx, uInt n, uInt size)
{
	(void)ctx;
	return mem_alloc((size_t)n * size);
}

static void give_back(void *ctx, void *at)
{
	(void)ctx;
	mem_free(at);
}

static int window_of(coding c)
{
	return c == CODING_GZIP ? 15 + 16 : 15;
}

static uInt part_of(size_t n)
{
	return (uInt)(n < PART ? n : PART);
}

/* ---- inflating ---------------------------------------------------------------------------------------------------------- */

typedef struct inflating {
	z_stream z;
	size_t left, out; /* left: not given to zlib yet; out: inflated so far, without this room */
	size_t room;
	inflate_room more;
	void *ctx;
} inflating;

static clv_status next_room(inflating *f, bool last)
{
	uint8_t *at = NULL;
	size_t written = f->room - f->z.avail_out;
	f->out += written;
	TRY(f->more(f->ctx, written, last ? NULL : &at, &f->room));
	f->room = last ? 0 : part_of(f->room);
	f->z.next_out = at;
	f->z.avail_out = (uInt)f->room;
	return CLV_OK;
}

static clv_status check_ratio(const inflating *f, size_t n)
{
	size_t used = n - f->left - f->z.avail_in, out = f->out + f->room - f->z.avail_out;
	if (out > FREE && out / RATIO > used)
		return fail(CLV_E_LIMIT, "the compressed data becomes more than %d times larger; send it without compression",
		            RATIO);
	return CLV_OK;
}

static clv_status inflate_all(inflating *f, size_t n)
{
	int e = Z_OK;
	while (e != Z_STREAM_END) {
		if (!f->z.avail_in) {
			f->z.avail_in = part_of(f->left);
			f->left -= f->z.avail_in;
		}
		if (!f->z.avail_out)
			TRY(next_room(f, false));
		bool more = f->z.avail_in || f->left;
		e = inflate(&f->z, Z_NO_FLUSH);
		if (e == Z_MEM_ERROR)
			return fail_nomem();
		if (e != Z_OK && e != Z_STREAM_END && e != Z_BUF_ERROR)
			return fail(CLV_E_PARSE, "the compressed data is damaged");
		if (e != Z_STREAM_END && !more && f->z.avail_out)
			return fail(CLV_E_PARSE, "the compressed data ends too early");
		TRY(check_ratio(f, n));
	}
	TRY(next_room(f, true));
	return f->z.avail_in || f->left ? fail(CLV_E_PARSE, "there is more behind the end of the compressed data") : CLV_OK;
}

clv_status inflate_bytes(coding c, const void *from, size_t n, inflate_room room, void *ctx)
{
	inflating f = {.left = n, .more = room, .ctx = ctx};
	f.z = (z_stream){.zalloc = get_memory, .zfree = give_back, .next_in = (Bytef *)(uintptr_t)from};
	if (inflateInit2(&f.z, window_of(c)) != Z_OK)
		return fail_nomem();
	clv_status st = inflate_all(&f, n);
	inflateEnd(&f.z);
	return st;
}

/* ---- deflating ------------------------------------------------------------------------------------------------------------ */

struct deflater {
	z_stream z;
};

clv_status deflate_open(coding c, deflater **out)
{
	deflater *d = mem_alloc(sizeof *d);
	TRY_MEM(d);
	d->z = (z_stream){.zalloc = get_memory, .zfree = give_back};
	if (deflateInit2(&d->z, 1, Z_DEFLATED, window_of(c), 8, Z_DEFAULT_STRATEGY) != Z_OK) {
		mem_free(d);
		return fail_nomem();
	}
	*out = d;
	return CLV_OK;
}

clv_status deflate_add(deflater *d, const void *at, size_t n, bool last, strbuf *to)
{
	Bytef room[STEP];
	d->z.next_in = (Bytef *)(uintptr_t)at;
	do {
		d->z.avail_in = part_of(n);
		n -= d->z.avail_in;
		do {
			d->z.next_out = room;
			d->z.avail_out = STEP;
			deflate(&d->z, last && !n ? Z_FINISH : Z_NO_FLUSH);
			strbuf_add(to, (const char *)room, STEP - d->z.avail_out);
		} while (!d->z.avail_out);
	} while (n);
	return to->failed ? fail_nomem() : CLV_OK;
}

void deflate_close(deflater *d)
{
	if (!d)
		return;
	deflateEnd(&d->z);
	mem_free(d);
}
