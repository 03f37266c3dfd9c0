/* The kernels of one instruction set. */
#include "native/kernels.h"
#include "native/simd/simd.h"
#include "native/simd/kernels_isa.h"
#include "native/simd/layouts.h"

/* What other machines pack for this one. */
_Static_assert((int)VF == (int)LAYOUT(VECTOR) && (int)GEMM_ROWS == (int)LAYOUT(GEMM_ROWS) &&
                   (int)GEMM_COLS == (int)LAYOUT(GEMM_COLS),
               "layouts.h has other numbers");

const native_kernels ISA(native_kernels) = {
	.vector = VF,
	.map = ISA(map),
	.loop = ISA(loop),
	.reduce_rows = ISA(reduce_rows),
	.reduce_columns = ISA(reduce_columns),
	.softmax_rows = ISA(softmax_rows),
	.softmax_columns = ISA(softmax_columns),
	.row_statistics = ISA(row_statistics),
	.normalize = ISA(normalize),
	.scale_shift = ISA(scale_shift),
	.conv = ISA(conv),
	.pool = ISA(pool),
	.resize = ISA(resize),
	.gemm_rows = GEMM_ROWS,
	.gemm_cols = GEMM_COLS,
	.gemm = ISA(gemm),
	.gemm_pack = ISA(gemm_pack),
	.attention_rows = ISA(attention_rows),
	.move = ISA(move),
};
