/* Copies with strides: rows, one element spread over a row, planes turned in blocks, and element by element. */
#include "native/simd/kernels_isa.h"

typedef struct plane {
	int64_t rows, cols;
	move_dim y, x;
	uint32_t bytes;
} plane;

/* A call of memcpy costs more than these. */
static inline void copy_bytes(char *to, const char *from, int64_t n)
{
	if (n >= 8 && n <= 16) {
		uint64_t a, b;
		memcpy(&a, from, 8);
		memcpy(&b, from + n - 8, 8);
		memcpy(to, &a, 8);
		memcpy(to + n - 8, &b, 8);
	} else if (n >= 4 && n < 8) {
		uint32_t a, b;
		memcpy(&a, from, 4);
		memcpy(&b, from + n - 4, 4);
		memcpy(to, &a, 4);
		memcpy(to + n - 4, &b, 4);
	} else {
		memcpy(to, from, (size_t)n);
	}
}

static void copy_rows(const plane *p, const char *from, char *to)
{
	int64_t n = p->cols * p->bytes;
	for (int64_t i = 0; i < p->rows; i++)
		copy_bytes(to + i * p->y.to, from + i * p->y.from, n);
}

#define EACH_TYPE(bytes, M)                                                                                            \
	switch (bytes) {                                                                                                   \
	case 1: M(uint8_t); return;                                                                                        \
	case 2: M(uint16_t); return;                                                                                       \
	case 4: M(uint32_t); return;                                                                                       \
	default: M(uint64_t); return;                                                                                      \
	}

#define SPREAD(type)                                                                                                   \
	for (int64_t i = 0; i < p->rows; i++) {                                                                            \
		type v = *(const type *)(from + i * p->y.from), *t = (type *)(to + i * p->y.to);                               \
		for (int64_t j = 0; j < p->cols; j++)                                                                          \
			t[j] = v;                                                                                                  \
	}

static void spread(const plane *p, const char *from, char *to)
{
	EACH_TYPE(p->bytes, SPREAD)
}

#define ONE_ROW(type, i)                                                                                               \
	for (int64_t j = 0; j < p->cols; j++)                                                                              \
		*(type *)(to + (i)*p->y.to + j * p->x.to) = *(const type *)(from + (i)*p->y.from + j * p->x.from);
#define ONE_COLUMN(type, j)                                                                                            \
	for (int64_t i = 0; i < p->rows; i++)                                                                              \
		*(type *)(to + i * p->y.to + (j)*p->x.to) = *(const type *)(from + i * p->y.from + (j)*p->x.from);
#define EACH(type)                                                                                                     \
	if (p->rows > 4 * p->cols) {                                                                                       \
		for (int64_t k = 0; k < p->cols; k++)                                                                          \
			ONE_COLUMN(type, k)                                                                                        \
	} else {                                                                                                           \
		for (int64_t k = 0; k < p->rows; k++)                                                                          \
			ONE_ROW(type, k)                                                                                           \
	}

static void each(const plane *p, const char *from, char *to)
{
	EACH_TYPE(p->bytes, EACH)
}

/* ---- planes turned -------------------------------------------------------------------------------------------------- */

enum { TILE = 16 };

typedef float four __attribute__((vector_size(16)));
typedef float four_any __attribute__((vector_size(16), aligned(4), may_alias));

/* Rows of `from` are `fs` bytes apart, rows of `to` `ts`. */
static inline void turn_4x4(const char *from, int64_t fs, char *to, int64_t ts)
{
	four a = (four) * (const four_any *)from, b = (four) * (const four_any *)(from + fs),
		 c = (four) * (const four_any *)(from + 2 * fs), d = (four) * (const four_any *)(from + 3 * fs);
	four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), AB = __builtin_shufflevector(a, b, 2, 6, 3, 7);
	four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
	*(four_any *)to = (four_any)__builtin_shufflevector(ab, cd, 0, 1, 4, 5);
	*(four_any *)(to + ts) = (four_any)__builtin_shufflevector(ab, cd, 2, 3, 6, 7);
	*(four_any *)(to + 2 * ts) = (four_any)__builtin_shufflevector(AB, CD, 0, 1, 4, 5);
	*(four_any *)(to + 3 * ts) = (four_any)__builtin_shufflevector(AB, CD, 2, 3, 6, 7);
}

