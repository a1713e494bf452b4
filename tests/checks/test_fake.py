from __future__ import annotations

import numpy as np
import pytest

import opwright as ow
from checks.cases import assert_caught, facts_of, text_of, wrong_operators
from opwright.testing import fake

# Name of the operator, id, what is wrong, expected, got, what to do, and the sample.
TEXTS = [
    (
        "padded_in_the_fake",
        "OW201",
        "fake and kernel disagree on the shape of the output",
        "(3, 4), as the kernel returns",
        "(3, 4, 1)",
        "correct the fake, or the kernel",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "other_dtype_in_the_fake",
        "OW202",
        "fake and kernel disagree on the dtype of the output",
        "float64, as the kernel returns",
        "float32",
        "correct the fake, or the kernel",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "too_few_in_the_fake",
        "OW203",
        "the fake returned something else than the schema says",
        "a tuple of 2: wrong::too_few_in_the_fake(Tensor x) -> (Tensor, Tensor)",
        "tuple of 1 (FakeArray)",
        "return an array without data for each output: opwright.empty_like(x), x.new_empty(shape)",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "argument_from_the_fake",
        "OW205",
        "in the fake, the output is argument x itself",
        "an array of its own for each output, as the kernel returns",
        "the output is argument x",
        "return opwright.empty_like(x) instead of x",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "arithmetic_in_the_fake",
        "OW206",
        "the fake raises on arguments that the kernel accepts",
        "outputs without data",
        "FakeError: FakeArray((3, 4), float64, cpu) has no data, so __mul__ cannot be computed ...",
        "make the fake accept what the kernel accepts, with shape, dtype and new_empty alone",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "only_equal_dtypes",
        "OW207",
        "the kernel raises on arguments that the fake accepts",
        "the fake raises too",
        "the kernel: TypeError: one dtype and shape, please; the fake: returns",
        "check the arguments in the fake as in the kernel",
        "the given sample, x in float32: x float32 (3,), y float64 (3,)",
    ),
    (
        "int_in_the_fake",
        "OW208",
        "the fake makes a number of a size: int(x.shape[0])",
        "a size that stays symbolic",
        "int(x.shape[0]), so every new size compiles anew",
        "compute with the size itself, without int(), range() or math",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "branch_in_the_fake",
        "OW209",
        "the fake branches on a size: x.shape[0] > 2",
        "one expression for every size",
        "x.shape[0] > 2 decides, and the fake goes on either way",
        "write the shape as one expression of the sizes; a check that raises is fine",
        "the given sample: x float64 (3, 4)",
    ),
    (
        "positive_ones",
        "OW210",
        "the shape of the output depends on the data, but the fake gives a fixed one",
        "(0,), as the kernel returns for these values",
        "(3,)",
        "use opwright.get_ctx().new_dynamic_size(min=, max=) for that size",
        "the given sample, zeros: x float64 (3,)",
    ),
    (
        "square_root_of_anything",
        "OW211",
        "the dtype of the output depends on the data",
        "float64 for every value, as the fake says",
        "complex128 for these values",
        "convert the output to one dtype",
        "the given sample, negated: x float64 (3, 4)",
    ),
    (
        "more_than_the_bound",
        "OW212",
        "axis 0 of the output is outside the bounds that the fake gives",
        "a size from 0 to 2",
        "3, as the kernel returns",
        "correct min= and max= of new_dynamic_size",
        "the given sample: x float64 (3,)",
    ),
]


@pytest.mark.parametrize("wrong", wrong_operators(2))
def test_wrong_operators_are_caught_by_this_law_alone(wrong):
    assert_caught(wrong)


@pytest.mark.parametrize("text", TEXTS, ids=[text[0] for text in TEXTS])
def test_findings_say_what_is_wrong_and_what_to_do(text):
    name, *facts = text
    assert facts_of(name) == facts


def test_a_finding_prints_whole():
    assert text_of("branch_in_the_fake") == (
        "OW209 wrong::branch_in_the_fake, fake, numpy: the fake branches on a size: x.shape[0] > 2\n"
        "  expected: one expression for every size\n"
        "  got: x.shape[0] > 2 decides, and the fake goes on either way\n"
        "  registered at: SOURCE\n"
        "  to fix: write the shape as one expression of the sizes; a check that raises is fine\n"
        "  sample: the given sample: x float64 (3, 4)\n"
        "  to see it:\n"
        "    import numpy as np\n"
        "    import opwright as ow\n"
        "    import checks.wrong_operators\n"
        "    op = ow.ops.wrong.branch_in_the_fake.default\n"
        "    x = np.array(ARRAY, 'float64')\n"
        "    from opwright.testing import fake\n"
        "    print(fake(op, x))"
    )


