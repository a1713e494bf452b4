"""Every row of docs/behaviours.md has a test, and every test that names a row names one that is there."""

from __future__ import annotations

from behaviour_rows import ROWS, TESTS, named_tests


def test_rows_are_numbered_without_gaps():
    assert list(ROWS) == list(range(1, len(ROWS) + 1))
    assert len(ROWS) == 116


def test_every_row_has_a_test():
    assert [number for number in ROWS if number not in named_tests()] == []


def test_every_test_of_a_row_is_about_one_that_is_there():
    assert [number for number in named_tests() if number not in ROWS] == []


def test_tests_are_found_by_name():
    tests = named_tests()
    assert "test_custom_ops.py::test_row_27_28_30_rules_of_the_tags" in tests[28]
    for row in tests.values():
        for test in row:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (TESTS / path).read_text("utf-8")
