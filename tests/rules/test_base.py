"""What all rules share: their signature's comparison with the operator's."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from opwright.errors import RegistrationTypeError
from opwright.parse import parse_schema
from opwright.rules.base import Rule, mismatch, names, require_signature
from opwright.source import source_of


def test_names():
    schema = parse_schema("ns::f(Tensor x, int k=1, *, Tensor y, bool b=True) -> Tensor")
    assert names(schema) == (["x", "k"], ["y", "b"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, k, *, y: None,
        lambda a, b, *, y: None,  # positional ones are passed by position
        lambda x, k, y: None,
        lambda x, k, *, y, more=1: None,
        lambda x, k, other=3, *, y: None,
        lambda *args, **kwargs: None,
        lambda x, /, k, *, y: None,
        functools.partial(lambda first, x, k, *, y: None, 1),
        np.add,  # its signature is read, or it has none; it is taken as it is
    ],
)
def test_what_can_be_called_with_the_parameters(fn):
    if isinstance(fn, np.ufunc):
        assert mismatch(fn, ["x", "k"]) is None
    else:
        assert mismatch(fn, ["x", "k"], ["y"]) is None


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x, *, y: None, "(x, *, y) (too many positional arguments)"),
        (lambda x, k: None, "(x, k) (got an unexpected keyword argument 'y')"),
        (lambda x, k, z, *, y: None, "(x, k, z, *, y) (missing a required argument: 'z')"),
        (lambda x, k, *, y, z: None, "(x, k, *, y, z) (missing a required keyword-only argument: 'z')"),
        (lambda x, y, *, k: None, "(x, y, *, k) (multiple values for argument 'y')"),
    ],
)
def test_what_cannot_says_why(fn, reason):
    found = mismatch(fn, ["x", "k"], ["y"])
    assert found.replace("required argument", "required keyword-only argument") == reason.replace(
        "required argument", "required keyword-only argument"
    )
    with pytest.raises(RegistrationTypeError) as e:
        require_signature("the fake of ns::f", fn, ["x", "k"], ["y"], suffix=" -> outputs")
    assert str(e.value) == (
        "the fake of ns::f has another signature than the operator calls it with\n"
        "  expected: (x, k, *, y) -> outputs\n"
        f"  got: {found}\n"
        f"  registered at: {source_of(fn)}"
    )


PARAMETERS = ["x", "x=1", "x, /", "x, /, k", "x, k", "x, k=1", "x=1, k=2", "x, k, y", "x, k, w", "x, k, y=1"]
BY_NAME = ["", "*, y", "*, y=1", "*, z", "*, y, z=1", "*, y=1, z"]


@pytest.mark.parametrize("positional", PARAMETERS)
@pytest.mark.parametrize("by_name", BY_NAME)
@pytest.mark.parametrize("given", [["x"], ["x", "k"], []])
@pytest.mark.parametrize("named", [[], ["y"], ["k", "y"], ["x"]])
def test_a_plain_function_is_judged_as_its_signature_judges(positional, by_name, given, named):
    parameters = ", ".join(filter(None, [positional, by_name]))
    if "y" in positional and "y" in by_name:
        parameters = positional
    fn = eval(f"lambda {parameters}: None")  # noqa: S307  (of the lists above)

    def same(*args, **kwargs):
        return fn(*args, **kwargs)

    functools.update_wrapper(same, fn)  # no plain function: its signature is read
    assert (mismatch(fn, given, named) is None) == (mismatch(same, given, named) is None)


def test_what_is_no_function():
    with pytest.raises(RegistrationTypeError) as e:
        require_signature("the fake of ns::f", 3, [])
    assert str(e.value) == "the fake of ns::f must be a function\n  got: int"


def test_a_rule_is_frozen_and_equal_to_itself_alone():
    one, two = Rule(len, "numpy", "a.py:1"), Rule(len, "numpy", "a.py:1")
    assert one == one  # noqa: PLR0124
    assert one != two
    assert one.slot is None
    with pytest.raises(AttributeError):
        one.fn = max
