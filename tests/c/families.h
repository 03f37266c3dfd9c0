/* Plans of every family of operators that the native engine takes, with made-up data, for tests that hold for all of them: rows
 * with the same bits in every batch, every allocation may fail, all instruction sets agree.
 *
 * A plan has the symbol B; its inputs and outputs have B rows. Sums are longer than the 384 terms of one part of a product. */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "artifacts.h"

#include "tensor/tensor.h"

enum { FAMILY_ROWS = 6, FAMILY_OUTPUTS = 4, FAMILY_INPUTS = 4 };

typedef struct family {
	const char *name, *text; /* without its head */
} family;

#define FAMILY_HEAD "cleave-plan 1\nmodel \"M\" training=no grad=no\nsymbol B 1..8\n"
#define ATTEND(args) "aten::scaled_dot_product_attention(" args ")"

static const family families[] = {
	/* ---- products */
	{"linear, activation, residual",
     "input %0 f32[B,1000]\nparam @w f32[37,1000]\nparam @b f32[37]\ninput %1 f32[B,37]\n"
     "%2 = aten::linear(%0, @w, @b) -> f32[B,37]\n%3 = aten::gelu(%2, \"none\") -> f32[B,37]\n"
     "%4 = aten::add.Tensor(%3, %1, 1) -> f32[B,37]\noutput %4\n"},
	{"linear of several dimensions", "input %0 f32[B,3,385]\nparam @w f32[64,385]\n"
                                     "%1 = aten::linear(%0, @w, none) -> f32[B,3,64]\noutput %1\n"},
	{"linear of halves", "input %0 bf16[B,500]\nparam @w bf16[33,500]\nparam @b bf16[33]\n"
                         "%1 = aten::linear(%0, @w, @b) -> bf16[B,33]\noutput %1\n"},
	{"addmm with a matrix", "input %0 f32[B,1000]\ninput %1 f32[B,24]\nparam @w f32[1000,24]\n"
                            "%2 = aten::addmm(%1, %0, @w, 1, 1) -> f32[B,24]\n"
                            "%3 = aten::addmm(%1, %0, @w, num(2), num(0.5)) -> f32[B,24]\noutput (%2, %3)\n"},
	{"addmm with a column", "input %0 f32[B,600]\ninput %1 f32[B,1]\nparam @w f32[600,5]\n"
                            "%2 = aten::addmm(%1, %0, @w, 1, 1) -> f32[B,5]\noutput %2\n"},
	{"addmv", "input %0 f32[B,700]\ninput %1 f32[B]\nparam @v f32[700]\n"
              "%2 = aten::addmv(%1, %0, @v, 1, 1) -> f32[B]\n%3 = aten::mv(%0, @v) -> f32[B]\noutput (%2, %3)\n"},
	{"baddbmm", "input %0 f32[B,3,500]\ninput %1 f32[B,500,20]\ninput %2 f32[B,3,20]\ninput %3 f32[B,1,20]\n"
                "%4 = aten::baddbmm(%2, %0, %1, 1, 1) -> f32[B,3,20]\n"
                "%5 = aten::baddbmm(%3, %0, %1, 1, 1) -> f32[B,3,20]\n"
                "%6 = aten::bmm(%0, %1) -> f32[B,3,20]\noutput (%4, %5, %6)\n"},
	{"baddbmm of one row", "input %0 f32[B,1,500]\ninput %1 f32[B,500,20]\ninput %2 f32[B,1,20]\n"
                           "%3 = aten::baddbmm(%2, %0, %1, 1, 1) -> f32[B,1,20]\noutput %3\n"},
	{"matmul",
     "input %0 f32[B,2,3,450]\nparam @w f32[450,17]\nparam @x f32[2,450,17]\n"
     "%1 = aten::matmul(%0, @w) -> f32[B,2,3,17]\n%2 = aten::matmul(%0, @x) -> f32[B,2,3,17]\noutput (%1, %2)\n"},
	{"matmul of integers and doubles",
     "input %0 i64[B,40]\ninput %1 f64[B,400]\nparam @w i64[40,7]\nparam @x f64[400,7]\n"
     "%2 = aten::matmul(%0, @w) -> i64[B,7]\n%3 = aten::matmul(%1, @x) -> f64[B,7]\noutput (%2, %3)\n"},
	{"einsum", "input %0 f32[B,3,400]\ninput %1 f32[B,5,400]\nparam @w f32[400,9]\n"
               "%2 = aten::einsum(\"bik,bjk->bij\", [%0, %1], none) -> f32[B,3,5]\n"
               "%3 = aten::einsum(\"bik,kn->bni\", [%0, @w], none) -> f32[B,9,3]\noutput (%2, %3)\n"},
	{"_addmm_activation", "input %0 f32[B,500]\ninput %1 f32[B,24]\nparam @w f32[500,24]\n"
                          "%2 = aten::_addmm_activation(%1, %0, @w, 1, 1, true) -> f32[B,24]\noutput %2\n"},
	/* ---- convolutions */
	{"conv2d 3x3", "input %0 f32[B,48,9,9]\nparam @w f32[40,48,3,3]\nparam @b f32[40]\n"
                   "%1 = aten::conv2d(%0, @w, @b, [1, 1], [1, 1], [1, 1], 1) -> f32[B,40,9,9]\n"
                   "%2 = aten::relu(%1) -> f32[B,40,9,9]\noutput %2\n"},
	{"conv2d with a stride",
     "input %0 f32[B,20,11,9]\nparam @w f32[12,20,3,3]\n"
     "%1 = aten::conv2d(%0, @w, none, [2, 2], [1, 0], [1, 1], 1) -> f32[B,12,6,4]\noutput %1\n"},
	{"conv2d 1x1", "input %0 f32[B,500,5,5]\nparam @w f32[33,500,1,1]\nparam @b f32[33]\ninput %1 f32[B,33,5,5]\n"
                   "%2 = aten::conv2d(%0, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,33,5,5]\n"
                   "%3 = aten::add.Tensor(%2, %1, 1) -> f32[B,33,5,5]\noutput %3\n"},
	{"conv2d of one pixel", "input %0 f32[B,500,1,1]\nparam @w f32[33,500,1,1]\nparam @b f32[33]\n"
                            "%1 = aten::conv2d(%0, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,33,1,1]\n"
                            "%2 = aten::hardsigmoid(%1) -> f32[B,33,1,1]\noutput %2\n"},
	{"the stem of a model",
     "input %0 f32[B,3,33,33]\nparam @w f32[24,3,7,7]\n"
     "%1 = aten::conv2d(%0, @w, none, [2, 2], [3, 3], [1, 1], 1) -> f32[B,24,17,17]\noutput %1\n"},
	{"depthwise and grouped",
     "input %0 f32[B,20,8,8]\nparam @w f32[20,1,5,5]\nparam @x f32[32,5,3,3]\n"
     "%1 = aten::conv2d(%0, @w, none, [1, 1], [2, 2], [1, 1], 20) -> f32[B,20,8,8]\n"
     "%2 = aten::conv2d(%0, @x, none, [1, 1], [2, 2], [2, 2], 4) -> f32[B,32,8,8]\noutput (%1, %2)\n"},
	{"convolutions of halves",
     "input %0 bf16[B,48,9,9]\ninput %1 f16[B,48,9,9]\nparam @w bf16[40,48,3,3]\nparam @b bf16[40]\n"
     "param @x bf16[33,48,1,1]\nparam @d bf16[48,1,3,3]\nparam @s f16[12,48,3,3]\n"
     "%2 = aten::conv2d(%0, @w, @b, [1, 1], [1, 1], [1, 1], 1) -> bf16[B,40,9,9]\n"
     "%3 = aten::conv2d(%0, @x, none, [2, 2], [0, 0], [1, 1], 1) -> bf16[B,33,5,5]\n"
     "%4 = aten::conv2d(%0, @d, none, [1, 1], [1, 1], [1, 1], 48) -> bf16[B,48,9,9]\n"
     "%5 = aten::conv2d(%1, @s, none, [2, 2], [1, 1], [1, 1], 1) -> f16[B,12,5,5]\n"
     "%6 = aten::to.dtype(%5, dtype:f32, false, false, none) -> f32[B,12,5,5]\noutput (%2, %3, %4, %6)\n"},
	{"transposed",
     "input %0 f32[B,12,6,5]\nparam @w f32[12,7,3,3]\nparam @b f32[7]\n"
     "%1 = aten::conv_transpose2d.input(%0, @w, @b, [2, 2], [1, 1], [1, 1], 1, [1, 1]) -> f32[B,7,12,10]\n"
     "output %1\n"},
	{"conv1d and conv3d",
     "input %0 f32[B,50,30]\ninput %1 f32[B,6,5,5,5]\nparam @w f32[9,50,9]\nparam @x f32[4,6,3,3,3]\n"
     "%2 = aten::conv1d(%0, @w, none, [1], [4], [1], 1) -> f32[B,9,30]\n"
     "%3 = aten::conv3d(%1, @x, none, [1, 1, 1], [1, 1, 1], [1, 1, 1], 1) -> f32[B,4,5,5,5]\noutput (%2, %3)\n"},
	/* ---- attention */
	{"attention",
     "input %0 f32[B,3,50,24]\ninput %1 f32[B,3,450,24]\ninput %2 f32[B,1,50,450]\n"
     "%3 = " ATTEND("%0, %1, %1, none, 0.0, false, none, false") " -> f32[B,3,50,24]\n"
                                                                 "%4 = " ATTEND("%0, %1, %1, %2, 0.0, false, none, "
                                                                                "false") " -> f32[B,3,50,24]\noutput "
                                                                                         "(%3, %4)\n"},
	{"causal attention with shared heads",
     "input %0 f32[B,4,100,20]\ninput %1 f32[B,2,100,20]\n"
     "%2 = " ATTEND("%0, %1, %1, none, 0.0, true, none, true") " -> f32[B,4,100,20]\noutput %2\n"},
	{"attention of one query",
     "input %0 f32[B,2,1,16]\ninput %1 f32[B,2,500,16]\n"
     "%2 = " ATTEND("%0, %1, %1, none, 0.0, false, none, false") " -> f32[B,2,1,16]\noutput %2\n"},
	{"attention that is spelt out",
     "input %0 f32[B,2,30,16]\ninput %1 bool[B,1,30,30]\n%2 = aten::transpose.int(%0, -2, -1) -> f32[B,2,16,30] "
     "view-of %0\n"
     "%3 = aten::matmul(%0, %2) -> f32[B,2,30,30]\n%4 = aten::div.Tensor(%3, num(4.0)) -> f32[B,2,30,30]\n"
     "%5 = aten::masked_fill.Scalar(%4, %1, num(-1e4)) -> f32[B,2,30,30]\n"
     "%6 = aten::softmax.int(%5, -1, none) -> f32[B,2,30,30]\n%7 = aten::matmul(%6, %0) -> f32[B,2,30,16]\noutput "
     "%7\n"},
	/* ---- norms and softmax */
	{"softmax", "input %0 f32[B,7,600]\n%1 = aten::softmax.int(%0, -1, none) -> f32[B,7,600]\n"
                "%2 = aten::softmax.int(%0, 1, none) -> f32[B,7,600]\n"
                "%3 = aten::log_softmax.int(%0, -1, none) -> f32[B,7,600]\noutput (%1, %2, %3)\n"},
	{"layer norm and rms norm", "input %0 f32[B,5,700]\nparam @w f32[700]\nparam @b f32[700]\n"
                                "%1 = aten::layer_norm(%0, [700], @w, @b, 1e-05, false) -> f32[B,5,700]\n"
                                "%2 = aten::rms_norm(%0, [700], @w, 1e-06) -> f32[B,5,700]\noutput (%1, %2)\n"},
	{"normed weights", "input %0 f32[B,12,30]\nparam @v f32[9,12,3]\nparam @g f32[9,1,1]\n%1 = aten::_weight_norm(@v, "
                       "@g, 0) -> f32[9,12,3]\n"
                       "%2 = aten::conv1d(%0, %1, none, [1], [1], [1], 1) -> f32[B,9,30]\noutput %2\n"},
	{"group norm, instance norm, batch norm",
     "input %0 f32[B,12,9,9]\nparam @w f32[12]\nparam @b f32[12]\nparam @m f32[12]\nparam @v f32[12]\n"
     "%1 = aten::group_norm(%0, 3, @w, @b, 1e-05, true) -> f32[B,12,9,9]\n"
     "%2 = aten::instance_norm(%0, @w, @b, none, none, true, 0.1, 1e-05, true) -> f32[B,12,9,9]\n"
     "%3 = aten::abs(@v) -> f32[12]\n"
     "%4 = aten::batch_norm(%0, @w, @b, @m, %3, false, 0.1, 1e-05, true) -> f32[B,12,9,9]\noutput (%1, %2, %4)\n"},
	/* ---- reductions */
	{"sums and means", "input %0 f32[B,600,5]\n%1 = aten::sum.dim_IntList(%0, [1], false, none) -> f32[B,5]\n"
                       "%2 = aten::mean.dim(%0, [1, 2], false, none) -> f32[B]\n"
                       "%3 = aten::mean.dim(%0, [-1], true, none) -> f32[B,600,1]\n"
                       "%4 = aten::sum.dim_IntList(%0, [2], false, none) -> f32[B,600]\noutput (%1, %2, %3, %4)\n"},
	{"variance, largest, argmax",
     "input %0 f32[B,600]\n%1 = aten::var.correction(%0, [1], num(1), false) -> f32[B]\n"
     "%2 = aten::amax(%0, [1], false) -> f32[B]\n%3 = aten::argmax(%0, 1, false) -> i64[B]\n"
     "%4 = aten::logsumexp(%0, [1], false) -> f32[B]\noutput (%1, %2, %3, %4)\n"},
	{"running sums", "input %0 f32[B,600]\n%1 = aten::cumsum(%0, 1, none) -> f32[B,600]\n"
                     "%2 = aten::cumprod(%0, 1, none) -> f32[B,600]\noutput (%1, %2)\n"},
	/* ---- pooling and resizing */
	{"pooling",
     "input %0 f32[B,10,20,20]\n%1 = aten::max_pool2d(%0, [3, 3], [2, 2], [1, 1], [1, 1], false) -> f32[B,10,10,10]\n"
     "%2 = aten::avg_pool2d(%0, [3, 3], [2, 2], [1, 1], true, false, none) -> f32[B,10,11,11]\n"
     "%3 = aten::adaptive_avg_pool2d(%0, [1, 1]) -> f32[B,10,1,1]\n"
     "%4 = aten::adaptive_avg_pool2d(%0, [3, 7]) -> f32[B,10,3,7]\noutput (%1, %2, %3, %4)\n"},
	{"largest, with places",
     "input %0 f32[B,3,9,9]\n%1, %2 = aten::max_pool2d_with_indices(%0, [2, 2], [2, 2], [0, 0], [1, 1], false) -> "
     "f32[B,3,4,4], i64[B,3,4,4]\noutput (%1, %2)\n"},
	{"resizing",
     "input %0 f32[B,5,7,9]\n%1 = aten::upsample_bilinear2d(%0, [13, 20], false, none, none) -> f32[B,5,13,20]\n"
     "%2 = aten::upsample_bicubic2d(%0, [13, 20], true, none, none) -> f32[B,5,13,20]\n"
     "%3 = aten::upsample_nearest2d(%0, [14, 18], none, none) -> f32[B,5,14,18]\noutput (%1, %2, %3)\n"},
	/* ---- recurrent layers */
	{"LSTM both ways",
     "input %0 f32[B,4,30]\nparam @a f32[1600,30]\nparam @b f32[1600,400]\nparam @c f32[1600]\nparam @d f32[1600]\n"
     "%1 = aten::zeros([2, B, 400], dtype:f32, none, device:cpu, false) -> f32[2,B,400]\n"
     "%2, %3, %4 = aten::lstm.input(%0, [%1, %1], [@a, @b, @c, @d, @a, @b, @c, @d], true, 1, 0.0, false, true, true) "
     "-> "
     "f32[B,4,800], f32[2,B,400], f32[2,B,400]\noutput %2\n"},
	{"GRU",
     "input %0 f32[B,4,30]\nparam @a f32[1200,30]\nparam @b f32[1200,400]\nparam @c f32[1200]\nparam @d f32[1200]\n"
     "%1 = aten::zeros([1, B, 400], dtype:f32, none, device:cpu, false) -> f32[1,B,400]\n"
     "%2, %3 = aten::gru.input(%0, %1, [@a, @b, @c, @d], true, 1, 0.0, false, false, true) -> "
     "f32[B,4,400], f32[1,B,400]\noutput %2\n"},
	{"cells",
     "input %0 f32[B,30]\ninput %1 f32[B,400]\nparam @a f32[1600,30]\nparam @b f32[1600,400]\nparam @c f32[1600]\n"
     "param @d f32[1200,30]\nparam @e f32[1200,400]\nparam @f f32[400,30]\nparam @g f32[400,400]\n"
     "%2, %3 = aten::lstm_cell(%0, [%1, %1], @a, @b, @c, @c) -> f32[B,400], f32[B,400]\n"
     "%4 = aten::gru_cell(%0, %1, @d, @e, none, none) -> f32[B,400]\n"
     "%5 = aten::rnn_tanh_cell(%0, %1, @f, @g, none, none) -> f32[B,400]\noutput (%2, %3, %4, %5)\n"},
	/* ---- doubles */
	{"images of doubles",
     "input %0 f64[B,8,7,6]\nparam @w f64[5,8,3,3]\nparam @b f64[5]\nparam @x f64[8,4,2,2]\nparam @d f64[8,1,3,3]\n"
     "%1 = aten::conv2d(%0, @w, @b, [2, 1], [1, 1], [1, 1], 1) -> f64[B,5,4,6]\n"
     "%2 = aten::conv_transpose2d.input(%0, @x, none, [2, 2], [0, 0], [0, 0], 1, [1, 1]) -> f64[B,4,14,12]\n"
     "%3 = aten::conv2d(%0, @d, none, [1, 1], [1, 1], [1, 1], 8) -> f64[B,8,7,6]\n"
     "%4 = aten::relu(%3) -> f64[B,8,7,6]\noutput (%1, %2, %4)\n"},
	{"pooling of doubles",
     "input %0 f64[B,8,7,6]\n%1 = aten::max_pool2d(%0, [3, 3], [2, 2], [1, 1], [1, 1], false) -> f64[B,8,4,3]\n"
     "%2 = aten::avg_pool2d(%0, [2, 2], [2, 2], [1, 1], false, true, none) -> f64[B,8,4,4]\n"
     "%3, %4 = aten::max_pool2d_with_indices(%0, [2, 2], [2, 2], [0, 0], [1, 1], false) -> f64[B,8,3,3], i64[B,8,3,3]\n"
     "output (%1, %2, %3, %4)\n"},
	{"norms of doubles",
     "input %0 f64[B,6,50]\nparam @w f64[50]\nparam @b f64[50]\nparam @c f64[6]\n"
     "%1 = aten::layer_norm(%0, [50], @w, @b, 1e-05, false) -> f64[B,6,50]\n"
     "%2 = aten::rms_norm(%0, [50], @w, none) -> f64[B,6,50]\n"
     "%3 = aten::group_norm(%0, 3, @c, @c, 1e-05, true) -> f64[B,6,50]\n%4 = aten::abs(@c) -> f64[6]\n"
     "%5 = aten::batch_norm(%0, @c, @c, @c, %4, false, 0.1, 1e-05, true) -> f64[B,6,50]\noutput (%1, %2, %3, %5)\n"},
	{"attention of doubles",
     "input %0 f64[B,4,20,8]\ninput %1 f64[B,2,20,8]\ninput %2 bool[B,1,20,20]\n"
     "%3 = " ATTEND("%0, %1, %1, none, 0.0, true, none, true") " -> f64[B,4,20,8]\n"
                                                               "%4 = " ATTEND("%0, %0, %0, %2, 0.0, false, none, "
                                                                              "false") " -> f64[B,4,20,8]\noutput "
                                                                                       "(%3, %4)\n"},
	{"recurrent layers of doubles",
     "input %0 f64[B,4,7]\nparam @a f64[24,7]\nparam @b f64[24,6]\nparam @c f64[24]\nparam @e f64[18,7]\n"
     "param @f f64[18,6]\nparam @g f64[18]\n"
     "%1 = aten::zeros([1, B, 6], dtype:f64, none, device:cpu, false) -> f64[1,B,6]\n"
     "%2, %3, %4 = aten::lstm.input(%0, [%1, %1], [@a, @b, @c, @c], true, 1, 0.0, false, false, true) -> "
     "f64[B,4,6], f64[1,B,6], f64[1,B,6]\n"
     "%5, %6 = aten::gru.input(%0, %1, [@e, @f, @g, @g], true, 1, 0.0, false, false, true) -> "
     "f64[B,4,6], f64[1,B,6]\noutput (%2, %5)\n"},
	{"grid sampling", "input %0 f32[B,20,7,9]\ninput %1 f32[B,5,6,2]\ninput %2 f64[B,2,7,9]\ninput %3 f64[B,5,6,2]\n"
                      "%4 = aten::grid_sampler(%0, %1, 0, 0, false) -> f32[B,20,5,6]\n"
                      "%5 = aten::grid_sampler(%0, %1, 2, 2, true) -> f32[B,20,5,6]\n"
                      "%6 = aten::grid_sampler(%2, %3, 1, 1, false) -> f64[B,2,5,6]\noutput (%4, %5, %6)\n"},
	{"grid sampling of volumes",
     "input %0 f32[B,5,4,7,9]\ninput %1 f32[B,2,5,6,3]\ninput %2 f64[B,2,4,7,9]\ninput %3 f64[B,2,5,6,3]\n"
     "%4 = aten::grid_sampler(%0, %1, 0, 0, false) -> f32[B,5,2,5,6]\n"
     "%5 = aten::grid_sampler_3d(%0, %1, 1, 2, true) -> f32[B,5,2,5,6]\n"
     "%6 = aten::grid_sampler(%2, %3, 0, 1, false) -> f64[B,2,2,5,6]\noutput (%4, %5, %6)\n"},
	/* ---- distances */
	{"distances", "input %0 f32[B,30,20]\ninput %1 f32[B,27,20]\ninput %2 f32[B,20]\nparam @w f32[40,20]\n"
                  "%3 = aten::cdist(%0, %1, 2.0, none) -> f32[B,30,27]\n%4 = aten::cdist(%2, @w, 2.0, 1) -> f32[B,40]\n"
                  "%5 = aten::cdist(%0, %1, 2.0, 2) -> f32[B,30,27]\n%6 = aten::cdist(%2, @w, 1.0, none) -> f32[B,40]\n"
                  "output (%3, %4, %5, %6)\n"},
	{"distances of other powers",
     "input %0 f32[B,1,20]\ninput %1 f64[B,3,20]\nparam @w f32[4,20]\nparam @x f64[2,20]\n"
     "%2 = aten::cdist(%0, @w, inf, none) -> f32[B,1,4]\n%3 = aten::cdist(%0, @w, 2.5, none) -> f32[B,1,4]\n"
     "%4 = aten::cdist(%1, @x, 2.0, 1) -> f64[B,3,2]\n%5 = aten::cdist(%0, @w, 0.0, none) -> f32[B,1,4]\n"
     "output (%2, %3, %4, %5)\n"},
	{"rows at the same places",
     "input %0 f32[B,7,500]\ninput %1 f32[B,1,500]\n%2 = aten::cosine_similarity(%0, %1, 2, 1e-08) -> f32[B,7]\n"
     "%3 = aten::pairwise_distance(%0, %1, 2.0, 1e-06, true) -> f32[B,7,1]\n"
     "%4 = aten::cosine_similarity(%0, %0, 1, 1e-08) -> f32[B,500]\noutput (%2, %3, %4)\n"},
	/* ---- elementwise chains */
	{"chains",
     "input %0 f32[B,3,50]\ninput %1 f32[B,1,50]\nparam @w f32[3]\n%2 = aten::mul.Tensor(%0, %1) -> f32[B,3,50]\n"
     "%3 = aten::tanh(%2) -> f32[B,3,50]\n%4 = aten::exp(%3) -> f32[B,3,50]\n"
     "%5 = aten::prelu(%0, @w) -> f32[B,3,50]\n%6 = aten::glu(%0, -1) -> f32[B,3,25]\n"
     "%7 = aten::gt.Scalar(%0, num(0.1)) -> bool[B,3,50]\n"
     "%8 = aten::where.self(%7, %4, %5) -> f32[B,3,50]\noutput (%4, %6, %8)\n"},
	/* ---- moves, indices, order */
	{"moves", "input %0 f32[B,8,6,6]\n%1 = aten::cat([%0, %0], 1) -> f32[B,16,6,6]\n"
              "%2 = aten::constant_pad_nd(%1, [1, 2, 0, 1], num(0.5)) -> f32[B,16,7,9]\n"
              "%3 = aten::flip(%0, [1, 3]) -> f32[B,8,6,6]\n%4 = aten::roll(%0, [1], [2]) -> f32[B,8,6,6]\n"
              "%5 = aten::pixel_shuffle(%0, 2) -> f32[B,2,12,12]\noutput (%2, %3, %4, %5)\n"},
	{"im2col", "input %0 f32[B,3,6,6]\n%1 = aten::im2col(%0, [2, 2], [1, 1], [0, 0], [1, 1]) -> f32[B,12,25]\n"
               "%2 = aten::repeat(%0, [1, 2, 1, 1]) -> f32[B,6,6,6]\noutput (%1, %2)\n"},
	{"masked copies, pieces", "input %0 f32[B,6]\ninput %1 bool[1,6]\nparam @s f32[64]\n"
                              "%2 = aten::tril_indices(3, 3, 0, dtype:i64, none, device:cpu, false) -> i64[2,6]\n"
                              "%3 = aten::masked_scatter(%0, %1, @s) -> f32[B,6]\n[%4, %5] = aten::unsafe_chunk(%0, 2, "
                              "1) -> [f32[B,3], f32[B,3]]\n"
                              "%6 = aten::add.Tensor(%4, %5, 1) -> f32[B,3]\noutput %6\n"},
	{"indices", "input %0 i64[B,6]\ninput %1 f32[B,9]\nparam @w f32[5,40]\n"
                "%2 = aten::embedding(@w, %0, -1, false, false) -> f32[B,6,40]\n"
                "%3 = aten::gather(%1, 1, %0, false) -> f32[B,6]\n"
                "%4 = aten::scatter_add(%1, 1, %0, %3) -> f32[B,9]\n"
                "output (%2, %3, %4)\n"},
	{"searches",
     "input %0 f32[B,9]\ninput %1 i64[B,5]\ninput %2 i64[B,9]\nparam @s i32[12]\n"
     "%3 = aten::searchsorted.Tensor(%0, %1, false, true, none, none) -> i64[B,5]\n"
     "%4 = aten::bucketize.Tensor(%0, @s, true, false) -> i32[B,9]\n%5 = aten::to.dtype(%4, dtype:i64, false, false, "
     "none) -> i64[B,9]\n"
     "%6 = aten::searchsorted.Tensor(%0, %0, false, false, \"right\", %2) -> i64[B,9]\noutput (%3, %5, %6)\n"},
	{"order", "input %0 f32[B,60]\n%1, %2 = aten::sort(%0, -1, true) -> f32[B,60], i64[B,60]\n"
              "%3, %4 = aten::topk(%0, 5, -1, true, true) -> f32[B,5], i64[B,5]\noutput (%1, %2, %3, %4)\n"},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* ---- data ---------------------------------------------------------------------------------------------------------- */

/* Numbers of any type: floats of either sign below 1, integers that serve as indices. */
static inline void *family_data(uint64_t *seed, uint8_t type, int64_t n)
{
	size_t each = dtype_bytes(type);
	char *data = mem_alloc((size_t)n * each + 1);
	assert_non_null(data);
	for (int64_t i = 0; i < n; i++) {
		float x = (float)random_below(seed, 2001) / 1000 - 1;
		int64_t k = random_below(seed, type == DT_BOOL ? 2 : 5);
		uint16_t half = (uint16_t)(random_below(seed, 2) << 15 | (0x3e00 + random_below(seed, 0x180)));
		double wide = x;
		const void *from = type == DT_F32   ? (void *)&x
		                   : type == DT_F64 ? (void *)&wide
		                   : each == 2      ? (void *)&half
		                                    : (void *)&k;
		memcpy(data + (size_t)i * each, from, each);
	}
	return data;
}

/* Sizes with `rows` for B; gives the elements. */
static inline int64_t family_sizes(const plan *p, value_id v, int64_t rows, int64_t *sizes)
{
	const value *x = &p->values.at[v];
	int64_t n = 1;
	for (uint32_t d = 0; d < x->ndim; d++) {
		if (!expr_is_const(p, p->dims.at[x->shape + d], &sizes[d]))
			sizes[d] = rows;
		n *= sizes[d];
	}
	return n;
}

/* A family as a file, with the rows of its inputs. */
typedef struct family_case {
	char *text;
	plan *p;
	artifact *file;
	void *weights[16], *inputs[FAMILY_INPUTS];
	value_id input[FAMILY_INPUTS];
	uint32_t nweights, ninputs;
} family_case;

static inline family_case family_open(const family *f)
{
	family_case c = {0};
	uint64_t seed = 1;
	int64_t sizes[8], strides[8];
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, FAMILY_HEAD);
	strbuf_puts(&b, f->text);
	c.text = taken(&b);
	c.p = load_ok(c.text);
	c.file = new_artifact(c.text);
	for (value_id v = 0; v < c.p->values.n; v++) {
		const value *x = &c.p->values.at[v];
		int64_t n = x->type == TYPE_TENSOR ? family_sizes(c.p, v, FAMILY_ROWS, sizes) : 0, step = 1;
		if (x->kind == VALUE_INPUT) {
			assert_true(c.ninputs < FAMILY_INPUTS);
			c.input[c.ninputs] = v;
			c.inputs[c.ninputs++] = family_data(&seed, x->dtype, n);
		} else if (x->kind == VALUE_PARAM) {
			for (uint32_t d = x->ndim; d-- > 0; step *= sizes[d])
				strides[d] = step;
			assert_true(c.nweights < 16);
			c.weights[c.nweights] = family_data(&seed, x->dtype, n);
			OK(add(c.file->tensors,
			       tensor_on(plan_s(c.p, x->name), x->dtype, c.weights[c.nweights++], 0, x->ndim, sizes, strides)));
		}
	}
	if (artifact_ready(c.file) != CLV_OK)
		fail_msg("%s: %s", f->name, status_message());
	return c;
}

