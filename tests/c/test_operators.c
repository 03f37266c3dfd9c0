/* Operators of a plan against the list of those that a file may hold. */
#include "support.h"

#include "file/operators.h"
#include "plan/ops.h"

#define CHECK(p, ...)                                                                                                  \
	operators_check((p), (const char *const[]){__VA_ARGS__},                                                           \
	                (uint32_t)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

/* A plan whose second node has this operator. */
static plan *plan_with(const char *op)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b,
	              "cleave-plan 1\nmodel \"m\"\nscope \"\" \"M\"\nscope body.0 \"Load\"\ninput %%0 f32[4]\n"
	              "%%1 = aten::relu(%%0) -> f32[4]\n"
	              "%%2 = %s(\"weights.bin\", false, 4) -> f32[4] in body.0 at \"model.py:12\"\n"
	              "output (%%1, %%2)\n",
	              op);
	char *text = taken(&b);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

static clv_status check_op(const char *op, const char *allow)
{
	plan *p = plan_with(op);
	clv_status st = operators_check(p, &allow, allow ? 1 : 0);
	plan_free(p);
	return st;
}

static clv_status check_text(const char *text)
{
	plan *p = load_ok(text);
	clv_status st = operators_check(p, NULL, 0);
	plan_free(p);
	return st;
}

static void operators_of_models_are_allowed(void **state)
{
	(void)state;
	static const char *const ops[] = {
		"aten::linear",
		"aten::conv2d.padding",
		"aten::add_.Tensor",
		"aten::add.out",
		"aten::scaled_dot_product_attention",
		"aten::_transformer_encoder_layer_fwd",
		"aten::_native_multi_head_attention",
		"aten::_nested_tensor_from_mask",
		"aten::_weight_norm",
		"aten::_pack_padded_sequence",
		"aten::lstm.data",
		"aten::embedding_bag.padding_idx",
		"aten::as_strided",
		"aten::data",
		"aten::requires_grad_",
		"aten::linalg_svd",
		"aten::fft_rfft2",
		"aten::special_i0e",
		"aten::_foreach_mul_.Scalar",
		"aten::quantize_per_channel",
		"aten::item",
		"aten::gelu_backward",
		"aten::__and__.Tensor", /* the first of the list, and the last: */
		"aten::zeros_like",
		"torchvision::nms",
		"torchvision::roi_align",
		"quantized::linear_dynamic",
		"prims::convert_element_type",
		"cleave::guard_equal",
	};
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (check_op(ops[i], NULL) != CLV_OK)
			fail_msg("%s", status_message());
}

static void a_refusal_names_operator_node_module_line_reason_and_remedy(void **state)
{
	(void)state;
	FAILS(check_op("aten::from_file", NULL), CLV_E_UNSUPPORTED,
	      "node from_file in body.0 at model.py:12: aten::from_file reads or writes files, so a file may not hold it; "
	      "if you trust the file, allow it by name: \"aten::from_file\"");
	FAILS(check_op("aten::from_file.out", NULL), CLV_E_UNSUPPORTED, "aten::from_file.out reads or writes files");
	assert_null(strstr(status_message(), "\"aten::from_file.out\"")); /* the name covers all overloads */
}

