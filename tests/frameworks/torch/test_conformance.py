"""The matrix: operator kinds and transforms, through the Operator and through ``torch.ops``, in three forms.

A cell is right or raises what is expected; one that is silently wrong fails.
"""

from __future__ import annotations

import re
import shutil

import pytest
import torch

import torch_matrix as matrix

EVERY_TRANSFORM = ("numpy_sin", "mutating")
"""Kinds whose compiled cells are in the default run; those of the others are marked slow."""

TORCHS_OWN = "please report a bug to PyTorch"
"""What torch says where an assertion of its own fails, as some of 2.11 do in compiled second derivatives."""


def _cells():
    for kind in matrix.KINDS.values():
        for transform in matrix.TRANSFORMS.values():
            marks = []
            if transform.slow and (kind.name not in EVERY_TRANSFORM or transform.inductor):
                marks.append(pytest.mark.slow)
            if transform.inductor and not (
                shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
            ):
                marks.append(pytest.mark.skip(reason="inductor needs a C++ compiler, and there is none"))
            for route in ("operator", "torch.ops"):
                yield pytest.param(
                    kind, transform, route, marks=marks, id=f"{kind.name}-{transform.name}-{route}"
                )


def _same(found, expected) -> bool:
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*has no vmap rule")
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
@pytest.mark.parametrize(("kind", "transform", "route"), list(_cells()))
def test_cell(kind, transform, route):
    expected_error = matrix.expected_error(kind, transform)
    forms = {"product": matrix.FORMS["product"]} if transform.slow else matrix.FORMS
    for name, form in forms.items():
        try:
            with matrix.plain():
                expected = transform.run(form(kind.reference), matrix.X)
        except RuntimeError as error:  # built-in operations cannot do it either, and say why
            with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
                transform.run(form(kind.function(route)), matrix.X)
            continue
        if expected_error is None:
            try:
                found = transform.run(form(kind.function(route)), matrix.X)
            except RuntimeError as error:
                if TORCHS_OWN not in str(error):
                    raise
                with pytest.raises(RuntimeError, match=TORCHS_OWN):  # as with built-in operations
                    transform.run(form(kind.reference), matrix.X)
                continue
            assert _same(found, expected), name
        elif expected_error.startswith("?"):
            try:
                found = transform.run(form(kind.function(route)), matrix.X)
            except RuntimeError as error:
                assert re.search(expected_error[1:], str(error)), name  # noqa: PT017  (right, or this error)
            else:
                assert _same(found, expected), name
        else:
            with pytest.raises(Exception, match=f"(?s){expected_error}"):
                transform.run(form(kind.function(route)), matrix.X)


@pytest.mark.parametrize("form", ["sum", "product", "three"])
def test_a_wrong_derivative_is_seen(form):
    """The comparison itself fails where an operator is wrong, in each form."""
    import opwright as ow

    @ow.custom_op(f"{matrix.NAMESPACE}::wrong_{form}", mutates_args=())
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    wrong.register_autograd(lambda ctx, g: 0.9 * g * torch.cos(ctx.saved_tensors[0]), setup_context=_save)
    run = matrix.TRANSFORMS["grad"].run
    found = run(matrix.FORMS[form](wrong), matrix.X)
    assert not _same(found, run(matrix.FORMS[form](torch.sin), matrix.X))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
