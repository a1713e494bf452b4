"""Rows of the matrix with the operators of the examples, those whose packages are installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from frameworks.jax.operators import kind

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GRID = np.array([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]], np.float32)
OTHER = np.array([[0.25, 0.5, 0.75], [0.9, 0.1, 0.6]], np.float32)


def example(name, *packages):
    """Return an example's module, or None where one of its packages is missing."""
    if any(importlib.util.find_spec(package) is None for package in packages):
        return None
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def convolved(x, kernel):
    n = x.shape[-1]
    spectrum = jnp.fft.rfft(x, n=2 * n) * jnp.fft.rfft(kernel, n=2 * n)
    return jnp.fft.irfft(spectrum, n=2 * n)[..., :n]


def recurred(x, decay):
    states = [jnp.zeros_like(x[:, 0])]
    for step in range(x.shape[1]):
        states.append(decay[:, step] * states[-1] + x[:, step])
    return jnp.stack(states[1:], axis=1)


def diffused(source, weight):
    source, weight = jnp.asarray(source), jnp.asarray(weight)  # JAX 0.9's constants have hardly a method
    height, width = source.shape
    system = jnp.diag(weight.ravel())
    for row in range(height):
        for column in range(width):
            here = row * width + column
            for there in [here + width] * (row + 1 < height) + [here + 1] * (column + 1 < width):
                system = system.at[here, here].add(1).at[there, there].add(1)
                system = system.at[here, there].add(-1).at[there, here].add(-1)
    return jnp.linalg.solve(system, source.ravel()).reshape(source.shape)


def normalised(x, weight):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


LABELS = np.array([2, 0])


def entropy(logits):
    chosen = jnp.take_along_axis(logits, jnp.asarray(LABELS)[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


REFUSED = "backward: no autograd formula is registered, and JAX differentiates it"
FIRST_ORDER = dict.fromkeys(
    (
        "hessian",
        "jit_hessian",
        "jacrev_of_jacrev",
        "jacfwd_of_jacrev",
        "grad_of_grad",
        "jvp_of_grad",
        "jit_jvp_of_grad",
        "third_order_reverse",
        "vmap_of_hessian",
        "hessian_of_vmap",
        "grad_of_vmap_of_grad",
        "hessian_of_scan",
        "hessian_of_checkpoint",
        "hessian_inside_shard_map",
    ),
    REFUSED,
)
"""What needs a derivative of the backward, where that is a kernel of its own."""

NOT_IN_JAX = {
    "checkpoint_with_policy": "JAX itself rounds nothing complex: reduce_precision refuses the spectrum"
}
if jax.__version_info__ < (0, 10):
    _reason = (
        "JAX 0.9 itself cannot transpose an fft inside shard_map: it takes the mesh axes off the cotangent"
    )
    NOT_IN_JAX |= dict.fromkeys(
        (
            "grad_of_shard_map",
            "grad_of_shard_map_with_replicated_arguments",
            "grad_inside_shard_map",
            "hessian_inside_shard_map",
        ),
        _reason,
    )

ROWS = (
    ("fft_convolution", "fft_convolution", (), convolved, (GRID, OTHER), ()),
    ("numba_recurrence", "recurrence", ("numba",), recurred, (GRID, OTHER), ()),
    ("inpaint", "diffuse", ("scipy", "matplotlib"), diffused, (GRID, OTHER), ()),
    ("cupy_gate", "gate", (), lambda x, y: jax.nn.silu(x) * y, (GRID, OTHER), ()),
    ("rms_norm", "rms_norm", ("torch", "triton"), normalised, (GRID, OTHER[0]), ()),
    ("cross_entropy", "cross_entropy", ("torch", "triton"), entropy, (GRID,), (LABELS,)),
)
"""Module and operator, the packages it needs, the same in JAX, its arguments, and those without gradient."""


def add(module, name, reference, args, constants):
    operator = getattr(module, name)
    kind(
        f"example_{name}",
        lambda *arrays: (reference(*arrays),),
        *args,
        fn=lambda *arrays: (operator(*arrays, *map(jnp.asarray, constants)),),
        refuses=FIRST_ORDER if name in {"rms_norm", "cross_entropy", "gate"} else None,
        skips=NOT_IN_JAX if name == "fft_convolution" else None,
    )


for _module, _name, _packages, *_row in ROWS:
    if (_found := example(_module, *_packages)) is not None:
        add(_found, _name, *_row)
