/* Matrix products of floats: C = A·B + bias for a block of rows and panels of columns.
 *
 * A tile of C stays in registers while K goes by. Each element of C is one chain of fused sums in the order of K, begun anew at
 * places that K alone decides, and the parts are added in order: its bits depend on its row of A and its column of B only, not
 * on the tile that it is in. The bias comes last, where product.c adds what is no bias. So which tiles are used is free: tall
 * ones where there are rows, wide ones where there are few and the panels stream by. A is read where it is, with any strides. */
#include "native/simd/kernels_isa.h"

#define INLINE static inline __attribute__((always_inline))
/* A loop of a constant number of turns, which become straight code. */
#define UNROLLED(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

enum { ROWS = GEMM_ROWS, WIDE = GEMM_WIDE, COLS = GEMM_COLS, PART = 384, AHEAD = 1024 };
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
#define WITH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
enum { FEW = 4 };
#else
#define WITH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
enum { FEW = 2 };
#endif
#if defined(NATIVE_NEON)
enum { SECOND_LEVEL = 2 };
#else
enum { SECOND_LEVEL = 1 };
#endif

/* What the tiles of a block have in common, for one part of K. */
typedef struct strip {
	int64_t k, a_row, a_k, b_k, b_panel, c_row;
	const float *bias; /* NULL: none, or it comes with the last part */
	bool more;         /* C holds the sum of the parts before */
	panel_type type;
	const char *next;    /* what is read after these panels: every tile fetches some of it, in two streams */
	int64_t apart, step; /* bytes from one stream to the other, and of each for every k */
} strip;

INLINE void store(const strip *s, float *c, int64_t col, vf sum)
{
	if (s->more)
		sum = vf_load(c) + sum;
	if (s->bias)
		sum = sum + vf_load(s->bias + col);
	vf_store(c, sum);
}

/* The same where the last vector has fewer than VF columns. */
static void store_part(const strip *s, float *c, int64_t col, int64_t cols, const float *sum, int rows, int width)
{
	for (int i = 0; i < rows; i++, c += s->c_row, sum += width)
		for (int64_t j = 0; j < cols; j += VF) {
			int64_t n = cols - j < VF ? cols - j : VF;
			vf x = vf_load(sum + j);
			if (s->more)
				x = vf_load_n(c + j, n) + x;
			if (s->bias)
				x = x + vf_load_n(s->bias + col + j, n);
			vf_store_n(c + j, x, n);
		}
}

/* `rows` rows, `panels` panels, `wide` vectors of each panel: constants, so that sums are registers. Pointers to every third
   row address all of them. `cols`: columns there are from here on; of one panel it may be fewer. */
INLINE void tile(const panel_kind kind, const int rows, const int panels, const int wide, const strip *s,
                 const float *a, const char *b, float *c, int64_t col, int64_t cols)
{
	vf sum[ROWS][4 * WIDE];
	const float *at[ROWS / 3];
	int64_t a_row = s->a_row, a_k = s->a_k, b_k = s->b_k, b_panel = s->b_panel;
	const char *next = s->next;
	UNROLLED (i, rows)
		UNROLLED (v, panels * wide)
			sum[i][v] = vf_zero();
	UNROLLED (i, (rows + 2) / 3)
		at[i] = a + 3 * i * a_row;
	for (int64_t k = s->k; k > 0; k--) {
		vf x[4 * WIDE];
		UNROLLED (v, panels * wide) {
			int64_t where = v / wide * b_panel + v % wide * VF;
			x[v] = panel_read(kind, s->type, b, where);
			if (panels > 1 && rows <= FEW)
				__builtin_prefetch(b + (where + AHEAD) * kind_bytes(kind));
		}
		if (panels == 1 || rows > FEW) {
			__builtin_prefetch(next, 0, SECOND_LEVEL);
			__builtin_prefetch(next + s->apart, 0, SECOND_LEVEL);
			next += s->step;
		}
		UNROLLED (i, rows) {
			vf y = vf_set1(at[i / 3][i % 3 * a_row]);
			UNROLLED (v, panels * wide)
				sum[i][v] = vf_fma(y, x[v], sum[i][v]);
		}
		UNROLLED (i, (rows + 2) / 3)
			at[i] += a_k;
		b += b_k * kind_bytes(kind);
	}
	if (panels > 1 || cols >= wide * VF) {
		UNROLLED (i, rows)
			UNROLLED (v, panels * wide)
				store(s, c + i * s->c_row + v * VF, col + v * VF, sum[i][v]);
	} else {
		float part[ROWS * WIDE * VF];
		UNROLLED (i, rows)
			UNROLLED (v, wide)
				vf_store(part + (i * wide + v) * VF, sum[i][v]);
		store_part(s, c, col, cols, part, rows, wide * VF);
	}
}

