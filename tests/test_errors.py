"""Every exception is also the built-in that a caller expects; messages are laid out in labelled lines."""

from __future__ import annotations

import inspect

import pytest

from opwright import errors
from opwright.errors import layout

BASES = {
    "SchemaError": (ValueError, RuntimeError),
    "SchemaSyntaxError": (errors.SchemaError, ValueError, RuntimeError),
    "RegistrationError": (RuntimeError,),
    "RegistrationTypeError": (errors.RegistrationError, TypeError, RuntimeError),
    "RegistrationValueError": (errors.RegistrationError, ValueError, RuntimeError),
    "TargetError": (errors.RegistrationTypeError, errors.RegistrationValueError),
    "DuplicateError": (errors.RegistrationError, RuntimeError),
    "ArgumentError": (TypeError, RuntimeError),
    "ArgumentValueError": (errors.ArgumentError, TypeError, ValueError),
    "MixedFrameworksError": (errors.ArgumentError, TypeError),
    "NoKernelError": (NotImplementedError, RuntimeError),
    "UnsupportedError": (NotImplementedError,),
    "MissingRuleError": (RuntimeError,),
    "AliasError": (RuntimeError,),
    "OutputError": (RuntimeError,),
    "GradientError": (RuntimeError,),
    "StaleError": (RuntimeError,),
    "OpCheckError": (AssertionError,),
}


@pytest.mark.parametrize("name", BASES)
def test_class_is_also_the_built_in_that_a_caller_expects(name):
    assert issubclass(getattr(errors, name), (errors.OpwrightError,))
    for base in BASES[name]:
        assert issubclass(getattr(errors, name), base)


def test_every_class_is_an_opwright_error_with_a_docstring():
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) > len(BASES)
    assert [cls for cls in classes if not issubclass(cls, errors.OpwrightError)] == []
    assert [cls for cls in classes if not cls.__doc__] == []


def test_layout_is_what_failed_and_one_line_a_fact():
    text = layout("ns::f failed", expected="a", got="b", registered="c.py:1", fix="d")
    assert text == "ns::f failed\n  expected: a\n  got: b\n  registered at: c.py:1\n  to fix: d"


@pytest.mark.parametrize("nothing", [None, ""])
def test_layout_leaves_out_what_is_not_known(nothing):
    assert layout("ns::f failed", expected=nothing, got="b", registered=nothing) == "ns::f failed\n  got: b"


def test_opcheck_error_carries_its_report():
    report = object()
    error = errors.OpCheckError("a law is broken", report)
    assert error.report is report
    assert str(error) == "a law is broken"
