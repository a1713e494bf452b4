"""``custom_op``: an annotated function becomes an operator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from opwright import catalogue, registry
from opwright.alias_sets import with_named_sets
from opwright.errors import RegistrationTypeError, SchemaError, layout
from opwright.infer import infer_function_schema, mutated_names
from opwright.library import Library
from opwright.operator import commit_definition
from opwright.overload import Kernel, OpOverload
from opwright.own_defaults import with_own_defaults
from opwright.parse import parse_schema
from opwright.placement import check_lives_on, require_device
from opwright.qualname import parse_qualname, require_definable
from opwright.rules.base import names, require_signature
from opwright.source import source_of
from opwright.tags import check_tags, tag_names
from opwright.targets import (
    annotated_flavour_of,
    compiled_kernel,
    device_keys,
    known_flavour,
    require_callable,
    require_text,
)
from opwright.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opwright.operator import Operator
    from opwright.rules.base import Rule
    from opwright.schema import FunctionSchema

P = ParamSpec("P")
R = TypeVar("R")


@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Callable[[Callable[P, R]], Operator[P, R]]: ...
@overload
def custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Operator[P, R]: ...
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: Any = None,
    flavour: str | None = None,
    non_differentiable: bool = False,
) -> Any:
    """Make an operator of a function.

    Parameters
    ----------
    name
        ``"ns::name"``, or ``"ns::name.overload"``. Defining a name again replaces the operator; handles of
        the old one then say that they are stale.
    fn
        The function, its parameters and return annotated; left out, this is a decorator.
    mutates_args
        Names of the arguments that the function writes to, or ``"unknown"`` for every array.
    device_types
        Device types that the function is for; ``None`` for every one.
    schema
        The schema from its opening parenthesis, instead of one inferred from the annotations.
    tags
        One tag or several, of Opwright, of torch, or by name.
    flavour
        The arrays that the body takes, where the annotations do not say.
    non_differentiable
        Declares that no output has a gradient.

    Returns
    -------
    Operator
        Callable as the function is, with arrays of any framework.

    Raises
    ------
    ValueError
        If the name, an annotation, the schema, a tag or ``mutates_args`` is not valid.

    Examples
    --------
    >>> import numpy as np
    >>> import opwright as ow
    >>> @ow.custom_op("docs::half", mutates_args=())
    ... def half(x: np.ndarray) -> np.ndarray:
    ...     return x / 2
    >>> half(np.ones(2))
    array([0.5, 0.5])
    """
    parse_qualname(name)

    def define(fn: Callable[..., Any]) -> Operator[..., Any]:
        return define_operator(
            "custom_op",
            name,
            fn,
            mutates_args=mutates_args,
            device_types=device_types,
            schema=schema,
            tags=tags,
            flavour=flavour,
            non_differentiable=non_differentiable,
        )

    return define if fn is None else define(fn)


def define_operator(
    decorator: str,
    name: str,
    fn: Any,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None,
    schema: str | None,
    tags: Any,
    flavour: str | None,
    non_differentiable: bool,
    describe: Callable[[FunctionSchema, str], tuple[Rule, ...]] | None = None,
) -> Operator[..., Any]:
    """Define the operator of a decorated function; ``describe(schema, flavour)`` gives its first rules."""
    if not callable(fn):
        raise RegistrationTypeError(layout(f"{decorator}({name!r}) decorates a function", got=repr(fn)))
    namespace, base, which = parse_qualname(name)  # which is empty for "default" too
    require_definable(namespace, base, which)
    name = f"{namespace}::{base}{'.' + which if which else ''}"
    parsed, inferred = _schema_of(name, fn, mutates_args, schema, tags)
    body, own = compiled_kernel(fn, parsed)
    body = body if schema is None else with_own_defaults(body, parsed)
    chosen = known_flavour(flavour) if flavour is not None else inferred or own or catalogue.ARRAY_API
    keys = device_keys(device_types)
    source = source_of(fn)
    require_device(parsed, keys, source)
    for key in keys:
        check_lives_on(f"kernel of {parsed.qualname} for {key}", chosen, key, source)
    record = commit_definition(
        parsed,
        flavour=chosen,
        source=source,
        module=getattr(fn, "__module__", None) or "__main__",
        tags=tuple(sorted(tag_names(tags) | {"pt2_compliant_tag"})),
        fn=fn,
        kernels=tuple(Kernel(body, key, chosen, source) for key in keys),
        rules=() if describe is None else describe(parsed, chosen),
        non_differentiable=non_differentiable,
        replace_=True,
    )
    operator: Operator[..., Any] = record.operator
    operator._library = partial(_library_of, record, [])  # noqa: SLF001  (what its ``_lib`` gives)
    return operator


def _library_of(record: OpOverload, kept: list[Library]) -> Library:
    """Return the Library that owns an operator's definition, made when it is first asked for."""
    with registry.lock:
        if not kept:
            kept.append(Library(record.name.partition("::")[0], "FRAGMENT"))
            kept[0].own_record(record)
            record.operator._library = partial(_library_of, record, kept)  # noqa: SLF001  (kept alive here)
        return kept[0]


def _schema_of(
    name: str, fn: Callable[..., Any], mutates_args: str | Iterable[str], schema: str | None, tags: Any
) -> tuple[FunctionSchema, str | None]:
    """Return the validated schema, and the flavour that annotations name."""
    if schema is None:
        inferred = infer_function_schema(fn, mutates_args=mutates_args, op_name=name, tags=tags)
        validate(inferred.schema)
        return inferred.schema, inferred.flavour
    require_text(f"{name}: schema=", schema)
    if not schema.lstrip().startswith("("):
        raise SchemaError(layout(f"{name}: schema= must start with a parenthesis", got=repr(schema)))
    parsed = parse_schema(name + schema.strip())
    validate(parsed)
    parsed = with_named_sets(parsed)
    _check_mutated(parsed, mutates_args)
    check_tags(parsed, tags or (), label=name)
    positional, keyword_only = names(parsed)
    require_callable(f"kernel of {parsed.qualname}", fn)
    require_signature(f"kernel of {parsed.qualname}", fn, positional, keyword_only)
    return parsed, annotated_flavour_of(fn)


def _check_mutated(schema: FunctionSchema, mutates_args: str | Iterable[str]) -> None:
    """Raise where ``mutates_args`` and the schema's alias annotations name other arguments."""
    names = mutated_names(mutates_args)
    if names is None:
        return
    given, declared = set(names), {argument.name for argument in schema.mutated}
    if given != declared:
        raise SchemaError(
            layout(
                f"{schema.qualname}: mutates_args and the schema name other arguments as mutated",
                expected=f"{', '.join(sorted(declared)) or 'none'} (the schema's alias annotations)",
                got=", ".join(sorted(given)) or "none",
                fix="make them agree",
            )
        )
