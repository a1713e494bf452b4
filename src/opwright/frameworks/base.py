"""What a framework is to the engine: the protocol, and the loaded ones.

To add a framework: a ``FrameworkInfo`` in the catalogue, or in the entry point group
``opwright.frameworks``, whose module holds ``FRAMEWORK``, an instance of a final subclass of
``Framework``. The engine is not touched.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from opwright import catalogue, registry
from opwright.errors import NoKernelError, RegistrationError, UnsupportedError, layout
from opwright.keys import device_of
from opwright.programs import NotAProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.overload import OpOverload
    from opwright.programs import Program
    from opwright.rules.base import Rule
    from opwright.schema import Argument

RULE_KINDS = ("fake", "autograd", "jvp", "vmap", "autocast", "torch_dispatch", "functionalization")
"""The kinds of rule that every framework lowers or declares unsupported with a reason."""


READ_ONLY = "read-only"
"""What is said of an array that nobody may write to."""


class Exported:
    """An array on its way to a reader on the same stream, by DLPack: taken once, and nobody waits.

    Parameters
    ----------
    capsule
        DLPack's.
    device
        DLPack's device type, and the number of the device.
    """

    __slots__ = ("capsule", "device")

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule = capsule
        self.device = device

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Launching:
    """How the arrays of one framework reach a launcher of kernels, such as Triton's.

    Parameters
    ----------
    address, dtype, device
        Source expressions of an array called ``{}``: its address, its dtype, the index of its GPU (for
        arrays elsewhere, anything that is no index of one).
    is_plain
        ``is_plain(cls)``: whether arrays of exactly this class hold data that a kernel can be launched on.
    current_device
        Returns the index of the current GPU.
    current_stream
        ``current_stream(device)`` returns the raw handle of the stream that work on a GPU is queued on.
    launch
        ``launch(launcher, grid, args, kwargs)`` traces a launch, or makes it in the launcher's own way with
        the arrays' device and stream current.
    busy
        Returns whether launches may be traced rather than made; None where they never are.
    only_device
        The index of the GPU where there is one alone.
    """

    def __init__(
        self,
        *,
        address: str,
        dtype: str,
        device: str,
        is_plain: Callable[[type], bool],
        current_device: Callable[[], int],
        current_stream: Callable[[int], int],
        launch: Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], Any],
        busy: Callable[[], Any] | None = None,
        only_device: int | None = None,
    ) -> None:
        self.address = address
        self.dtype = dtype
        self.device = device
        self.is_plain = is_plain
        self.current_device = current_device
        self.current_stream = current_stream
        self.launch = launch
        self.busy = busy
        self.only_device = only_device


class Framework(ABC):
    """Recognises a library's arrays and lowers overloads into that library's own mechanism.

    ``lowered`` has a line on how each kind of rule is lowered, ``unsupported`` a reason for each that is
    not; together they cover ``RULE_KINDS``. ``immutable`` says that its arrays never change.
    """

    name: ClassVar[str]
    flavour: ClassVar[str]
    lowered: ClassVar[Mapping[str, str]] = MappingProxyType({})
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType({})
    immutable: ClassVar[bool] = False

    @abstractmethod
    def device_type(self, array: Any) -> str:
        """Return the device type that an array is on, in torch's words."""

    @abstractmethod
    def specialise(self, record: OpOverload, values: Sequence[Any]) -> Callable[..., Any]:
        """Return the callable for calls whose first array has the class of the one in ``values``.

        ``values`` holds every argument in schema order, defaults filled in. The callable takes them by
        position, checks what the class of the first array does not tell, and never trusts ``values``.
        It raises ``NoKernelError`` where no kernel can take such arrays.
        """

    @abstractmethod
    def to_numpy(self, array: Any) -> Any:
        """Return a NumPy array of the same memory where it is on the CPU, else a copy."""

    @abstractmethod
    def from_numpy(self, array: Any) -> Any:
        """Return an array of this framework of a NumPy array, of the same memory where possible."""

    def from_host(self, array: Any, like: Any) -> Any:
        """Return an array of this framework with a copy of a NumPy array, on the device of ``like``."""
        return self.from_numpy(array)

    @abstractmethod
    def from_dlpack(self, array: Any) -> Any:
        """Return an array of this framework of any array that exports DLPack, of the same memory."""

    def exported(self, array: Any) -> Any:
        """Return what ``from_dlpack`` of a framework takes that queues its work on the array's own stream.

        By default the array, whose own export may tell the reader to wait.
        """
        return array

    def not_lent(self, array: Any) -> str | None:
        """Return why no kernel of another flavour may write to an array's memory; None where one may."""
        return READ_ONLY if self.immutable else None

    def writes(self, array: Any) -> int | None:
        """Return a number that every write to an array changes; None where writes are not counted."""
        return None

    def started(self) -> None:
        """Hear that the framework is loaded: look at what was registered before; called at least once."""

    def attach(self, record: OpOverload) -> None:
        """Define the overload in the framework's own machinery; called once, before the first call."""

    def trace_again(self) -> None:
        """Make the framework's tracer begin again: it has met an operator that was attached only then."""

    def never_traced(self, function: Any) -> None:
        """Keep the framework's tracer out of a function where Python code that it runs calls that."""

    def changed(self, event: str, record: OpOverload, item: Any) -> None:
        """Hear of a change to a record: ``undefine``, ``add``, ``remove`` or ``enable``."""

    def lookup(self, target: Any) -> OpOverload | None:
        """Return the record of an operator in the framework's own dispatcher, by name or object, or None."""
        return None

    def native(self, record: OpOverload) -> Any:
        """Return the framework's own object for an overload."""
        raise UnsupportedError(layout(f"{self.name} has no operator object for {record.qualname}"))

    def routes(self, record: OpOverload) -> dict[str, str]:
        """Return how a kernel gets this framework's arrays, and which one it is, for each device type.

        For people to read: ``opwright show`` prints it.
        """
        found: dict[str, str] = {}
        named = [device_of(kernel.key) for kernel in record.enabled_kernels()]
        everywhere = ("cpu", "cuda", *(device for device in named if device not in (None, "meta")))
        for device_type in dict.fromkeys(catalogue.get(self.name).device_types or everywhere):
            kernel = record.select_kernel(self.flavour, str(device_type))
            if kernel is not None:
                own = kernel.flavour in (self.flavour, catalogue.ARRAY_API)
                how = "called directly" if own else "called on the same memory"
                if kernel.copies and kernel.flavour not in catalogue.sharing(str(device_type)):
                    how = "copied to the host and back"
                found[str(device_type)] = f"{how} ({kernel.flavour}, {kernel.source})"
        return found

    def get_kernel(self, record: OpOverload, key: str) -> Any:
        """Return the kernel in force at a key for an operator in the framework's own dispatcher."""
        raise UnsupportedError(layout(f"{self.name} has no kernels of its own for {record.qualname}"))

    def held_at(self, record: OpOverload, slot: str) -> str | None:
        """Return where the framework's dispatcher got what it holds at a dispatch key or ``"fake"``, or None.

        Asked for operators in the framework's own dispatcher, where a registration may not cover another.
        """
        return None

    def fallback_changed(self, namespace: str, key: str) -> None:
        """Hear that another fallback is in force for a namespace (``_`` for all) and dispatch key."""

    def convert(self, kind: str, value: Any) -> Any:
        """Return this framework's own object for a dtype (``ScalarType``) or device (``Device``)."""
        return value

    def accepts(self, array: Any) -> bool:
        """Return whether operators take an array: they would lose what a subclass adds."""
        return True

    def cast(self, array: Any, dtype: str) -> Any:
        """Return a floating array as another dtype (its standard name), any other as it is: autocast."""
        raise UnsupportedError(layout(f"opwright.autocast does not act on arrays of {self.name}"))

    def run_fake(self, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a fake of this framework's flavour on what it computes shapes with.

        ``args`` and ``kwargs`` hold a `FakeArray` for each array. What is returned has, for each array,
        anything with a ``shape`` and a ``dtype`` and without data.
        """
        raise UnsupportedError(
            layout(
                f"a fake of flavour {rule.flavour} cannot run on arrays of another framework",
                registered=rule.source,
                fix="write it with opwright.empty_like and opwright.empty, for any framework",
            )
        )

    def stream_of(self, array: Any) -> tuple[int, int] | None:
        """Return the GPU of an array and the raw handle of the stream that its work is queued on.

        None where it is on no GPU or the framework does not say.
        """
        return None

    def on_stream(self, device: int | None, stream: int) -> AbstractContextManager[Any]:
        """Return a context in which this framework queues work on a stream of another.

        ``device`` is the index of its GPU, by default the current one; ``stream`` its raw handle.
        """
        return nullcontext()

    def record_launches(
        self,
        function: Callable[[Sequence[Any]], Sequence[Any]],
        inputs: Sequence[tuple[Any, str]],
        device: str,
    ) -> Program:
        """Return what a function of arrays allocates, copies and launches, for a compiler to hold.

        Parameters
        ----------
        function
            Takes a list of arrays and returns a sequence of them.
        inputs
            Shape and standard dtype name of each array.
        device
            The device that they are on.

        Raises
        ------
        NotAProgram
            If it does anything else, or this framework cannot tell.
        """
        raise NotAProgram(f"{self.name} records no launches")

    def launching(self) -> Launching:
        """Return how this framework's arrays reach a launcher of kernels, such as Triton's."""
        raise UnsupportedError(
            layout(
                f"Triton kernels cannot be launched on arrays of {self.name}",
                expected="arrays of torch or cupy on a GPU",
                fix="register another kernel for these arrays, or annotate the operator with torch.Tensor",
            )
        )


_loaded: dict[str, Framework] = {}


def loaded() -> list[Framework]:
    """Return the frameworks whose module of ours is loaded."""
    return list(_loaded.values())


def load(name: str) -> Framework:
    """Return a framework, its module imported on first use.

    Raises
    ------
    RegistrationError
        If the framework's package is not installed; the message has the line that installs it.
    """
    framework = _loaded.get(name)
    if framework is None:
        info = catalogue.get(name)
        try:
            module = importlib.import_module(info.module)
        except ModuleNotFoundError as error:
            if error.name != info.package:
                raise
            raise RegistrationError(
                layout(f"framework {name} needs the package {info.package}", fix=info.install)
            ) from error
        framework = _loaded.setdefault(name, module.FRAMEWORK)
        framework.started()
    return framework


def of_flavour(flavour: str) -> Framework:
    """Return the framework that a flavour belongs to."""
    if flavour == catalogue.DLPACK:
        without_arrays: Framework = importlib.import_module("opwright.frameworks.dlpack").FRAMEWORK
        return without_arrays
    for info in catalogue.frameworks():
        if flavour in info.flavours:
            return load(info.name)
    return load(flavour)


def run_elsewhere(record: OpOverload, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a fake in the framework of its flavour, with dtypes as that has them."""
    framework = of_flavour(rule.flavour)

    def own(argument: Argument, value: Any) -> Any:
        if argument.base != "ScalarType" or value is None:
            return value
        if isinstance(value, list | tuple):
            return type(value)(own(argument, one) for one in value)
        return framework.convert("ScalarType", value)

    schema = record.schema
    given = [own(argument, value) for argument, value in zip(schema.positional, args, strict=True)]
    named = {argument.name: own(argument, kwargs[argument.name]) for argument in schema.keyword_only}
    return framework.run_fake(rule, given, named)


def no_kernel(record: OpOverload, framework: Framework, device_type: str) -> NoKernelError:
    """Return the error for a call that no kernel can take."""
    return NoKernelError(
        layout(
            f"{record.qualname} has no kernel for {framework.name} arrays on {device_type}",
            expected=f"kernels for {record.kernels_text()}",
            got=f"{framework.name} arrays on {device_type}",
            registered=record.source,
            fix=f"register one: @opwright.register_kernel({record.qualname!r}, {device_type!r})",
        )
    )


def ensure_attached(framework: Framework, record: OpOverload) -> None:
    """Attach a record to a framework unless it is."""
    with registry.lock:
        if framework.name in record.lowered:
            return
        registry.require_live(record)
        record.lowered[framework.name] = None
        try:
            framework.attach(record)
        except BaseException:
            record.lowered.pop(framework.name, None)
            raise
