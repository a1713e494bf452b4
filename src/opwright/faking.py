"""Running a fake rule: metadata in, metadata out, what it returns compared with the schema.

* An ``array_api`` fake gets `FakeArray`; one of another flavour runs in its own framework, which says how.
* Operators with the ``inplace`` or ``out`` tag have a fake by themselves, as they return an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwright import catalogue
from opwright.catalogue import ARRAY_API
from opwright.errors import MissingRuleError, OutputError, layout
from opwright.fakes import FakeArray, FakeContext, entered_ctx, fake_of
from opwright.schema import FunctionSchema, ListType, OptionalType, Type
from opwright.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule


def run_fake(
    record: OpOverload,
    values: Sequence[Any],
    *,
    ctx: Any = None,
    elsewhere: Callable[[OpOverload, Rule, Sequence[Any], dict[str, Any]], Any] | None = None,
    computing: str | None = None,
) -> Any:
    """Return what an operator's fake returns for these arguments, compared with the schema.

    Parameters
    ----------
    record
        The operator's record.
    values
        Every argument in schema order, defaults filled in; arrays may be fakes or real ones, of which the
        metadata is taken.
    ctx
        What ``get_ctx()`` returns in the fake; by default a `FakeContext`.
    elsewhere
        ``elsewhere(record, rule, args, kwargs)`` runs a fake of another flavour than ``array_api`` on fakes.
    computing
        The framework that the kernel computes with; by default by the arrays that the fakes stand for.

    Returns
    -------
    object
        The outputs, with a `FakeArray` for each array.

    Raises
    ------
    MissingRuleError
        If the operator has no fake.
    OutputError
        If the fake returns something else than the schema says.
    """
    schema = record.schema
    pairs = zip(schema.arguments, values, strict=True)
    fakes = schema.with_tuples([_faked(v) if argument.has_tensors else v for argument, v in pairs])
    rule = record.rule("fake")
    if rule is None:
        return _own_fake(record, fakes)
    count = len(schema.positional)
    keywords = dict(zip((a.name for a in schema.keyword_only), fakes[count:], strict=True))
    arrays = list(_arrays(fakes))
    framework = next((one.framework for one in arrays if one.framework not in ("", "numpy")), "")
    if computing is None:
        device = arrays[0].device.partition(":")[0] if arrays else "cpu"
        computing = computing_of(record, framework or "numpy", device)
    with entered_ctx(FakeContext() if ctx is None else ctx, computing):
        if rule.flavour == ARRAY_API or elsewhere is None:
            out = rule.fn(*fakes[:count], **keywords)
        else:
            out = elsewhere(record, rule, fakes[:count], keywords)
    return checked(record, rule, out, framework)


def computing_of(record: OpOverload, framework: str, device_type: str) -> str:
    """Return the framework that the kernel computes with that a framework's arrays on a device get."""
    own = catalogue.get(framework).flavours
    kernel = record.select_kernel(own[0] if own else framework, device_type)
    flavour = ARRAY_API if kernel is None else kernel.flavour
    return next((info.name for info in catalogue.frameworks() if flavour in info.flavours), framework)


def _arrays(values: Any) -> Iterator[FakeArray]:
    for value in values:
        if isinstance(value, FakeArray):
            yield value
        elif isinstance(value, list | tuple):
            yield from _arrays(value)


def _faked(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_faked(one) for one in value]
    return None if value is None else fake_of(value)


def _own_fake(record: OpOverload, fakes: Sequence[Any]) -> Any:
    """Return the arguments that a tagged operator returns, or raise where it has no fake."""
    if {"inplace", "out"} & set(record.tags):
        pairs = zip(record.schema.arguments, fakes, strict=True)
        outs = [fake for argument, fake in pairs if argument.is_write]
        return outs[0] if len(outs) == 1 else tuple(outs)
    raise MissingRuleError(
        layout(
            f"no fake impl is registered for {record.qualname}: the shapes of its outputs are not known",
            registered=record.source,
            fix=f"register one: @opwright.register_fake({record.qualname!r})",
        )
    )


def checked(record: OpOverload, rule: Rule, out: Any, framework: str = "") -> Any:
    """Return what a fake returned, with a `FakeArray` for each array, or raise where it is not right."""
    schema = record.schema
    if not schema.returns:
        if out is not None:
            raise _wrong(schema, rule, "None", out)
        return None
    if len(schema.returns) == 1 and not schema.is_tuple:
        return _one(schema, rule, schema.returns[0].type, (0, framework), out)
    if not isinstance(out, list | tuple) or len(out) != len(schema.returns):
        raise _wrong(schema, rule, f"a tuple of {len(schema.returns)}", out)
    pairs = enumerate(zip(schema.returns, out, strict=True))
    return tuple(_one(schema, rule, entry.type, (index, framework), value) for index, (entry, value) in pairs)


def _one(schema: FunctionSchema, rule: Rule, type_: Type, at: tuple[int, str], value: Any) -> Any:
    index, framework = at
    if isinstance(type_, OptionalType):
        return None if value is None else _one(schema, rule, type_.element, at, value)
    if isinstance(type_, ListType):
        if not isinstance(value, list | tuple):
            raise _wrong(schema, rule, f"a list as output {index}", value)
        return [_one(schema, rule, type_.element, at, one) for one in value]
    if not str(type_).startswith("Tensor"):
        if value is None or isinstance(value, FakeArray):
            raise _wrong(schema, rule, f"{type_} as output {index}", value)
        return value
    if isinstance(value, FakeArray):
        return value if value.framework or not framework else _standing_for(value, framework)
    if hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "__array__"):
        # another library's array without data
        return FakeArray(tuple(value.shape), value.dtype, framework=framework)
    raise _wrong(schema, rule, f"an array without data as output {index}", value)


def _standing_for(fake: FakeArray, framework: str) -> FakeArray:
    return FakeArray(fake.shape, fake.dtype, fake.device, framework=framework)


def _wrong(schema: FunctionSchema, rule: Rule, expected: str, out: Any) -> OutputError:
    got = type(out).__name__
    if isinstance(out, list | tuple):
        got += f" of {len(out)} ({', '.join(type(one).__name__ for one in out)})"
    elif isinstance(out, Size):
        got = f"the size {out}"
    return OutputError(
        layout(
            f"the fake of {schema.qualname} returned something else than its schema says",
            expected=f"{expected}: {schema}",
            got=got,
            registered=rule.source,
            fix="return opwright.empty_like(x) or x.new_empty(shape, dtype=...) for each output",
        )
    )
