"""Operators of every kind under every transform: right, or refused for a reason; never silently wrong.

On a GPU where JAX finds one (``make gpu``).
"""

from __future__ import annotations

import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frameworks.jax.example_operators
from frameworks.jax.operators import KINDS
from frameworks.jax.transforms import NEEDS, TRANSFORMS
from opwright import register_kernel, registry
from opwright.errors import OpwrightError
from opwright.frameworks.jax.vmap import NoVmapRuleWarning

if importlib.util.find_spec("torch") is not None:
    import frameworks.jax.torch_operators  # noqa: F401  (it adds its rows)

if jax.default_backend() == "gpu":  # host kernels raise there, unless their author allows the copies
    _rows = ("jaxm::", "examples::", "demo::")
    for _record in [one for one in registry.records.values() if one.name.startswith(_rows)]:
        _kernel = _record.select_kernel("numpy", "cpu")
        if _kernel is not None and _kernel.flavour == "numpy":
            register_kernel(_record.qualname, "cuda", _kernel.fn, flavour="numpy", copy=True)

EVERY_TRANSFORM = ("vmap_rule", "mutating")
"""Kinds whose every cell is in the default run; of the others every fourth is, the rest is marked slow."""


def cells():
    for i, kind in enumerate(KINDS):
        for j, transform in enumerate(TRANSFORMS):
            sampled = kind in EVERY_TRANSFORM or (i + j) % 4 == 0
            marks = () if sampled else (pytest.mark.slow,)
            yield pytest.param(kind, transform, marks=marks, id=f"{kind}-{transform}")


_references = {}


def arrays(kind):
    return tuple(map(jnp.asarray, kind.args))


def reference(kind, transform):
    key = kind.name, transform
    if key not in _references:
        _references[key] = TRANSFORMS[transform](kind.ref, arrays(kind))
    return _references[key]


def same(got, expected):
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.asarray(one, np.complex128), np.asarray(other, np.complex128), rtol=2e-4, atol=2e-4
        )


@pytest.mark.parametrize(("kind", "transform"), list(cells()))
def test_cell(kind, transform):
    row = KINDS[kind]
    if transform in row.skips:
        pytest.skip(row.skips[transform])
    reason = row.refuses.get(transform) or row.refuses.get(NEEDS[transform])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoVmapRuleWarning)
        if reason is not None:
            with pytest.raises(OpwrightError, match=reason):
                TRANSFORMS[transform](row.fn, arrays(row))
            return
        got = TRANSFORMS[transform](row.fn, arrays(row))
    same(got, reference(row, transform))
