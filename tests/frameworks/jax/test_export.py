"""``jax.export``: traced kernels as any program, host kernels under a stable name or a clear refusal."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import opwright as ow
from opwright.frameworks.jax import export_target, ffi

X = jnp.asarray([[0.5, -1.25, 2.0]])


@ow.custom_op("jaxx::traced", mutates_args=())
def traced(x: ow.Array) -> ow.Array:
    return ow.array_namespace(x).sin(x) * x.shape[-1]


@ow.custom_op("jaxx::hosted", mutates_args=())
def hosted(x: np.ndarray, k: float = 2.0) -> np.ndarray:
    return np.concatenate([x * np.asarray(k, x.dtype), x], axis=0)


hosted.register_fake(lambda x, k=2.0: x.new_empty((2 * x.shape[0], *x.shape[1:])))
hosted.register_autograd(lambda ctx, g: (g[: g.shape[0] // 2] * 2.0 + g[g.shape[0] // 2 :], None))


@ow.custom_op("jaxx::positions", mutates_args=())
def positions(x: np.ndarray) -> np.ndarray:
    return np.arange(x.shape[0])


def symbolic():
    return jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), jnp.float32)


def test_symbolic_dimensions_in_shapes():
    out = jax.eval_shape(jax.jit(traced), X)
    assert out.shape == (1, 3)
    exported = export.export(jax.jit(traced))(symbolic())
    assert str(exported.out_avals[0].shape) == "(n, 3)"
    for n in (1, 4):
        x = jnp.ones((n, 3))
        np.testing.assert_allclose(exported.call(x), np.sin(x) * 3, rtol=1e-6)


def test_the_gradient_of_a_traced_kernel():
    traced.register_autograd(
        lambda ctx, g: g * jnp.cos(ctx.saved_tensors[0]) * 3,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    exported = export.export(jax.jit(jax.grad(lambda x: traced(x).sum())))(symbolic())
    np.testing.assert_allclose(exported.call(X), 3 * np.cos(X), rtol=1e-6)


def test_a_host_kernel_without_the_extra_is_refused(monkeypatch):
    monkeypatch.setattr(ffi, "enabled", False)
    with pytest.raises(ow.errors.UnsupportedError) as caught:
        export.export(jax.jit(hosted))(X)
    assert str(caught.value).startswith(
        "jaxx::hosted cannot be exported: its kernel runs on the host\n"
        "  expected: a kernel of flavour jax or array_api, "
        "or the extra that gives host kernels a target by name\n"
        "  to fix: pip install 'opwright[tvm-ffi]', then allow the target that "
        "opwright.frameworks.jax.export_target(op) names"
    )


def test_the_name_of_a_target_needs_the_extra(monkeypatch):
    monkeypatch.setattr("opwright.frameworks.jax.call.installed", lambda: False)
    with pytest.raises(ow.errors.UnsupportedError, match="jaxx::hosted cannot be exported"):
        export_target(hosted)


@pytest.fixture
def allowed():
    if not ffi.installed():
        pytest.skip("the extra tvm-ffi is not installed")
    name = export_target(hosted)
    assert name == "opwright.jaxx.hosted.default"
    return [export.DisabledSafetyCheck.custom_call(name)]


def test_a_host_kernel_is_exported_under_its_name(allowed):
    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(hosted))(X)
    exported = export.export(jax.jit(lambda x: hosted(x, 3.0)), disabled_checks=allowed)(symbolic())
    assert str(exported.out_avals[0].shape) == "(2*n, 3)"
    for n in (1, 4):
        x = jnp.ones((n, 3))
        np.testing.assert_array_equal(exported.call(x), np.concatenate([x * 3, x]))


def test_batches_and_gradients_of_a_host_kernel_are_exported(allowed):
    hosted.register_vmap(lambda info, in_dims, x, k: (hosted(jnp.moveaxis(x, in_dims[0], -1), k), -1))
    f = jax.jit(jax.vmap(jax.grad(lambda x: (hosted(x) ** 2).sum())))
    exported = export.export(f, disabled_checks=allowed)(
        jax.ShapeDtypeStruct(export.symbolic_shape("b, n, 3"), jnp.float32)
    )
    x = jnp.ones((2, 4, 3))
    np.testing.assert_array_equal(exported.call(x), f(x))


# ------------------------------------------------------------------------------ kept, and run elsewhere

OPERATORS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import export

    import opwright as ow
    from opwright.frameworks.jax import export_target

    @ow.custom_op("kept::traced", mutates_args=())
    def traced(x: ow.Array, k: float = 2.0) -> ow.Array:
        return ow.array_namespace(x).sin(x) * k

    traced.register_autograd(
        lambda ctx, g: (g * jnp.cos(ctx.saved_tensors[0]) * ctx.k, None),
        setup_context=lambda ctx, inputs, output: (
            ctx.save_for_backward(inputs[0]), setattr(ctx, "k", inputs[1])
        ),
    )

    @ow.custom_op("kept::hosted", mutates_args=())
    def hosted(x: np.ndarray, k: float = 2.0) -> np.ndarray:
        return x * np.float32(k) + where

    hosted.register_fake(lambda x, k=2.0: ow.empty_like(x))
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), jnp.float32)
    x = jnp.arange(6.0).reshape(2, 3)
"""

