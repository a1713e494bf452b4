"""Every function and method of torch.library is here, with every parameter that torch's has."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch._library.fake_impl import FakeImplCtx  # noqa: E402

import opwright as ow  # noqa: E402
from opwright.fakes import FakeContext  # noqa: E402

EFFECTS = "effects are torch's alone: its own function takes our operators (behaviour 116)"
LEFT_OUT = {
    "Library._impl_with_aoti_compile": "compiled kernels of Inductor, which torch itself registers",
    "Library._register_effectful_op": EFFECTS,
    "Library._resolve_op_name": "a helper of torch's own methods",
    "Library.register_symm_mem_args": "arguments of Inductor's own collectives",
    "CustomOpDef.register_effect": EFFECTS,
}
"""Methods of torch's that ours have not; docs/torch-library.md lists the public ones."""

OTHER_DEFAULT = {("opcheck", "test_utils"): "every law, of which torch's four tests are a part"}

FUNCTIONS = [*torch.library.__all__, "register_kernel", "register_autograd", "opcheck"]


OPERATOR = torch.library.CustomOpDef


def _methods(cls):
    """The methods that users call: all of them of a Library; of an operator those with a public name."""
    return [
        name
        for name, member in vars(cls).items()
        if inspect.isfunction(member)
        and not name.startswith("__")
        and (cls is not OPERATOR or name[0] != "_")
    ]


CASES = [
    *((name, getattr(torch.library, name), lambda name=name: getattr(ow, name)) for name in FUNCTIONS),
    *(
        (f"{theirs.__name__}.{name}", getattr(theirs, name), lambda ours=ours, name=name: getattr(ours, name))
        for theirs, ours in (
            (torch.library.Library, ow.Library),
            (OPERATOR, ow.Operator),
            (FakeImplCtx, FakeContext),
        )
        for name in _methods(theirs)
    ),
    # The legacy forms, with a Library first.
    ("define of a Library", torch.library.define.dispatch(torch.library.Library), lambda: ow.define),
    ("impl of a Library", torch.library.impl.dispatch(torch.library.Library), lambda: ow.impl),
]


def _taken(signature, name, place):
    """How a signature takes what stands at a place: by position, and by name."""
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = signature.parameters.get(name)
    by_name = named is not None and named.kind in (named.KEYWORD_ONLY, named.POSITIONAL_OR_KEYWORD)
    return place is not None and (place < len(positional) or variadic), by_name


@pytest.mark.parametrize(("theirs", "ours"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_parameter_of_torch_is_taken(theirs, ours, request):
    name = request.node.callspec.id
    if name in LEFT_OUT:
        with pytest.raises(AttributeError):
            ours()
        return
    signature, mine = inspect.signature(theirs), inspect.signature(ours())
    place = 0
    for parameter in signature.parameters.values():
        positional = parameter.kind is not parameter.KEYWORD_ONLY
        by_position, by_name = _taken(mine, parameter.name, place if positional else None)
        place += positional
        assert not positional or by_position, f"{parameter} of {name}{signature} is not taken by position"
        first_of_legacy = name.endswith("of a Library") and place == 1  # torch chooses the form by it
        if (
            parameter.kind is not parameter.POSITIONAL_ONLY
            and not first_of_legacy
            and parameter.name != "self"
        ):
            assert by_name, f"{parameter} of {name}{signature} is not taken by name"
            here = mine.parameters[parameter.name].default
            if parameter.default is not parameter.empty and (name, parameter.name) not in OTHER_DEFAULT:
                assert here == parameter.default, f"{parameter} of {name}{signature} has another default"


def test_what_is_left_out_is_there_in_torch():
    assert set(LEFT_OUT) <= {case[0] for case in CASES}


def test_a_parameter_that_is_not_taken_is_found():
    def mine(op, func=None):
        pass

    signature = inspect.signature(mine)
    assert _taken(signature, "func", 1) == (True, True)
    assert _taken(signature, "extra", None) == (False, False)
    assert _taken(signature, "third", 2) == (False, False)