#define TURN_ANY(type)                                                                                                 \
	for (int64_t i = 0; i < rows; i++)                                                                                 \
		for (int64_t j = 0; j < cols; j++)                                                                             \
			*(type *)(to + i * ts + j * (int64_t)sizeof(type)) =                                                       \
				*(const type *)(from + i * (int64_t)sizeof(type) + j * fs);

static void turn_any(uint32_t bytes, int64_t rows, int64_t cols, const char *from, int64_t fs, char *to, int64_t ts)
{
	EACH_TYPE(bytes, TURN_ANY)
}

/* A tile of 4-byte elements: what is left of fours is done one by one. */
static void turn_words(int64_t rows, int64_t cols, const char *from, int64_t fs, char *to, int64_t ts)
{
	int64_t r4 = rows & ~(int64_t)3, c4 = cols & ~(int64_t)3;
	for (int64_t i = 0; i < r4; i += 4)
		for (int64_t j = 0; j < c4; j += 4)
			turn_4x4(from + i * 4 + j * fs, fs, to + i * ts + j * 4, ts);
	turn_any(4, r4, cols - c4, from + c4 * fs, fs, to + c4 * 4, ts);
	turn_any(4, rows - r4, cols, from + r4 * 4, fs, to + r4 * ts, ts);
}

static void turn(const plane *p, const char *from, char *to)
{
	for (int64_t j = 0; j < p->cols; j += TILE) {
		int64_t cols = p->cols - j < TILE ? p->cols - j : TILE;
		for (int64_t i = 0; i < p->rows; i += TILE) {
			int64_t rows = p->rows - i < TILE ? p->rows - i : TILE;
			const char *f = from + i * p->bytes + j * p->x.from;
			char *t = to + i * p->y.to + j * p->bytes;
			if (p->bytes == 4)
				turn_words(rows, cols, f, p->x.from, t, p->y.to);
			else
				turn_any(p->bytes, rows, cols, f, p->x.from, t, p->y.to);
		}
	}
}

/* ---- items ------------------------------------------------------------------------------------------------------------ */

static void do_plane(move_kind kind, const plane *p, const char *from, char *to)
{
	switch (kind) {
	case MOVE_ROWS: copy_rows(p, from, to); return;
	case MOVE_SPREAD: spread(p, from, to); return;
	case MOVE_TURN: turn(p, from, to); return;
	case MOVE_EACH: each(p, from, to); return;
	}
}

static void do_cut(const move *m, int64_t cut, const char *from, char *to)
{
	plane p = {.y = m->d[m->ndim - 2], .x = m->d[m->ndim - 1], .bytes = m->bytes};
	int64_t first = cut * m->cut, n;
	bool by_rows = p.y.size > 1;
	const move_dim *d = by_rows ? &p.y : &p.x;
	n = d->size - first < m->cut ? d->size - first : m->cut;
	p.rows = by_rows ? n : p.y.size;
	p.cols = by_rows ? p.x.size : n;
	do_plane(m->kind, &p, from + first * d->from, to + first * d->to);
}

void ISA(move)(const move *m, const char *from, char *to, int64_t first, int64_t end)
{
	for (int64_t item = first; item < end; item++) {
		int64_t rest = item / m->cuts, f = m->from, t = m->to;
		for (uint32_t i = m->ndim < 2 ? 0 : m->ndim - 2; i-- > 0;) {
			int64_t k = rest % m->d[i].size;
			rest /= m->d[i].size;
			f += k * m->d[i].from;
			t += k * m->d[i].to;
		}
		do_cut(m, item % m->cuts, from + f, to + t);
	}
}
