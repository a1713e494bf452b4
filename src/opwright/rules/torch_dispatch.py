"""The dispatch rule: what runs instead of the operator under a dispatch mode or for a tensor subclass.

``fn(mode, func, types, args, kwargs)`` for a mode class, ``fn(func, types, args, kwargs)`` for a tensor
subclass, as in ``torch.library.register_torch_dispatch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from opwright.errors import RegistrationTypeError, layout
from opwright.rules.base import Rule, mismatch
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from opwright.schema import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class TorchDispatchRule(Rule):
    """``fn`` runs instead of the operator for ``dispatch_class``."""

    kind: ClassVar[str] = "torch_dispatch"

    dispatch_class: type = object

    @property
    def slot(self) -> Hashable:
        """The class: there is one rule for each."""
        return self.dispatch_class


def describe(
    schema: FunctionSchema, dispatch_class: Any, fn: Callable[..., Any], flavour: str
) -> TorchDispatchRule:
    """Return the rule, its class and signature checked."""
    what = f"the dispatch rule of {schema.qualname}"
    if not isinstance(dispatch_class, type):
        raise RegistrationTypeError(
            layout(f"{what}: torch_dispatch_class must be a class", got=repr(dispatch_class))
        )
    if not callable(fn):
        raise RegistrationTypeError(layout(f"{what} must be a function", got=type(fn).__name__))
    mode = ["mode", "func", "types", "args", "kwargs"]
    reason = mismatch(fn, mode)
    if reason is not None and mismatch(fn, mode[1:]) is not None:
        raise RegistrationTypeError(
            layout(
                f"{what} has another signature than it is called with",
                expected="(mode, func, types, args, kwargs), or without mode for a tensor class",
                got=reason,
                registered=source_of(fn),
            )
        )
    return TorchDispatchRule(fn, flavour, source_of(fn), dispatch_class)
