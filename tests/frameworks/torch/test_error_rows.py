"""Every row of the table in docs/errors.md, proved against torch.library in the same situation."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import opwright as ow  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"


def scale(x: Tensor, n: int = 1) -> Tensor:
    return x * n


def pick(x: Tensor, s: list[int]) -> Tensor:
    return x.clone()


def same(x: Tensor) -> Tensor:
    return x


def copy(x: Tensor) -> Tensor:
    return x.clone()


def bare(x):
    return x


class Scene:
    """One namespace of one library, torch's or ours, and what the situations need."""

    def __init__(self, library, ns):
        self.l, self.ns, self.x = library, ns, torch.ones(1)
        self.lib = library.Library(ns, "FRAGMENT")
        self.lib.define("d(Tensor x) -> Tensor")

    def op(self, fn, **options):
        return self.l.custom_op(f"{self.ns}::{fn.__name__}", fn, mutates_args=(), **options)

    def leaf(self):
        return torch.ones(1, requires_grad=True)

    def twice(self, register):
        register()
        register(allow_override=False)

    def with_backward(self, backward):
        op = self.op(copy)
        self.l.register_autograd(op, backward)
        return op(self.leaf()).sum().backward()

    def destroyed(self):
        lib = self.l.Library(self.ns, "FRAGMENT")
        lib._destroy()
        lib.define("late(Tensor x) -> Tensor")


SITUATIONS = {
    "a call without a required argument": lambda s: s.op(scale)(),
    "a call with too many arguments": lambda s: s.op(scale)(s.x, 1, 2),
    "a call with an unknown keyword": lambda s: s.op(scale)(s.x, m=1),
    "a number for an array": lambda s: s.op(scale)(3),
    "a float for an int": lambda s: s.op(scale)(s.x, 1.5),
    "a string for an int": lambda s: s.op(scale)(s.x, "a"),
    "a string for a list": lambda s: s.op(pick)(s.x, "ab"),
    "no kernel for the device": lambda s: s.op(copy, device_types="cuda")(s.x),
    "an output that is an argument": lambda s: s.op(same)(s.x),
    "a gradient without a formula": lambda s: s.op(copy)(s.leaf()).sum().backward(),
    "a backward that returns too many gradients": lambda s: s.with_backward(lambda ctx, grad: (grad, grad)),
    "a registration for what is no operator": lambda s: s.l.register_kernel(3, "cpu", scale),
    "a gradient of an operator that does not exist": lambda s: s.l.register_autograd(f"{s.ns}::none", scale),
    "an unknown device type": lambda s: s.l.register_kernel(s.op(scale), "foo", scale),
    "an unknown dispatch key": lambda s: s.lib.impl("d", copy, "Foo"),
    "an unknown dispatch key, to get a kernel": lambda s: s.l.get_kernel("aten::mm", "Foo"),
    "a dispatch key without a kernel, to get one": lambda s: s.l.get_kernel(f"{s.ns}::d", "CPU"),
    "autocast on an unknown device type": lambda s: s.l.register_autocast(s.op(scale), "foo", torch.float16),
    "autocast on a device type without it": lambda s: s.l.register_autocast(
        s.op(scale), "meta", torch.float16
    ),
    "a kernel that is no function": lambda s: s.lib.impl("d", 3, "CPU"),
    "a second fake, with allow_override=False": lambda s: s.twice(
        lambda **options: s.l.register_fake(f"{s.ns}::d", lambda x: x, **options)
    ),
    "a second kernel, with allow_override=False": lambda s: s.twice(
        lambda **options: s.lib.impl("d", lambda x: x, "CPU", **options)
    ),
    "an operator that is defined already": lambda s: s.lib.define("d(Tensor x) -> Tensor"),
    "a name without a namespace": lambda s: s.l.custom_op("name", scale, mutates_args=()),
    "a reserved namespace": lambda s: s.l.Library("prim", "DEF"),
    "an unknown kind of Library": lambda s: s.l.Library(s.ns, "X"),
    "a Library that was destroyed": lambda s: s.destroyed(),
    "a fallback without a dispatch key": lambda s: s.l.Library("_", "IMPL").fallback(s.l.fallthrough_kernel),
    "a schema that cannot be read": lambda s: s.lib.define("k(Tensor x -> Tensor"),
    "a keyword of Python as an argument's name": lambda s: s.lib.define("k(Tensor def) -> Tensor"),
    "an unknown type in a schema": lambda s: s.lib.define("k(Foo x) -> Tensor"),
    "a required argument after one with a default": lambda s: s.lib.define("k(int x=1, int y) -> Tensor"),
    "a parameter without an annotation": lambda s: s.op(bare),
    "a name in mutates_args that is no argument": lambda s: s.l.custom_op(
        f"{s.ns}::m", scale, mutates_args=["zz"]
    ),
    "a schema that breaks a rule of its tag": lambda s: s.lib.define(
        "t(Tensor x) -> Tensor", tags=torch.Tag.inplace
    ),
    "get_ctx outside a fake": lambda s: s.l.get_ctx().new_dynamic_size(),
    "opcheck of an operator that is wrong": lambda s: s.l.opcheck(s.op(same), (s.x,)),
}


def _rows():
    """The rows of the page's table: situation -> (torch's class, ours, whether ours is torch's too)."""
    section = PAGE.read_text("utf-8").split("## Beside torch.library\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "---" not in line]
    return {row[0]: (row[1].strip("`"), row[2].strip("`"), row[3]) for row in cells}


def _raised(situation, library, ns):
    try:
        situation(Scene(library, ns))
    except Exception as error:  # noqa: BLE001  (which it is, is the question)
        return error
    return None


def test_the_page_has_every_situation():
    assert list(_rows()) == list(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_row_is_true(ns, name):
    theirs, ours, too = _rows()[name]
    error = _raised(SITUATIONS[name], torch.library, f"{ns}_theirs")
    mine = _raised(SITUATIONS[name], ow, ns)
    assert (type(error).__name__, type(mine).__name__) == (theirs, ours)
    assert isinstance(mine, type(error)) == (too == "yes")
    assert too == "yes" or too.startswith("no: ")
    named = getattr(ow.errors, ours, None)
    assert named is None or isinstance(mine, named)


def test_a_caught_error_of_torch_catches_ours(ns):
    op = Scene(ow, ns).op(scale)
    for wrong in ((3,), (torch.ones(1), "a")):
        with pytest.raises(RuntimeError) as e:
            op(*wrong)
        assert isinstance(e.value, TypeError)