static void each_kind_of_refusal_has_its_reason(void **state)
{
	(void)state;
	static const char *const kinds[][2] = {
		{"aten::from_file.out", "reads or writes files"},
		{"image::read_file", "reads or writes files"},
		{"c10d::allreduce_", "talks to other processes"},
		{"symm_mem::one_shot_all_reduce", "talks to other processes"},
		{"aten::set_.source_Tensor_storage_offset", "takes raw memory"},
		{"mkldnn::data_ptr", "takes raw memory"},
		{"inductor::_reinterpret_tensor", "takes raw memory"},
		{"aten::_unsafe_index.Tensor", "is an inner operator that leaves checks to its callers"},
		{"aten::_index_put_impl_", "is an inner operator that leaves checks to its callers"},
		{"aten::sparse_coo_tensor.indices_size", "skips the checks that keep it inside its memory"},
		{"aten::_nested_view_from_buffer", "is an inner operator that leaves checks to its callers"},
		{"aten::_", "is an inner operator that leaves checks to its callers"},
		{"aten::embedding_dense_backward.out", "is an inner operator that leaves checks to its callers"},
		{"quantized::embedding_bag_byte_rowwise_offsets", "is not on the list of operators known to be safe"},
		{"aten::mkldnn_convolution", "is not on the list of operators known to be safe"},
		{"cleave::python", "runs code"},
		{"prim::PythonOp", "runs code"},
		{"aten::_print", "writes to the terminal"},
		{"aten::_cufft_clear_plan_cache", "changes settings of the whole process"},
		{"aten::_test_string_default", "is there to test PyTorch"},
		{"onednn::qlinear_pointwise", "belongs to a compiler"},
		{"mylib::fast_norm", "is not on the list of operators known to be safe"},
		{"aten::no_such_operator", "is not on the list of operators known to be safe"},
		{"cleave::launch", "is not on the list of operators known to be safe"},
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		FAILS(check_op(kinds[i][0], NULL), CLV_E_UNSUPPORTED, kinds[i][1]);
		assert_non_null(strstr(status_message(), kinds[i][0]));
	}
}

static void names_that_nearly_match_are_refused(void **state)
{
	(void)state;
	static const char *const ops[] = {
		"aten::rel",     "aten::reluu",  "aten::Relu",    "Aten::relu",       "aten::aten::relu", "aten:::relu",
		"aten::relu:",   "aten::relu::", "aten::::relu",  "relu::aten",       "aten_::relu",      "aten::add:out",
		"a::aten::relu", "aten::zz",     "aten::zzz",     "aten::__",         "aten::0",          "torch::relu",
		"cleave::relu",  "prims::relu_", "aten::abs_abs", "aten::zeros_like_"};
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		FAILS(check_op(ops[i], NULL), CLV_E_UNSUPPORTED, "is not on the list of operators known to be safe");
}

/* Text cannot hold such names; a plan that was built can. */
static void names_that_are_none_are_refused(void **state)
{
	(void)state;
	static const char *const ops[] = {"relu", "::relu", "aten::", "aten::.out", "aten:relu", ".", "::"};
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
		plan *p;
		OK(plan_new(&p));
		OK(plan_node(p, &(node_spec){.op = ops[i], .scope = NONE}, &(node_id){0}));
		FAILS(CHECK(p, "aten::*"), CLV_E_UNSUPPORTED, "is no operator with a namespace");
		plan_free(p);
	}
}

static void a_long_name_gives_a_short_message(void **state)
{
	(void)state;
	char op[5000] = "aten::";
	memset(op + 6, 'a', sizeof op - 7);
	FAILS(check_op(op, NULL), CLV_E_UNSUPPORTED, "is not on the list");
	assert_true(strlen(status_message()) < 1500);
}

static void an_entry_allows_an_operator_an_overload_or_a_namespace(void **state)
{
	(void)state;
	OK(check_op("aten::from_file", "aten::from_file"));
	OK(check_op("aten::from_file.out", "aten::from_file"));
	OK(check_op("aten::from_file.out", "aten::from_file.out"));
	OK(check_op("mylib::fast_norm.Tensor", "mylib::*"));
	OK(check_op("cleave::python", "cleave::python"));
	OK(check_op("aten::_print", "aten::*"));
	FAILS(check_op("aten::from_file", "aten::from_file.out"), CLV_E_UNSUPPORTED, "files");
	FAILS(check_op("aten::from_file.out", "aten::from_file.ou"), CLV_E_UNSUPPORTED, "files");
	FAILS(check_op("aten::from_file", "aten::from"), CLV_E_UNSUPPORTED, "files");
	FAILS(check_op("aten::from_file", "aten::from_file_"), CLV_E_UNSUPPORTED, "files");
	FAILS(check_op("mylib2::fast_norm", "mylib::*"), CLV_E_UNSUPPORTED, "is not on the list");
	FAILS(check_op("my::fast_norm", "mylib::*"), CLV_E_UNSUPPORTED, "is not on the list");
	plan *p = plan_with("aten::from_file");
	OK(CHECK(p, "mylib::*", "aten::_print", "aten::from_file"));
	FAILS(CHECK(p, "mylib::*", "aten::_print"), CLV_E_UNSUPPORTED, "files");
	plan_free(p);
}