static inline void family_close(family_case *c)
{
	for (uint32_t i = 0; i < c->nweights; i++)
		mem_free(c->weights[i]);
	for (uint32_t i = 0; i < c->ninputs; i++)
		mem_free(c->inputs[i]);
	artifact_free(c->file);
	plan_free(c->p);
	mem_free(c->text);
}

static inline clv_status family_runtime(const family_case *c, uint32_t threads, clv_runtime **out)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	o.engine = "native";
	o.unproven = true;
	o.threads = (int)threads;
	return clv_runtime_create(c->file, &o, out);
}

/* Rows first … first+rows-1 of the inputs. */
static inline clv_status family_inputs(const family_case *c, int64_t first, int64_t rows, clv_tensor **in)
{
	int64_t sizes[8];
	for (uint32_t i = 0; i < c->ninputs; i++) {
		const value *x = &c->p->values.at[c->input[i]];
		int64_t more = family_sizes(c->p, c->input[i], rows + 1, sizes),
				n = family_sizes(c->p, c->input[i], rows, sizes);
		const char *at =
			(const char *)c->inputs[i] + (more - n) * first * (int64_t)dtype_bytes(x->dtype); /* 0: all rows share it */
		TRY(clv_tensor_from_data(at, dtype_name(x->dtype), x->ndim, sizes, &in[i]));
	}
	return CLV_OK;
}

typedef struct family_results {
	clv_tensor *at[FAMILY_OUTPUTS];
	uint32_t n;
} family_results;

static inline clv_status family_run(const family_case *c, const clv_runtime *r, int64_t first, int64_t rows,
                                    family_results *out)
{
	clv_tensor *in[FAMILY_INPUTS] = {0};
	*out = (family_results){.n = clv_runtime_output_count(r)};
	assert_true(out->n <= FAMILY_OUTPUTS);
	clv_status st = family_inputs(c, first, rows, in);
	if (st == CLV_OK)
		st = clv_runtime_run(r, (const clv_tensor *const *)in, c->ninputs, out->at, out->n);
	for (uint32_t i = 0; i < c->ninputs; i++)
		clv_tensor_free(in[i]);
	return st;
}

static inline void family_release(family_results *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		clv_tensor_free(r->at[i]);
	r->n = 0;
}

#endif
