"""Every exception that Opwright raises, and how a message is laid out.

* Each class is also a subclass of the built-in that a caller would expect; where ``torch.library``
  raises another built-in, of both.
* A message starts with what failed and goes on in labelled lines, so that tests pin it whole.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from opwright.report import Report


def layout(
    what: str,
    *,
    expected: str | None = None,
    got: str | None = None,
    registered: str | None = None,
    fix: str | None = None,
) -> str:
    """Lay out a message: what failed, then one labelled line for each fact that is known."""
    rows = (("expected", expected), ("got", got), ("registered at", registered), ("to fix", fix))
    return "\n".join([what, *(f"  {label}: {text}" for label, text in rows if text)])


class OpwrightError(Exception):
    """Base class of every error of Opwright."""


class SchemaError(OpwrightError, ValueError, RuntimeError):
    """A schema, or the annotated function that it is inferred from, is not valid."""


class SchemaSyntaxError(SchemaError):
    """A schema text cannot be read; the message points at the column."""


class RegistrationError(OpwrightError, RuntimeError):
    """A registration was refused; nothing has changed."""


class RegistrationTypeError(RegistrationError, TypeError):
    """A registration was given an object of the wrong type."""


class RegistrationValueError(RegistrationError, ValueError):
    """A registration was given a value that it cannot take."""


class TargetError(RegistrationTypeError, RegistrationValueError):
    """What a registration is for is no operator, nor the name of one."""


class DuplicateError(RegistrationError):
    """Something is already registered under this name and overriding was not allowed."""


class ArgumentError(OpwrightError, TypeError, RuntimeError):
    """A call was given an argument that the schema does not allow."""


class ArgumentValueError(ArgumentError, ValueError):
    """A call was given an argument of the right type with a value that is not allowed."""


class MixedFrameworksError(ArgumentError):
    """A call was given arrays of two frameworks."""


class NoKernelError(OpwrightError, NotImplementedError):
    """No kernel of the operator can take these arrays."""


class UnsupportedError(OpwrightError, NotImplementedError):
    """The framework cannot do this, for the reason that the message gives."""


class MissingRuleError(OpwrightError, RuntimeError):
    """The operator lacks the rule that this use of it needs."""


class AliasError(OpwrightError, RuntimeError):
    """An output is, or shares memory with, an argument or another output."""


class OutputError(OpwrightError, RuntimeError):
    """A kernel or a rule returned something that does not fit the schema."""


class FakeError(OpwrightError, TypeError):
    """A fake was asked for what it has not: data, or the value of a size that is not known."""


class ContextError(OpwrightError, RuntimeError):
    """Something was used outside the place that it belongs to."""


class GradientError(OpwrightError, RuntimeError):
    """A gradient rule returned something that does not fit the operator's arguments."""


class StaleError(OpwrightError, RuntimeError):
    """The operator, kernel or handle was replaced or removed."""


class OpCheckError(OpwrightError, AssertionError):
    """An operator breaks a law; ``report`` holds every outcome.

    Parameters
    ----------
    message
        The findings, as text.
    report
        All outcomes, those of the laws that hold included.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        # Not its own class: the one that is torch's too is made while torch's is loaded.
        return OpCheckError, (*self.args, self.report)