static void a_malformed_entry_is_an_error_also_where_nothing_needs_it(void **state)
{
	(void)state;
	static const char *const entries[] = {"",
	                                      "*",
	                                      "aten",
	                                      "aten::",
	                                      "::relu",
	                                      "::*",
	                                      "*::*",
	                                      "*::relu",
	                                      "aten::re*",
	                                      "aten::**",
	                                      "aten::*.out",
	                                      "aten::relu.",
	                                      "aten::relu.*",
	                                      "aten:relu",
	                                      " aten::relu",
	                                      "aten::relu ",
	                                      "aten::a,b",
	                                      "aten::a.b.c",
	                                      "aten::a::b",
	                                      "aten::a\n",
	                                      "at en::relu",
	                                      "aten::.out",
	                                      "aten::r\xc3\xa9"};
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %0 f32[4]\n%1 = aten::relu(%0) -> f32[4]\noutput %1\n");
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
		FAILS(CHECK(p, "mylib::*", entries[i]), CLV_E_INVALID, "does not say which operators to allow");
	FAILS(operators_check(p, &(const char *){NULL}, 1), CLV_E_INVALID, "does not say which operators to allow");
	plan_free(p);
}

static void the_first_refused_operator_is_named(void **state)
{
	(void)state;
	FAILS(
		check_text("cleave-plan 1\nmodel \"m\"\ninput %0 f32[4]\n%1 = aten::relu(%0) -> f32[4]\n"
	               "%2 = b::x(%1) -> f32[4]\n%3 = b::x(%2) -> f32[4]\n%4 = aten::_print(\"t\") -> f32[4]\noutput %3\n"),
		CLV_E_UNSUPPORTED, "node x: b::x is not");
	OK(check_text("cleave-plan 1\nmodel \"m\"\ninput %0 f32[4]\noutput %0\n"));
}

static void rows_and_lists_are_sorted_and_no_name_is_there_twice(void **state)
{
	(void)state;
	for (uint16_t i = OP_UNKNOWN_LAST + 1; i < OP_COUNT; i++) {
		if (i > OP_UNKNOWN_LAST + 1 && strcmp(op_rows[i - 1].text, op_rows[i].text) >= 0)
			fail_msg("%s is not after %s", op_rows[i].text, op_rows[i - 1].text);
		assert_int_equal(op_find(op_rows[i].text), i);
	}
	assert_int_equal(op_find("aten::add"), OP_UNKNOWN);
	assert_int_equal(op_find(""), OP_UNKNOWN);
	for (uint16_t i = OP_UNKNOWN; i <= OP_UNKNOWN_LAST; i++)
		assert_memory_equal(&op_rows[i], (&(op_row){.text = op_rows[i].text, .memory = (uint8_t)(i - OP_UNKNOWN)}),
		                    sizeof(op_row));
	assert_int_equal(op_find("aten::set_.source_Tensor"), OP_UNKNOWN + MEMORY_JOINED);
	assert_int_equal(op_find("mylib::as_strided"), OP_UNKNOWN + MEMORY_BEYOND);
	assert_int_equal(op_find("aten::empty.out"), OP_UNKNOWN + MEMORY_EMPTY);
	assert_int_equal(op_find("prims::empty_strided"), OP_UNKNOWN + MEMORY_EMPTY);
	assert_int_equal(op_find("mylib::empty"), OP_UNKNOWN);
#define LIST(kind, head, ...) {head, (const char *const[]){__VA_ARGS__, NULL}},
	const struct {
		const char *head;
		const char *const *ops;
	} lists[] = {
#include "plan/ops.def"
	};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		for (const char *const *op = lists[i].ops; op[1]; op++)
			if (strcmp(op[0], op[1]) >= 0)
				fail_msg("%s: %s is not after %s", lists[i].head, op[1], op[0]);
}

