"""The fake rule under torch: it runs on FakeTensors and on meta tensors.

* Where no rule is given: a kernel for ``Meta``, or what the schema alone says (nothing returned, or the
  arguments that the ``inplace`` and ``out`` tags name), or the kernel for every device itself, or an error.
  What a decorator defined has a fake of its own or none, as in torch: its body may be opaque.
* A NumPy kernel's results are C-contiguous, so those of its fake are made so too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from opwright.errors import ContextError, MissingRuleError, OutputError, UnsupportedError, layout
from opwright.fake_context import FakeContextBase, check_bounds, entered_ctx
from opwright.faking import computing_of
from opwright.frameworks.torch import fingerprint, private
from opwright.frameworks.torch.convert import to_torch
from opwright.frameworks.torch.lowered import Lowered, tensors_in
from opwright.keys import DEFAULT
from opwright.outputs import may_be_undefined, same_objects

if TYPE_CHECKING:
    from opwright.overload import Kernel, OpOverload
    from opwright.rules.base import Rule

Run = Callable[[tuple[Any, ...]], Any]


def make_kernel(state: Lowered) -> Callable[..., Any]:
    """Return the function that torch calls with FakeTensors or meta tensors."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        fingerprint.publish()  # what is traced is looked up in torch's caches, in this thread
        run: Run = state.cache.get("fake") or state.derive("fake", lambda: make_runner(state))
        flat = state.flat(args, kwargs)
        out = run(flat)
        if any(_is_plain(tensor, meta=True) for value in flat for tensor in tensors_in(value)):
            _refuse_data(state, flat, out)
        return out

    fake.__name__ = fake.__qualname__ = f"fake of {state.record.qualname}"
    return fake


def _is_plain(tensor: torch.Tensor, *, meta: bool) -> bool:
    """Return whether a tensor is one of torch's own class, with or without data."""
    return tensor.__class__ in (torch.Tensor, torch.nn.Parameter) and tensor.is_meta is meta


def _refuse_data(state: Lowered, flat: tuple[Any, ...], out: Any) -> None:
    """Raise where a call with meta tensors would leave what has data without a value: no kernel runs."""
    given = [tensor for value in flat for tensor in tensors_in(value)]
    if all(tensor.is_meta for tensor in given):
        return
    made = out if out.__class__ in (list, tuple) else (out,)
    made = [*made, *(flat[index] for index in state.mutated)]
    if any(_is_plain(tensor, meta=False) for value in made for tensor in tensors_in(value)):
        raise UnsupportedError(
            layout(
                f"{state.record.qualname} was called with tensors on "
                f"{' and '.join(dict.fromkeys(str(tensor.device) for tensor in given))}",
                expected="tensors on meta alone, or none there: meta tensors have no data to compute with",
                registered=state.record.source,
                fix="move them to one device",
            )
        )


def make_runner(state: Lowered) -> Run:
    """Return the function that makes outputs without data from one value for each argument."""
    record = state.record
    rule = record.rule("fake")
    if rule is not None:
        return _rule_runner(state, rule)
    kernel = record.kernel("Meta")
    if kernel is not None and kernel.enabled:
        return lambda flat: state.apply(kernel.fn, tuple(state.authors(flat)))
    returned = [name for _, name in same_objects(record)]
    if record.schema.mutated and len(returned) == len(record.schema.returns):
        return _own_runner(state, returned)
    explicit = record.select_kernel("torch", "")
    if explicit is not None and not record.decorated and _takes_meta(explicit):
        return _kernel_runner(state, explicit)
    raise _missing(state)


def _takes_meta(kernel: Kernel) -> bool:
    """Return whether a kernel for every device is for meta tensors too, as in torch."""
    return kernel.key == DEFAULT and kernel.flavour in ("torch", "array_api") and not kernel.with_keyset


def _kernel_runner(state: Lowered, kernel: Kernel) -> Run:
    """Return the fake of an operator whose kernel for every device runs on tensors without data."""
    fn = kernel.fn

    def run(flat: tuple[Any, ...]) -> Any:
        out = state.apply(fn, tuple(state.authors(flat)))
        if contiguous_outputs(state, flat):
            return tuple(map(_contiguous, out)) if out.__class__ is tuple else _contiguous(out)
        return out

    return run


def _own_runner(state: Lowered, returned: list[str]) -> Run:
    """Return the fake of an operator that returns nothing but its mutated arguments."""
    names = [argument.name for argument in state.record.schema.arguments]
    positions = [names.index(name) for name in returned]
    single = len(positions) == 1 and not state.record.schema.is_tuple

    def run(flat: tuple[Any, ...]) -> Any:
        if not positions:
            return None
        return flat[positions[0]] if single else tuple(flat[i] for i in positions)

    return run


