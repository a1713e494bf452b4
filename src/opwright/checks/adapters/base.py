"""What the laws need of a framework: arrays from NumPy's, calls, fakes and transforms, all in one shape.

A law is written once against this; it asks ``supports`` before it uses what a framework may not have.
Everything that goes in and comes out of a law is a NumPy array or a list of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from opwright import catalogue, modes
from opwright.checks.adapters.results import Unsupported
from opwright.errors import OpCheckError, RegistrationValueError, layout
from opwright.frameworks.base import load
from opwright.source import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opwright.checks.adapters.programs import Compiler
    from opwright.checks.adapters.results import Called, Faked, Pullback
    from opwright.checks.samples import Sample
    from opwright.overload import OpOverload


class Adapter(ABC):
    """How the laws use a framework; one final subclass a framework, in a module of its name."""

    name: ClassVar[str]
    layouts: ClassVar[tuple[str, ...]] = ()
    """The layouts in memory that its arrays can have, by the names of ``arrays.LAYOUTS``."""
    in_place: ClassVar[bool] = True
    """Whether mutation can be seen in the caller's arrays."""
    imports: ClassVar[tuple[str, ...]] = ()
    """The import lines of a snippet, after NumPy's and Opwright's."""
    device_type: str = "cpu"
    """The device type of its arrays, in torch's words."""
    own_autocast: ClassVar[bool] = False
    """Whether the framework has an autocast that acts on its own functions too."""
    compiles_calls: ClassVar[bool] = False
    """Whether the first eager call with other shapes or dtypes is slow, for it compiles every operation."""
    coerces: ClassVar[bool] = True
    """Whether the framework gives gradients the shape and dtype of their arguments by itself."""

    @abstractmethod
    def array(self, array: Any) -> Any:
        """Return an array of the framework over a NumPy array, with its layout where that is possible."""

    def over(self, array: Any) -> Any:
        """Return an array of the framework in the very memory of a NumPy array, where that is possible."""
        return self.array(array)

    @abstractmethod
    def numpy(self, array: Any) -> Any:
        """Return a NumPy array of an array of the framework."""

    def zeros_like(self, array: Any) -> Any:
        """Return zeros of an array's shape and dtype."""
        import numpy as np

        return self.array(np.zeros_like(self.numpy(array)))

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of the framework."""

    @abstractmethod
    def shares_memory(self, a: Any, b: Any) -> bool:
        """Return whether two arrays use one buffer."""

    @abstractmethod
    def metadata(self, array: Any) -> tuple[tuple[str, Any], ...]:
        """Return what a kernel must not change of an argument beside its data, by name."""

    @abstractmethod
    def call(self, record: OpOverload, values: Sequence[Any]) -> Called:
        """Call the operator on argument values in schema order."""

    @abstractmethod
    def fake(
        self, record: OpOverload, values: Sequence[Any], hints: Mapping[int, int] | None = None
    ) -> Faked:
        """Return what the fake returns for such arguments, arrays as ``Meta``.

        With ``hints``, sizes are symbols, one for each size above 1; a question about one is answered as
        if its value were the hint for it (by default its own), and listed.
        """

    def lowers(self, record: OpOverload, values: Sequence[Any]) -> bool:
        """Return whether the framework compared fake and kernel itself for such arguments, without a call."""
        return False

    @abstractmethod
    def vjp(self, record: OpOverload, values: Sequence[Any], wanted: Sequence[Any]) -> Pullback:
        """Call the operator so that gradients can be pulled back to the arguments that are wanted."""

    @abstractmethod
    def jvp(
        self, record: OpOverload, values: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return outputs (new values of mutated arguments included) and their tangents."""

    @abstractmethod
    def vmap(
        self, record: OpOverload, values: Sequence[Any], levels: Sequence[Sequence[Any]], out_dims: int = 0
    ) -> Called:
        """Call the operator under vmap; each level, outermost first, has ``in_dims`` for each argument.

        ``in_dims`` are nested for lists; ``out_dims`` is that of every output at every level.
        """

    @abstractmethod
    def code(self, name: str) -> str:
        """Return an expression that makes an array of the framework of a NumPy array in a snippet."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which arrays keep the dtype that they are given."""
        return nullcontext()

    def cheaply(self) -> AbstractContextManager[Any]:
        """Return the context in which transforms may run another way than a user's: right means right there.

        What is wrong in it is to be looked at again outside.
        """
        return nullcontext()

    def outlined(self, function: Callable[[], list[Any]]) -> list[Any]:
        """Return what a function returns; arrays in it may be anything that has their shape and dtype."""
        return function()

    def autocast(self, device_type: str, dtype: str) -> AbstractContextManager[Any]:
        """Return the framework's autocast for a device type; ``dtype`` is that of the rule."""
        return modes.autocast(device_type)

    def autocast_lines(self, device_type: str, dtype: str) -> tuple[str, ...]:
        """Return the lines of a snippet that call the operator with and without autocast."""
        return ("print({call})", f"with ow.autocast({device_type!r}):", "    print({call})")

    def second(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
    ) -> tuple[list[Any], list[Any]] | Unsupported:
        """Differentiate the inner product of the gradients with directions.

        ``directions`` has one entry for each argument. What is returned has the derivative with respect to
        each argument that is wanted, then with respect to each cotangent.
        """
        return Unsupported(f"{self.name} has no second derivatives of a single operator")

    def pulled_after(
        self,
        record: OpOverload,
        values: Sequence[Any],
        wanted: Sequence[Any],
        cotangents: Sequence[Any],
        place: tuple[int, int | None],
    ) -> list[Any] | Unsupported:
        """Return the gradients where one argument is changed between the call and the backward."""
        return Unsupported(f"nothing tells {self.name} that an array was changed")

    def compilers(self, *, thorough: bool) -> list[Compiler] | Unsupported:
        """Return how operators are compiled, the cheapest first, or why they are not."""
        return Unsupported(f"{self.name} has no compiler")

    def exported(self, record: OpOverload, values: Sequence[Any]) -> Called | Unsupported:
        """Return what a program that was exported, saved and loaded does."""
        return Unsupported("exported programs are looked at in torch")

    def functionalised(
        self, record: OpOverload, values: Sequence[Any]
    ) -> list[tuple[str, Any, Any]] | Unsupported:
        """Run a call eagerly and in a program without mutation.

        What is returned has a name for each array that must be the same, the one after the eager call, and
        the one after the program.
        """
        return Unsupported(f"{self.name} does not functionalise programs")

    def device_of(self, array: Any) -> str:
        """Return the device of an array, such as ``"cuda:1"``."""
        return self.device_type

    def copies(self, record: OpOverload, values: Sequence[Any]) -> list[tuple[str, str, str]] | Unsupported:
        """Return each copy between devices inside the kernel: the function, from where, to where."""
        return Unsupported(f"nothing tells what a kernel on {self.name} copies")

    def waits(self, record: OpOverload, values: Sequence[Any]) -> Exception | None:
        """Return the error that reports that a call waits for the GPU, or None."""
        return None

    def replays(
        self, record: OpOverload, values: Sequence[Any], data: Sequence[Sequence[Any]]
    ) -> list[Called] | Unsupported:
        """Capture a call in a CUDA graph; return what a replay with each of the ``data`` gives."""
        return Unsupported(f"{self.name} captures no CUDA graphs")

    def silence(self) -> AbstractContextManager[Any]:
        """Return the context in which the framework writes nothing to its logs."""
        return nullcontext()

    def refuses(
        self, record: OpOverload, values: Sequence[Any], cotangents: Sequence[Any]
    ) -> Exception | None:
        """Return the error with which the framework refuses what the backward returns, or None."""
        return None

    def gradient_lines(self, sample: Sample) -> tuple[str, ...]:
        """Return the lines of a snippet that print the gradients of a call."""
        return ("print({call})",)

    def tangent_lines(self, sample: Sample) -> tuple[str, ...]:
        """Return the lines of a snippet that print the tangents of a call."""
        return ("print({call})",)

    def batch_lines(self, in_dims: Sequence[str], out_dims: int) -> tuple[str, ...]:
        """Return the lines of a snippet that call the operator under vmap, levels outermost first."""
        return ("print({call})",)

    def setup_source(self, record: OpOverload) -> str:
        """Return ``file:line`` of what fills the context of the backward."""
        rule = record.rule("autograd")
        setup = getattr(rule, "setup_context", None)
        return source_of(setup) if setup is not None else record.source

    def array_code(self, name: str, array: Any) -> str:
        """Return ``code`` for a certain array, with what its layout needs."""
        return self.code(name)

    def layout_code(self, name: str) -> str:
        """Return an expression for the shape and the strides of an array in a snippet."""
        return f"{name}.shape, {name}.strides"

    def copy_code(self, name: str) -> str:
        """Return an expression for a contiguous copy of an array in a snippet."""
        return f"{name}.copy()"

    def supports(self, record: OpOverload, kind: str) -> Unsupported | None:
        """Return why a law of this kind cannot be looked at here, or None where it can."""
        if kind == "compile" and not record.schema.returns:
            return None  # nothing is returned, so no fake is asked
        return missing_rule(record, "fake" if kind == "compile" else kind)

    def error_class(self) -> type[OpCheckError]:
        """Return the class of the checker's exceptions."""
        return OpCheckError