static bool covers(const char *entry, const char *op)
{
	op_name o = op_split(op);
	return op_covers(entry, &o);
}

static void entries_cover_overloads_namespaces_and_forms_in_place(void **state)
{
	(void)state;
	assert_true(covers("aten::sort", "aten::sort.stable") && covers("aten::sort.stable", "aten::sort.stable"));
	assert_false(covers("aten::sort.stable", "aten::sort") || covers("aten::sort", "aten::sort_"));
	assert_false(covers("aten::sort", "mylib::sort") || covers("aten::sor", "aten::sort"));
	assert_true(covers("mylib::*", "mylib::sort") && !covers("mylib::*", "mylib2::sort"));
	assert_true(covers("qr", "aten::qr") && covers("qr", "aten::qr_.out") && covers("qr.default", "aten::qr"));
	assert_false(covers("qr", "mylib::qr") || covers("qr.default", "aten::qr.out") || covers("qr", "qr"));
}

/* With the test above: what is found by search is what is listed. */
static void every_name_of_the_list_is_found_and_every_refused_one_is_not(void **state)
{
	(void)state;
#define LIST(kind, head, ...) {kind, head, (const char *const[]){__VA_ARGS__, NULL}},
	const struct {
		op_list kind;
		const char *head;
		const char *const *ops;
	} lists[] = {
#include "plan/ops.def"
	};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		for (const char *const *op = lists[i].ops; *op && lists[i].kind <= FILE_REFUSE; op++) {
			bool allowed = lists[i].kind == FILE_ALLOW;
			strbuf b = STRBUF_INIT;
			if (allowed)
				strbuf_printf(&b, "%s::", lists[i].head);
			strbuf_printf(&b, "%.*s%s", (int)strcspn(*op, "*"), *op, strchr(*op, '*') ? "any" : "");
			char *name = taken(&b);
			if (check_op(name, NULL) != (allowed ? CLV_OK : CLV_E_UNSUPPORTED))
				fail_msg("%s: %s", name, status_message());
			assert_true(allowed || strstr(status_message(), lists[i].head));
			mem_free(name);
		}
}

static clv_status attempt(const void *ctx)
{
	return operators_check(ctx, NULL, 0);
}

static void running_out_of_memory_is_an_error(void **state)
{
	(void)state;
	plan *p = plan_with("aten::from_file");
	assert_true(sweep_faults(attempt, p, CLV_E_UNSUPPORTED) > 0);
	plan_free(p);
	p = plan_with("aten::sin");
	assert_int_equal(sweep_faults(attempt, p, CLV_OK), 0);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operators_of_models_are_allowed),
		cmocka_unit_test(a_refusal_names_operator_node_module_line_reason_and_remedy),
		cmocka_unit_test(each_kind_of_refusal_has_its_reason),
		cmocka_unit_test(names_that_nearly_match_are_refused),
		cmocka_unit_test(names_that_are_none_are_refused),
		cmocka_unit_test(a_long_name_gives_a_short_message),
		cmocka_unit_test(an_entry_allows_an_operator_an_overload_or_a_namespace),
		cmocka_unit_test(a_malformed_entry_is_an_error_also_where_nothing_needs_it),
		cmocka_unit_test(the_first_refused_operator_is_named),
		cmocka_unit_test(rows_and_lists_are_sorted_and_no_name_is_there_twice),
		cmocka_unit_test(entries_cover_overloads_namespaces_and_forms_in_place),
		cmocka_unit_test(every_name_of_the_list_is_found_and_every_refused_one_is_not),
		cmocka_unit_test(running_out_of_memory_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
