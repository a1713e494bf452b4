"""One definition, two operators: Opwright's and that of ``torch.library``; and a case of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Definition:
    """What an operator is made of; every rule is torch-flavoured.

    Parameters
    ----------
    name
        Its name, without a namespace.
    kernel
        The function that computes.
    args
        Returns the arguments of the one call that it is checked with.
    schema
        The schema, where the annotations of the kernel do not give it.
    mutates_args, tags
        As ``custom_op`` takes them.
    fake, backward, setup, vmap, jvp
        Rules; None for none.
    autocast
        A device type and a dtype, as ``register_autocast`` takes them.
    kernels
        More kernels: ``(device_types, function)``.
    """

    name: str
    kernel: Callable[..., Any]
    args: Callable[[], Sequence[Any]]
    schema: str | None = None
    mutates_args: Sequence[str] = ()
    tags: Sequence[str] = ()
    fake: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    setup: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None
    autocast: tuple[str, Any] | None = None
    kernels: Sequence[tuple[str, Callable[..., Any]]] = ()

    def define(self) -> Any:
        """Return Opwright's operator."""
        import opwright

        flavour = {"flavour": "torch"} if self.schema is not None else {}
        op = self._defined(opwright, f"corpus{next(_numbers)}", list(self.tags), **flavour)
        if self.jvp is not None:
            op.register_jvp(self.jvp)
        return op

    def define_twin(self) -> Any:
        """Return the operator of ``torch.library``."""
        import torch

        tags = [getattr(torch.Tag, tag) for tag in self.tags]
        return self._defined(torch.library, f"twin{next(_numbers)}", tags)

    def _defined(self, library: Any, namespace: str, tags: list[Any], **options: Any) -> Any:
        op = library.custom_op(
            f"{namespace}::{self.name}",
            self.kernel,
            mutates_args=tuple(self.mutates_args),
            schema=self.schema,
            tags=tags or None,
            **options,
        )
        for device_types, function in self.kernels:
            op.register_kernel(device_types)(function)
        if self.fake is not None:
            op.register_fake(self.fake)
        if self.backward is not None:
            op.register_autograd(self.backward, setup_context=self.setup)
        if self.vmap is not None:
            op.register_vmap(self.vmap)
        if self.autocast is not None:
            op.register_autocast(*self.autocast)
        return op


@dataclass(frozen=True, slots=True)
class Case:
    """One operator of the corpus.

    Parameters
    ----------
    group, name
        The set it belongs to, and its name there.
    build
        Returns Opwright's operator, its arguments (None for its registered samples) and its keyword
        arguments.
    build_twin
        Returns the same for ``torch.library.opcheck``; None where there is no twin.
    laws
        The laws that may find the fault; none for a right operator.
    words
        What a finding's text must contain so that the cause is named.
    options
        Keyword arguments of ``opcheck``.
    confirm
        Whether a finding is true of the operator's own functions, as is seen without the checker.
    """

    group: str
    name: str
    build: Callable[[], tuple[Any, Sequence[Any] | None, Mapping[str, Any]]]
    build_twin: Callable[[], tuple[Any, Sequence[Any], Mapping[str, Any]]] | None = None
    laws: tuple[str, ...] = ()
    words: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    confirm: Callable[[Any], bool] | None = None

    @property
    def id(self) -> str:
        """The group and the name."""
        return f"{self.group}/{self.name}"

    @property
    def wrong(self) -> bool:
        """Whether a fault was planted."""
        return bool(self.laws)


def case(
    definition: Definition, group: str, laws: Sequence[str] = (), words: str = "", *, level: str = "default"
) -> Case:
    """Return the case of a definition, with its twin."""

    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        return definition.define(), tuple(definition.args()), {}

    def build_twin() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        args = tuple(definition.args())
        return definition.define_twin(), [_requiring(a) for a in args] if definition.backward else args, {}

    options = {} if level == "default" else {"level": level}
    twin = None if "jvp" in laws else build_twin  # torch.library has no word for such a rule
    return Case(group, definition.name, build, twin, tuple(laws), words, options)


def _requiring(value: Any) -> Any:
    """Return an argument with its floating tensors requiring a gradient."""
    import torch

    if isinstance(value, list):
        return [_requiring(one) for one in value]
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.clone().requires_grad_()
    return value