def installed(name: str) -> bool:
    """Return whether a framework, what lowers into it, and its adapter are there. Imports none of them."""
    info = catalogue.get(name)
    modules = (info.package, info.module, _module(name))
    return all(importlib.util.find_spec(module) is not None for module in modules)


def adapter(name: str) -> Adapter:
    """Return the adapter of a framework.

    Raises
    ------
    RegistrationValueError
        If there is no such framework, or it is not installed, or has no adapter.
    """
    info = catalogue.get(name)
    if importlib.util.find_spec(info.package) is None:
        raise RegistrationValueError(layout(f"framework {name} is not installed", fix=info.install))
    if not installed(name):
        ready = ", ".join(info.name for info in catalogue.frameworks() if installed(info.name))
        raise RegistrationValueError(layout(f"the checker cannot use {name} yet", expected=f"one of {ready}"))
    found: Adapter = importlib.import_module(_module(name)).ADAPTER
    return found


def gpu_adapters(used: Adapter) -> Sequence[Adapter] | Unsupported:
    """Return how a framework's arrays on each GPU are used, or why they are not."""
    module = f"{_module(used.name)}_device"
    if importlib.util.find_spec(module) is None:
        return Unsupported("GPUs are looked at with torch's arrays")
    found: Sequence[Adapter] | Unsupported = importlib.import_module(module).devices()
    return found


