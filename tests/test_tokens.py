from __future__ import annotations

import pytest

from opwright.errors import SchemaSyntaxError
from opwright.tokens import END, Tokens, visible


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "ns::f.out(Tensor(a!)[2]? x",
            ["ns", "::", "f.out", "(", "Tensor", "(", "a", "!", ")", "[", "2", "]", "?", "x"],
        ),
        ("->-1 1.e5-.5j", ["->", "-1", "1.e5-.5j"]),
        ("... .5 -inf -nan inf", ["...", ".5", "-inf", "-nan", "inf"]),
        ('"a\\"b" \'c"\' "d', ['"a\\"b"', "'c\"'", '"', "d"]),
        (" a # comment 'b\n\t# more\n c # end", ["a", "c"]),
        ("é\x00", ["é", "\x00"]),
        ("", []),
    ],
)
def test_a_text_is_cut_into_tokens_and_ends_with_an_empty_one(text, tokens):
    got = Tokens(text).tokens
    assert got[: len(tokens)] == tokens
    assert set(got[len(tokens) :]) == {""}


def test_nothing_but_blanks_and_comments_is_skipped():
    text = "ns::f(Tensor\u00a0x; $0)\u2028-> ()"
    assert "".join(Tokens(text).tokens) == text.replace(" ", "")


def test_a_token_knows_where_it_stands():
    tokens = Tokens("  ab  (c")
    assert [tokens.span(at) for at in range(3)] == [(2, 4), (6, 7), (7, 8)]
    assert tokens.span(99) == (8, 8)


def test_an_expected_token_is_read_and_another_one_refused():
    tokens = Tokens("( x")
    tokens.expect("(", "an opening")
    assert tokens.at == 1
    with pytest.raises(SchemaSyntaxError) as caught:
        tokens.expect(")", "a closing")
    assert str(caught.value) == (
        "schema, column 3: syntax error\n    ( x\n      ^\n  expected: a closing\n  got: 'x'"
    )
    assert tokens.identifier("a name") == "x"
    with pytest.raises(SchemaSyntaxError) as caught:
        tokens.identifier("a name")
    assert str(caught.value) == (
        f"schema, column 4: syntax error\n    ( x\n       ^\n  expected: a name\n  got: {END}"
    )


def test_a_long_text_is_shown_around_the_column():
    tokens = Tokens("x " * 1000)
    with pytest.raises(SchemaSyntaxError) as caught:
        tokens.fail("something else", at=500)
    lines = str(caught.value).splitlines()
    assert lines[0] == "schema, column 1001: syntax error"
    assert lines[1] == "    …" + "x " * 100 + "…"
    assert lines[2].index("^") == 4 + 1 + 100


def test_what_a_terminal_would_act_on_is_escaped():
    assert visible("a\n\x1b[31mé\u2028") == "a\\n\\x1b[31mé\\u2028"
