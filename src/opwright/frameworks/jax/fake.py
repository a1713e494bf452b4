"""Abstract evaluation: the fake rule's outputs, else those of a traced kernel.

* Dtypes are canonical: a fake that says float64 means float32 while x64 is off, as for every JAX function.
* Symbolic dimensions of ``jax.export`` go through as they are. A size that depends on data is refused: JAX
  has no such shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, final

import jax

from opwright.errors import MissingRuleError, UnsupportedError, layout
from opwright.fake_context import FakeContextBase
from opwright.fakes import FakeArray
from opwright.faking import computing_of, run_fake
from opwright.frameworks.base import run_elsewhere
from opwright.frameworks.jax.arguments import Template, fill, flatten_outputs
from opwright.frameworks.jax.avals import canonical, shaped
from opwright.frameworks.jax.primitive import default_device_type
from opwright.rules.autograd import new_values, returned_mutations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opwright.overload import OpOverload
    from opwright.rules.base import Rule

    Structure = tuple[Any, ...]
    Traced = Callable[[Sequence[Any]], tuple[list[Any], Structure]]
    Shapes = list[tuple[Sequence[Any], Any]]


def outputs(
    record: OpOverload, template: Template, avals: Sequence[Any], traced: Traced | None
) -> tuple[list[Any], Structure]:
    """Return the abstract values of all flat outputs, and the structure of the returns.

    Parameters
    ----------
    record, template
        The call.
    avals
        Abstract values of its arrays.
    traced
        A kernel that JAX can trace where there is no fake, or None.

    Raises
    ------
    MissingRuleError
        If there is neither a fake nor such a kernel.
    """
    schema = record.schema
    values = fill(schema, template, avals)
    named = dict(zip((argument.name for argument in schema.arguments), values, strict=True))
    if record.rule("fake") is not None:
        shapes, structure = _by_rule(record, template, avals)
    elif len(returned_mutations(schema)) == len(schema.returns):
        shapes, structure = _of_mutated(record, named), (True,) * len(schema.returns)
    elif traced is not None:
        return _by_tracing(avals, traced)
    else:
        raise _missing(record)
    for argument in new_values(schema):
        value = named[argument.name]
        shapes += [
            (aval.shape, aval.dtype) for aval in (value if argument.is_list else [value]) if aval is not None
        ]
    return [shaped(shape, canonical(dtype), avals) for shape, dtype in shapes], structure


def _by_rule(record: OpOverload, template: Template, avals: Sequence[Any]) -> tuple[Shapes, Structure]:
    device = default_device_type()
    fakes = [
        FakeArray(aval.shape, aval.dtype, device, framework="jax", weak_type=aval.weak_type) for aval in avals
    ]
    values = fill(record.schema, template, fakes)
    computing = computing_of(record, "jax", device)
    out = run_fake(record, values, ctx=_Context(record), elsewhere=run_elsewhere, computing=computing)
    leaves, structure = flatten_outputs(record, out, "fake", record.source)
    return [(leaf.shape, leaf.dtype) for leaf in leaves], structure


def _of_mutated(record: OpOverload, named: dict[str, Any]) -> Shapes:
    """Return the shapes of returns that are all mutated arguments themselves."""
    shapes: Shapes = []
    for entry in record.schema.returns:
        sets = {name for alias in entry.type.aliases() for name in alias.before}
        for argument in record.schema.mutated:
            if any(name in sets for alias in argument.type.aliases() for name in alias.before):
                shapes.append((named[argument.name].shape, named[argument.name].dtype))
    return shapes


def _by_tracing(avals: Sequence[Any], traced: Traced) -> tuple[list[Any], Structure]:
    found: list[Structure] = []

    def run(*arrays: Any) -> list[Any]:
        leaves, structure = traced(arrays)
        found.append(structure)
        return leaves

    results = jax.eval_shape(run, *[_struct(aval) for aval in avals])
    return [shaped(one.shape, one.dtype, avals) for one in results], found[0]


def _struct(array: Any) -> jax.ShapeDtypeStruct:
    """Return what JAX traces with in place of a fake or an abstract value."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)


def run_traced(rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a fake that is written with JAX, on tracers in place of fakes."""
    leaves, tree = jax.tree_util.tree_flatten((list(args), dict(kwargs)), is_leaf=lambda one: one is None)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, FakeArray)]

    def run(*arrays: Any) -> Any:
        filled = list(leaves)
        for index, array in zip(places, arrays, strict=True):
            filled[index] = array
        positional, named = jax.tree_util.tree_unflatten(tree, filled)
        out = rule.fn(*positional, **named)
        return jax.tree_util.tree_map(_traceable, out)

    out = jax.eval_shape(run, *[_struct(leaves[i]) for i in places])
    return jax.tree_util.tree_map(lambda one: FakeArray(one.shape, one.dtype, framework="jax"), out)


def _traceable(value: Any) -> Any:
    """Return a tracer for what only has a shape and a dtype, which a fake may return too."""
    if isinstance(value, FakeArray | jax.ShapeDtypeStruct):
        return jax.numpy.empty(value.shape, value.dtype)
    return value


@final
class _Context(FakeContextBase):
    """What ``get_ctx()`` returns in a fake that JAX runs."""

    def __init__(self, record: OpOverload) -> None:
        self._record = record

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> NoReturn:  # noqa: A002  (torch's names)
        """Refuse."""
        rule = self._record.rule("fake")
        raise UnsupportedError(
            layout(
                f"{self._record.qualname} has outputs whose size depends on data, which JAX cannot trace",
                expected="shapes that are known while tracing",
                got="get_ctx().new_dynamic_size() in its fake",
                registered=rule.source if rule else self._record.source,
                fix="call it outside of jax.jit and its like, or give it a static argument for the size, "
                "as jax.numpy.nonzero(x, size=…) has",
            )
        )

    def empty(self, shape: Any, *, dtype: Any = None, device: Any = None) -> FakeArray:
        """Return a fake for an operator without array arguments."""
        return FakeArray(shape, canonical(float) if dtype is None else dtype, framework="jax")


def _missing(record: OpOverload) -> MissingRuleError:
    return MissingRuleError(
        layout(
            f"no fake impl is registered for {record.qualname}: "
            "JAX cannot trace a call without its outputs' shapes",
            expected="a fake, or a kernel of flavour jax or array_api",
            got=f"kernels for {record.kernels_text()}",
            registered=record.source,
            fix=f"register one: @opwright.register_fake({record.qualname!r})",
        )
    )
