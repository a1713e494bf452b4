"""The one duplicate policy, by itself; what registrations make of it is tested with the registry."""

from __future__ import annotations

import warnings

import pytest

from opwright.duplicates import OverrideWarning, check_override
from opwright.errors import DuplicateError


def test_nothing_is_replaced():
    assert check_override("the fake", None, "a.py:1", allow_override=False) is None


@pytest.mark.parametrize("previous", ["a.py:1", "a.py:7"])
def test_the_same_file_may_replace_its_own(previous):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_override("the fake", previous, "a.py:7", allow_override=True)


def test_another_file_is_warned_of_at_the_callers_line():
    with pytest.warns(OverrideWarning) as caught:
        check_override("the fake", "a.py:1", "b.py:2", allow_override=True)
    assert [str(w.message) for w in caught] == [
        "the fake registered at a.py:1 is replaced by the one at b.py:2"
    ]
    assert caught[0].filename == __file__


def test_where_it_is_not_allowed_both_lines_are_named():
    with pytest.raises(DuplicateError) as e:
        check_override("the fake", "a.py:1", "a.py:2", allow_override=False, fix="choose")
    assert str(e.value) == (
        "the fake is already registered\n"
        "  got: a second one at a.py:2\n"
        "  registered at: a.py:1\n"
        "  to fix: choose"
    )