class _MissingFakeError(MissingRuleError, private.no_profile or MissingRuleError):  # type: ignore[misc]
    """There is no fake; where torch has real tensors too it catches this, and infers one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingRuleError, self.args


def _missing(state: Lowered) -> MissingRuleError:
    record = state.record
    return _MissingFakeError(
        layout(
            f"{record.qualname} was called with fake inputs and no fake impl is registered for it",
            expected="a function from the metadata of its inputs to that of its outputs; torch.compile, "
            "torch.export and meta tensors need it",
            registered=record.source,
            fix=f"add one: @opwright.register_fake({record.qualname!r})",
        )
    )


def _rule_runner(state: Lowered, rule: Rule) -> Run:
    record = state.record
    if rule.flavour not in ("torch", "array_api"):
        raise UnsupportedError(
            layout(
                f"the fake of {record.qualname} has flavour {rule.flavour} and cannot run on fake tensors of "
                "torch",
                expected="a fake of flavour array_api or torch",
                registered=rule.source,
                fix="write it with opwright.empty_like and x.new_empty, without annotations of one framework",
            )
        )
    returns = record.schema.returns
    single = len(returns) == 1 and not record.schema.is_tuple

    undefined = may_be_undefined(record)
    context = _Context(record)

    def run(flat: tuple[Any, ...]) -> Any:
        with entered_ctx(context, computing_of(record, "torch", _device_type(flat))):
            out = state.apply(rule.fn, tuple(state.authors(flat)))
        outs = (out,) if single else out
        if not returns:
            outs = () if out is None else (out,)
        if not isinstance(outs, list | tuple) or len(outs) != len(returns):
            raise _bad_fake(state, rule, out)
        for entry, value in zip(returns, outs, strict=True):
            if getattr(entry.type.leaf(), "name", "") == "Tensor" and not _is_like(
                entry.type, value, undefined
            ):
                raise _bad_fake(state, rule, out)
        if returns and contiguous_outputs(state, flat):
            outs = tuple(_contiguous(value) for value in outs)
        if not returns:
            return None
        return outs[0] if single else tuple(outs)

    return run


@final
class _Context(FakeContextBase):
    """What ``get_ctx()`` returns in a fake that torch runs."""

    def __init__(self, record: OpOverload) -> None:
        self._record = record

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:  # noqa: A002  (torch's names)
        """Return a size that depends on data, as a ``SymInt``.

        Raises
        ------
        ValueError
            If a bound is symbolic, ``min`` is negative, or ``max`` is below ``min``.
        ContextError
            If the fake runs on meta tensors, which have no such sizes.
        """
        check_bounds(min, max)
        try:
            context: Any = torch.library.get_ctx()
        except RuntimeError:
            context = None
        if context is None:
            rule = self._record.rule("fake")
            raise ContextError(
                layout(
                    f"{self._record.qualname} has outputs with data-dependent shape and was called with meta "
                    "tensors, whose sizes must be known",
                    expected="FakeTensors, in torch.compile, torch.export or FakeTensorMode",
                    registered=rule.source if rule is not None else self._record.source,
                )
            )
        return context.new_dynamic_size(min=min, max=max)

    def empty(self, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
        """Return an output of an operator without array arguments."""
        return torch.empty(
            shape,
            dtype=None if dtype is None else to_torch("ScalarType", dtype),
            device=None if device is None else to_torch("Device", device),
        )


def _is_like(type_: Any, value: Any, undefined: bool) -> bool:
    text = str(type_)
    if value is None:
        return text.endswith("?") or (undefined and "[" not in text)
    if "[" in text:
        return isinstance(value, list | tuple)
    return isinstance(value, torch.Tensor)


def _bad_fake(state: Lowered, rule: Rule, out: Any) -> OutputError:
    got = type(out).__name__
    if isinstance(out, list | tuple):
        got += f" of {len(out)} ({', '.join(type(one).__name__ for one in out)})"
    return OutputError(
        layout(
            f"the fake of {state.record.qualname} returned something else than its schema says",
            expected=str(state.record.schema),
            got=got,
            registered=rule.source,
        )
    )


def contiguous_outputs(state: Lowered, flat: tuple[Any, ...]) -> bool:
    """Return whether the kernel that would run on such inputs is one of NumPy."""
    if not any(kernel.flavour == "numpy" for kernel in state.record.kernels):
        return False
    kernel: Kernel | None = state.record.select_kernel("torch", _device_type(flat))
    return kernel is not None and kernel.flavour == "numpy"


def _device_type(flat: tuple[Any, ...]) -> str:
    """Return the device type that decides which kernel runs on such inputs."""
    kinds = {tensor.device.type for value in flat for tensor in tensors_in(value)} - {"meta"}
    return min(kinds, default="cpu")


def _contiguous(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return [_contiguous(one) for one in value] if value.__class__ in (list, tuple) else value