KEEP = """
    import pathlib, sys
    from operators import *

    folder = pathlib.Path(sys.argv[1])
    program = export.export(jax.jit(jax.value_and_grad(lambda x: traced(x, 3.0).sum())))(symbolic)
    folder.joinpath("traced").write_bytes(program.serialize())
    if len(sys.argv) > 2:
        allowed = [export.DisabledSafetyCheck.custom_call(export_target(hosted))]
        f = jax.jit(jax.vmap(lambda x: hosted(x, 3.0)))
        program = export.export(f, disabled_checks=allowed)(symbolic)
        folder.joinpath("hosted").write_bytes(program.serialize())
"""

RUN_TRACED = """
    import pathlib, sys
    import jax.numpy as jnp
    import numpy as np
    from jax import export

    x = jnp.arange(6.0).reshape(2, 3)
    program = export.deserialize(pathlib.Path(sys.argv[1], "traced").read_bytes())
    value, slope = program.call(x)
    np.testing.assert_allclose(value, np.sin(x).sum() * 3, rtol=1e-5)
    np.testing.assert_allclose(slope, np.cos(x) * 3, rtol=1e-5)
    assert not [name for name in sys.modules if name.startswith("opwright")]
"""

RUN_HOSTED = """
    import pathlib, sys
    import operators
    from operators import *

    operators.where = np.float32(10)
    program = export.deserialize(pathlib.Path(sys.argv[1], "hosted").read_bytes())
    try:
        program.call(x)
    except Exception as error:
        assert "kept.hosted" in str(error), error
    else:
        raise AssertionError("a program ran without the target that it names")
    assert export_target(hosted) == "opwright.kept.hosted.default"
    np.testing.assert_array_equal(program.call(x), x * 3 + 10)
"""


def python(folder, text, *words):
    """Run a script in a process of its own, beside the module ``operators``."""
    path = os.pathsep.join([str(folder), str(Path(ow.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text), str(folder), *words],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path):
    if importlib.util.find_spec("flatbuffers") is None:
        pytest.skip("jax.export keeps no program without the package flatbuffers")
    (tmp_path / "operators.py").write_text(textwrap.dedent(OPERATORS) + "where = np.float32(0)\n", "utf-8")
    return tmp_path


def test_a_traced_kernel_is_kept_and_run_where_there_is_no_operator(folder):
    python(folder, KEEP)
    python(folder, RUN_TRACED)


def test_a_host_kernel_is_kept_and_run_in_another_process_under_its_name(folder):
    if not ffi.installed():
        pytest.skip("the extra tvm-ffi is not installed")
    python(folder, KEEP, "hosted")
    python(folder, RUN_HOSTED)
