from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from opwright.defaults import Default, Word, default_text
from opwright.errors import SchemaSyntaxError
from opwright.parse import parse_schema
from opwright.schema import (
    AliasInfo,
    Argument,
    BaseType,
    FunctionSchema,
    GenericType,
    ListType,
    OptionalType,
    Return,
)
from opwright.typenames import BASE_TYPES

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
ALIASES = st.none() | st.builds(
    AliasInfo,
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2).map(tuple),
    st.sampled_from([(), ("*",), ("b", "c")]),
    st.booleans(),
)
BASES = st.builds(
    BaseType, st.sampled_from([*sorted(BASE_TYPES), "t", "__torch__.torch.classes.a.B"]), ALIASES
)


def grown(types):
    return st.one_of(
        st.builds(ListType, types, st.none() | st.integers(0, 9), ALIASES),
        types.filter(lambda type_: not isinstance(type_, OptionalType)).map(OptionalType),
        st.builds(GenericType, st.just("Dict"), st.tuples(types, types), ALIASES),
        st.builds(
            GenericType, st.sampled_from(["", "Union", "Tuple"]), st.tuples(types, types, types), ALIASES
        ),
        st.builds(GenericType, st.just("Future"), st.tuples(types), ALIASES),
    )


TYPES = st.recursive(BASES, grown, max_leaves=4)
FLOATS = st.floats(allow_nan=False)
VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": FLOATS,
    "bool": st.booleans(),
    "str": st.text(),
    "complex": st.builds(complex, FLOATS.filter(lambda x: abs(x) < 1e300), st.floats(0, 1e300)),
    "Layout": st.sampled_from(["strided", "sparse_csr"]).map(Word),
    "ScalarType": st.sampled_from(["float32", "int64", "bool"]).map(Word),
}


@st.composite
def with_default(draw):
    base = draw(st.sampled_from(sorted(VALUES)))
    type_, value = BaseType(base), VALUES[base]
    if draw(st.booleans()):
        type_, value = (
            ListType(type_, draw(st.none() | st.integers(0, 3))),
            st.lists(value, max_size=3).map(tuple),
        )
    if draw(st.booleans()):
        type_, value = OptionalType(type_), st.none() | value
    drawn = draw(value)
    return type_, Default(type_.coerce(drawn), default_text(drawn))


ARGUMENTS = st.tuples(TYPES, st.none()) | with_default()


@st.composite
def schemas(draw):
    drawn = draw(st.lists(ARGUMENTS, max_size=5))
    split = draw(st.integers(0, len(drawn)))
    arguments = tuple(
        Argument(draw(NAMES), type_, default, kwarg_only=number >= split)
        for number, (type_, default) in enumerate(drawn)
    )
    returns = tuple(draw(st.lists(st.builds(Return, TYPES, st.sampled_from(["", "y"])), max_size=3)))
    alone = len(returns) == 1 and not returns[0].name
    return FunctionSchema(
        name=draw(st.sampled_from(["", "ns::f", "aten::_g_"])),
        overload="",
        arguments=arguments,
        returns=returns,
        is_vararg=draw(st.booleans()),
        is_varret=not alone and draw(st.booleans()),
        is_tuple=alone and draw(st.booleans()),
    )


@settings(deadline=None)
@given(schemas())
def test_any_schema_prints_and_reads_back_equal(schema):
    text = str(schema)
    again = parse_schema(text, name_required=bool(schema.name))
    assert again == schema
    assert str(again) == text
    assert hash(again) == hash(schema)


@settings(deadline=None)
@given(st.text(alphabet="ns:f()[]{}?!*|->=,.'\"\\ \n#0123einfTor", max_size=60))
def test_any_text_is_read_or_refused_with_our_error(tail):
    text = "ns::f(" + tail
    message = ""
    try:
        schema = parse_schema(text)
    except SchemaSyntaxError as error:
        message = str(error)
    else:
        assert str(parse_schema(str(schema))) == str(schema)
    assert not message or message.startswith("schema, column ")