typedef void (*tile_fn)(const strip *s, const float *a, const char *b, float *c, int64_t col, int64_t cols);
#define TILE(kind, rows, panels, wide)                                                                                 \
	static void tile_##kind##_##rows##_##panels##_##wide(const strip *s, const float *a, const char *b, float *c,      \
	                                                     int64_t col, int64_t cols)                                    \
	{                                                                                                                  \
		tile(PANEL_##kind, rows, panels, wide, s, a, b, c, col, cols);                                                 \
	}
#define PANEL(rows) TILE(WIDE, rows, 1, 1) TILE(WIDE, rows, 1, 2)
WITH_ROWS(PANEL)
#define ONE_VECTOR(rows) tile_WIDE_##rows##_1_1,
#define ONE_PANEL(rows) tile_WIDE_##rows##_1_2,
static const tile_fn one_panel[WIDE][ROWS] = {{WITH_ROWS(ONE_VECTOR)}, {WITH_ROWS(ONE_PANEL)}};

/* A sum waits for the one before it: few rows need more panels to keep the units busy. They are what memory limits: with these
   16-bit panels are widened in registers. */
#define FEW_TILES(rows, panels)                                                                                        \
	TILE(WIDE, rows, panels, 2)                                                                                        \
	TILE(NARROW, rows, panels, 2) TILE(NARROW, rows, 1, 1) TILE(NARROW, rows, 1, 2)
FEW_TILES(1, 4)
FEW_TILES(2, 2)
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
FEW_TILES(3, 2)
FEW_TILES(4, 2)
TILE(WIDE, 5, 2, 2)
TILE(WIDE, 6, 2, 2)
#define FEW_ROWS(kind, one, two)                                                                                       \
	{                                                                                                                  \
		tile_##kind##_1_##one, tile_##kind##_2_##two, tile_##kind##_3_##two, tile_##kind##_4_##two                     \
	}
/* Rows that lie a multiple of a page apart fight for the same places in the cache: fewer of them at a time, against two panels. */
static const tile_fn half_as_many[ROWS / 2] = {[4] = tile_WIDE_5_2_2, [5] = tile_WIDE_6_2_2};
enum { MANY = 60, PAGE = 1024 }; /* rows; floats */
#else
#define FEW_ROWS(kind, one, two)                                                                                       \
	{                                                                                                                  \
		tile_##kind##_1_##one, tile_##kind##_2_##two                                                                   \
	}
#endif
static const tile_fn few_rows[2][FEW] = {FEW_ROWS(WIDE, 4_2, 2_2), FEW_ROWS(NARROW, 4_2, 2_2)}; /* by kind */
static const tile_fn few_narrow[WIDE][FEW] = {FEW_ROWS(NARROW, 1_1, 1_1), FEW_ROWS(NARROW, 1_2, 1_2)};

/* Parts of K: as even as can be. */
static int64_t part_end(int64_t k, int64_t from)
{
	int64_t parts = (k + PART - 1) / PART, each = parts ? (k + parts - 1) / parts : 0;
	return from + each < k ? from + each : k;
}

/* What some_panels does: K from `from` to `end` and `panels` panels from column col on, in tiles of at most `most` rows. */
typedef struct piece {
	int64_t from, end, col;
	int panels, wide, most;
	const tile_fn *tiles; /* by their rows */
} piece;

/* Tiles of about the same height. */
static void all_rows(const gemm_block *g, const piece *p, strip s, const char *b)
{
	int64_t tiles = (g->m + p->most - 1) / p->most,
			share = g->fetch ? s.k * p->wide * VF * panel_bytes(s.type) / tiles : 0;
	s.apart = p->panels > 1 && share ? g->b_panel * panel_bytes(s.type) : share / 2;
	s.step = s.k ? ((p->panels > 1 ? share : share / 2) + s.k - 1) / s.k : 0;
	for (int64_t i = 0, row = 0; i < tiles; i++, s.next += share) {
		int64_t n = (g->m - row + tiles - i - 1) / (tiles - i);
		p->tiles[n - 1](&s, g->a + row * g->a_row + p->from * g->a_k, b, g->c + row * g->c_row + p->col, p->col,
		                g->n - p->col);
		row += n;
	}
}

/* A panel of 16-bit numbers that many rows read is widened first. */
static void widened(const gemm_block *g, const piece *p, strip s, const char *b)
{
	_Alignas(64) float part[PART * COLS];
	for (int64_t k = 0; k < s.k; k++)
		for (int v = 0; v < p->wide; v++)
			vf_store(part + (k * p->wide + v) * VF, panel_read(PANEL_NARROW, g->type, b, k * s.b_k + v * VF));
	s.b_k = p->wide * VF;
	all_rows(g, p, s, (const char *)part);
}

static piece piece_at(const gemm_block *g, int64_t from, int64_t end, int64_t col)
{
	int64_t left = g->n - col;
	bool narrow = g->type != PANEL_F32;
	piece p = {from, end, col, .panels = 1, .wide = left > VF ? WIDE : 1, .most = ROWS};
	p.tiles = one_panel[p.wide - 1];
	if (g->m <= FEW) {
		int panels = g->m == 1 ? 4 : 2;
		if (left >= panels * COLS)
			p.panels = panels, p.tiles = few_rows[narrow];
		else if (narrow)
			p.tiles = few_narrow[p.wide - 1];
	}
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
	if (g->m >= MANY && g->a_row % PAGE == 0 && left >= 2 * COLS && !narrow)
		p.panels = 2, p.most = ROWS / 2, p.tiles = half_as_many;
#endif
	return p;
}

/* The part of a panel that is read after this piece. `parts`: the panels beside it come first, else its own next part. */
static const char *next_of(const gemm_block *g, const piece *p, bool parts)
{
	int64_t beside = p->col + p->panels * COLS, from = p->from, col = beside;
	if (p->end < g->k && (!parts || beside >= g->n))
		from = p->end, col = parts ? 0 : p->col;
	else if (!parts || beside >= g->n)
		from = 0;
	return (const char *)g->b + (col / COLS * g->b_panel + from * g->b_k) * panel_bytes(g->type);
}

/* Gives how many columns were done. */
static int64_t some_panels(const gemm_block *g, int64_t from, int64_t end, int64_t col, bool parts)
{
	piece p = piece_at(g, from, end, col);
	strip s = {
		.k = end - from, .a_row = g->a_row, .a_k = g->a_k, .b_panel = g->b_panel, .c_row = g->c_row, .type = g->type};
	s.bias = end < g->k ? NULL : g->bias;
	s.more = from > 0;
	s.b_k = p.wide < WIDE ? g->b_k_half : g->b_k;
	const char *b = (const char *)g->b + (col / COLS * g->b_panel + from * s.b_k) * panel_bytes(g->type);
	s.next = g->fetch ? next_of(g, &p, parts) : b;
	if (g->type != PANEL_F32 && g->m > FEW)
		widened(g, &p, s, b);
	else
		all_rows(g, &p, s, b);
	return p.panels * COLS;
}

static void by_parts(const gemm_block *g)
{
	int64_t from = 0, end;
	do {
		end = part_end(g->k, from);
		for (int64_t col = 0; col < g->n;)
			col += some_panels(g, from, end, col, true);
		from = end;
	} while (end < g->k);
}

static void by_panels(const gemm_block *g)
{
	for (int64_t col = 0, done; col < g->n; col += done) {
		int64_t from = 0, end;
		do {
			end = part_end(g->k, from);
			done = some_panels(g, from, end, col, false);
			from = end;
		} while (end < g->k);
	}
}

/* Rows of A that stay in the second level of the cache with all of K are read panel by panel; more of them part by part. */
void ISA(gemm)(const gemm_block *g)
{
	if (g->m <= 0)
		return;
	if (g->m * g->k <= 128 * 1024)
		by_panels(g);
	else
		by_parts(g);
}

/* ---- panels ----------------------------------------------------------------------------------------------------------- */

/* Of two vectors, blocks of s lanes change places: lane l of the first result, and of the second. */
#define LOW(l, s) ((l) & (s) ? VF + (l) - (s) : (l))
#define HIGH(l, s) ((l) & (s) ? VF + (l) : (l) + (s))
#define LANES4(f, l, s) f((l), s), f((l) + 1, s), f((l) + 2, s), f((l) + 3, s)
#if defined(NATIVE_AVX512)
#define LANES(f, s) LANES4(f, 0, s), LANES4(f, 4, s), LANES4(f, 8, s), LANES4(f, 12, s)
#elif defined(NATIVE_AVX2)
#define LANES(f, s) LANES4(f, 0, s), LANES4(f, 4, s)
#else
#define LANES(f, s) LANES4(f, 0, s)
#endif
#define SWAP_BLOCKS(s)                                                                                                 \
	UNROLLED (i, VF) {                                                                                                 \
		if (i & (s))                                                                                                   \
			continue;                                                                                                  \
		vf a = v[i], b = v[i + (s)];                                                                                   \
		v[i] = __builtin_shufflevector(a, b, LANES(LOW, s));                                                           \
		v[i + (s)] = __builtin_shufflevector(a, b, LANES(HIGH, s));                                                    \
	}

INLINE void transpose(vf *v)
{
#if defined(NATIVE_AVX512)
	SWAP_BLOCKS(8)
#endif
#if defined(NATIVE_AVX512) || defined(NATIVE_AVX2)
	SWAP_BLOCKS(4)
#endif
	SWAP_BLOCKS(2)
	SWAP_BLOCKS(1)
}

/* At most VF elements of K of at most VF columns, each column without gaps. */
static void pack_square(int64_t k, int64_t cols, const float *b, int64_t b_n, float *out, int64_t width)
{
	vf v[VF];
	UNROLLED (i, VF)
		v[i] = i >= cols ? vf_zero() : k < VF ? vf_load_n(b + i * b_n, k) : vf_load(b + i * b_n);
	transpose(v);
	UNROLLED (i, VF)
		if (i < k)
			vf_store(out + i * width, v[i]);
}

static void pack_row(int64_t there, const float *b, int64_t b_n, float *out)
{
	for (int64_t j = 0; j < there; j++)
		out[j] = b[j * b_n];
}

static void pack_panel(int64_t k, int64_t there, int64_t width, const float *b, int64_t b_k, int64_t b_n, float *out)
{
	if (b_k == 1 && width % VF == 0) {
		for (int64_t i = 0; i < k; i += VF)
			for (int64_t j = 0; j < width; j += VF)
				pack_square(k - i, there - j, b + i + j * b_n, b_n, out + i * width + j, width);
		return;
	}
	for (int64_t i = 0; i < k; i++, b += b_k, out += width) {
		if (b_n == 1)
			pack_row(there, b, 1, out);
		else
			pack_row(there, b, b_n, out);
		memset(out + there, 0, (size_t)(width - there) * sizeof *out);
	}
}

void ISA(gemm_pack)(int cols, int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_n, float *out)
{
	for (int64_t col = 0; col < n; col += cols, out += k * cols) {
		int64_t there = n - col < cols ? n - col : cols;
		pack_panel(k, there, there <= cols / 2 ? cols / 2 : cols, b + col * b_n, b_k, b_n, out);
	}
}
