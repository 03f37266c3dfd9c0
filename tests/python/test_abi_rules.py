"""The rules by which tests/abi/run.py judges a change of the C interface."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "abi" / "run.py"
spec = importlib.util.spec_from_file_location("abi_run", FILE)
assert spec
assert spec.loader
abi = importlib.util.module_from_spec(spec)
sys.modules["abi_run"] = abi  # dataclasses look their module up
spec.loader.exec_module(abi)

OPTIONS = {"options": {".": (16,), "size": (0, 8), "debug": (8, 1)}}


def test_the_same_layout_breaks_nothing():
    assert abi.broken_layout(OPTIONS, OPTIONS) == []


def test_a_field_beyond_the_old_end_breaks_nothing():
    new = {"options": {**OPTIONS["options"], ".": (24,), "more": (16, 8)}, "another": {".": (8,), "size": (0, 8)}}
    assert abi.broken_layout(OPTIONS, new) == []


def test_a_field_in_the_padding_of_the_old_struct_breaks_callers():
    new = {"options": {**OPTIONS["options"], "more": (9, 1)}}
    assert abi.broken_layout(OPTIONS, new) == [
        "options more lies within the 16 bytes that the struct had: put it behind them"
    ]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({".": (16,), "size": (0, 8), "debug": (12, 1)}, "options debug was (8, 1), is (12, 1)"),
        ({".": (16,), "size": (0, 8), "debug": (8, 4)}, "options debug was (8, 1), is (8, 4)"),
        ({".": (16,), "size": (0, 8)}, "options debug is gone"),
    ],
)
def test_a_field_that_moves_or_changes_or_goes_breaks_callers(members, what):
    assert abi.broken_layout(OPTIONS, {"options": members}) == [what]


def test_a_new_enumerator_at_the_end_breaks_nothing_and_a_new_number_breaks_callers():
    old = {"clv_status": {"CLV_OK": (0,), "CLV_E_IO": (1,)}}
    assert abi.broken_layout(old, {"clv_status": {**old["clv_status"], "CLV_E_NEW": (2,)}}) == []
    assert abi.broken_layout(old, {"clv_status": {"CLV_OK": (0,), "CLV_E_NEW": (1,), "CLV_E_IO": (2,)}}) == [
        "clv_status CLV_E_IO was (1,), is (2,)"
    ]


def test_a_function_that_goes_breaks_callers():
    assert abi.broken_symbols(["clv_a", "clv_b"], ["clv_b", "clv_c"]) == ["clv_a is gone"]


HEADER = """
/** @defgroup plans Plans
 *  @{ */

/** A plan of some text.
    @ownership the caller's.
    @errors CLV_E_PARSE.
    @threads any. */
CLV_API clv_status clv_plan_parse(const char *text, clv_plan **out);

/** Says nothing about threads. */
CLV_API clv_status clv_plan_change(clv_plan *p, int how);

/** Reads, which any thread may. */
CLV_API clv_status clv_plan_print(const clv_plan *p,
                                  char **out);
CLV_API const char *clv_name(void);

/** @} */

/** @defgroup run Programs [run]
 *  @{ */

/** Runs. @errors CLV_E_INPUT. @threads any. */
CLV_API clv_status clv_run(const clv_program *g);
"""


def test_functions_are_read_from_the_header_and_belong_to_a_library():
    assert [(f.name, f.run) for f in abi.functions(HEADER)] == [
        ("clv_plan_parse", False),
        ("clv_plan_change", False),
        ("clv_plan_print", False),
        ("clv_name", False),
        ("clv_run", True),
    ]


def test_a_function_has_a_comment_and_says_which_threads_may_change_a_handle():
    missing = {f.name: [m.split()[-1] for m in abi.undocumented(f)] for f in abi.functions(HEADER)}
    assert missing == {
        "clv_plan_parse": [],
        "clv_plan_change": ["@threads"],
        "clv_plan_print": [],
        "clv_name": ["cleave.h"],
        "clv_run": [],
    }


def test_fields_of_every_form_are_read():
    body = "size_t size; const char *const *names; uint32_t first, end; int64_t dims[8]; int (*write)(void *c, int n);"
    assert abi.fields(body) == ["size", "names", "first", "end", "dims", "write"]