def _module(name: str) -> str:
    return f"opwright.checks.adapters.{name}"


def operator_of(record: OpOverload) -> Any:
    """Return what is called: the operator, or its owner's own overload object."""
    return record.operator if record.operator is not None else load(record.owner).native(record)


def outputs_of(record: OpOverload, out: Any) -> list[Any]:
    """Return one entry for each return of a call."""
    schema = record.schema
    if not schema.returns:
        return []
    return [out] if len(schema.returns) == 1 and not schema.is_tuple else list(out)


def call_arguments(record: OpOverload, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of values in schema order."""
    count = len(record.schema.positional)
    names = [argument.name for argument in record.schema.keyword_only]
    return tuple(values[:count]), dict(zip(names, values[count:], strict=True))


MISSING: Mapping[str, str] = MappingProxyType(
    {
        "autograd": "no autograd formula is registered, so differentiating raises",
        "jvp": "no jvp rule is registered, so tangents come from the backward",
        "vmap": "no vmap rule is registered, so the operator is called in a loop",
    }
)
"""What a missing rule leads to, by kind."""


def missing_rule(record: OpOverload, kind: str) -> Unsupported | None:
    """Return why there is nothing to look at without a rule, or None where there is one."""
    if record.rule(kind) is not None:
        return None
    if record.owner:
        return None if kind == "fake" else Unsupported(f"{record.owner} has the rules of its own operators")
    if kind == "fake":
        return None if {"inplace", "out"} & set(record.tags) else Unsupported("no fake is registered")
    if kind == "jvp" and record.rule("autograd") is None:
        return Unsupported("no jvp rule is registered, and no backward that tangents could come from")
    return Unsupported(MISSING[kind])


def mutated(record: OpOverload, values: Sequence[Any]) -> dict[str, Any]:
    """Return the mutated arguments by name."""
    pairs = zip(record.schema.arguments, values, strict=True)
    return {argument.name: value for argument, value in pairs if argument.is_write}