def test_the_fake_of_a_factory_gets_what_a_compiled_program_gives_it():
    pytest.importorskip("torch")
    pytest.importorskip("jax")

    @ow.custom_op("checkfake::steps", mutates_args=())
    def steps(n: int) -> np.ndarray:
        return np.arange(n)

    steps.register_fake(lambda n: ow.empty((n,), dtype="int64"))
    report = ow.opcheck(steps, (3,), frameworks=("numpy", "torch", "jax"))
    assert {(one.framework, one.status) for one in report.outcomes if one.law in ("fake", "compile")} == {
        ("numpy", "passed"),
        ("numpy", "skipped"),
        ("torch", "passed"),
        ("jax", "passed"),
    }


def test_an_array_is_told_by_its_class():
    with ow.Library("checkfake", "FRAGMENT") as lib:
        lib.define("maybe(Tensor x) -> Tensor?")
        lib.impl("maybe", lambda x: x.copy(), "CPU", flavour="numpy")
        ow.register_fake("checkfake::maybe", lambda x: None, lib=lib)
        maybe = ow.ops.checkfake.maybe.default
        report = ow.opcheck(maybe, (np.ones(2),), frameworks="numpy", raise_exception=False)
        [found] = report.findings
        assert (found.id, found.expected, found.got) == (
            "OW203",
            "an array of class ndarray, as the kernel returns",
            "None",
        )


@pytest.mark.parametrize("given", [(), ("float64",), (np.float64,), (np.dtype("float64"),)])
def test_a_factory_whose_dtype_has_a_default(given):
    pytest.importorskip("torch")
    pytest.importorskip("jax")

    @ow.custom_op("checkfake::ones", mutates_args=())
    def ones(n: int, dt: np.dtype = np.float32) -> np.ndarray:
        return np.ones(n, dt)

    ones.register_fake(lambda n, dt=None: ow.empty((n,), dtype=dt))
    report = ow.opcheck(ones, (2, *given), frameworks=("numpy", "torch", "jax"))
    assert [report.outcome("fake", name).status for name in ("numpy", "torch", "jax")] == ["passed"] * 3


def test_a_factory_of_one_framework_whose_dtype_has_a_default():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    seen = []

    @ow.custom_op("checkfake::torch_ones", mutates_args=())
    def torch_ones(n: int, dt: torch.dtype = torch.float32, *, mode: str = "sum") -> torch.Tensor:
        return torch.ones(n, dtype=dt)

    @torch_ones.register_fake
    def _(n, dt=torch.float32, *, mode="sum"):
        seen.append(dt)
        return torch.empty(n, dtype=dt)

    @ow.custom_op("checkfake::jax_ones", mutates_args=())
    def jax_ones(n: int, dt: jax.numpy.dtype = jax.numpy.float32) -> jax.Array:
        return jax.numpy.ones(n, dtype=dt)

    # A fake that is written with JAX may return what has no data, too.
    jax_ones.register_fake(lambda n, dt=None: jax.ShapeDtypeStruct((n,), jax.numpy.dtype(dt)))
    for op, name in ((torch_ones, "torch"), (jax_ones, "jax")):
        report = ow.opcheck(op, (2,))
        assert [report.outcome(law, name).status for law in ("fake", "compile")] == ["passed"] * 2
        assert fake(op, 2).dtype == np.float32
    assert set(seen) == {torch.float32}


def test_a_snippet_has_a_dtype_that_is_a_class():
    @ow.custom_op("checkfake::zeros", mutates_args=())
    def zeros(n: int, dt: np.dtype = np.float32) -> np.ndarray:
        return np.zeros(n, dt)

    zeros.register_fake(lambda n, dt: ow.empty((n + 1,), dtype=dt))
    report = ow.opcheck(zeros, (2, np.float64), frameworks="numpy", raise_exception=False)
    [finding] = report.findings
    assert finding.snippet.endswith("print(fake(op, 2, np.float64))")
