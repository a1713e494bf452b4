"""What a kernel writes is read from its code, or the analysis says why it cannot."""

from __future__ import annotations

import pytest

from opwright.kernels.triton_writes import Unclear, written_parameters

HEAD = (
    "module {\n  tt.func public @k("
    "%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %out: !tt.ptr<f32>, %n: i32)"
)
LOOP = (
    "%r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%p = %x, %q = %out)"
    " -> (!tt.ptr<f32>, !tt.ptr<f32>) : i32 {"
)
WHILE = (
    "%r:2 = scf.while (%p = %x, %q = %out) : (!tt.ptr<f32>, !tt.ptr<f32>) -> (!tt.ptr<f32>, !tt.ptr<f32>) {"
)
ASM = 'constraints = "=r", packed_element = 1 : i32, pure = false'
BODY = HEAD + " attributes {noinline = false} {\n"


def written(*lines, more=""):
    return written_parameters(
        BODY + "\n".join(f"    {line} loc(#loc1)" for line in lines) + "\n  }\n" + more + "}"
    )


def test_a_store_through_address_arithmetic():
    assert written(
        "%0 = tt.splat %out : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>",
        "%1 = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>",
        "%2 = tt.addptr %0, %1 : tensor<8x!tt.ptr<f32>>, tensor<8xi32>",
        "%3 = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>",
        "%4 = tt.load %3 : tensor<8x!tt.ptr<f32>>",
        "tt.store %2, %4 : tensor<8x!tt.ptr<f32>>",
    ) == [1]


def test_an_offset_that_was_loaded_does_not_count():
    assert written(
        "%0 = tt.load %x : !tt.ptr<i32>",
        "%1 = tt.addptr %out, %0 : !tt.ptr<f32>, i32",
        "%2 = tt.atomic_rmw fadd, acq_rel, gpu, %1, %cst, %true : (!tt.ptr<f32>, f32, i1) -> f32",
        "%3 = tt.addptr %x, %2 : !tt.ptr<f32>, i32",
    ) == [1]


def test_carried_addresses_stay_apart():
    loop = [
        LOOP,
        "  %a = tt.load %p : !tt.ptr<f32>",
        "  tt.store %q, %a : !tt.ptr<f32>",
        "  %b = tt.addptr %p, %c1 : !tt.ptr<f32>, i32",
        "  %c = tt.addptr %q, %c1 : !tt.ptr<f32>, i32",
        "  scf.yield %b, %c : !tt.ptr<f32>, !tt.ptr<f32>",
        "}",
    ]
    assert written(*loop) == [1]
    assert written(*loop, "tt.store %r#0, %z : !tt.ptr<f32>") == [0, 1]
    assert written(*loop, "tt.store %r#1, %z : !tt.ptr<f32>") == [1]


def test_addresses_that_change_places_in_a_loop():
    assert written(
        LOOP,
        "  tt.store %q, %a : !tt.ptr<f32>",
        "  scf.yield %q, %p : !tt.ptr<f32>, !tt.ptr<f32>",
        "}",
    ) == [0, 1]


def test_branches_and_while_loops():
    assert written(
        "%r = scf.if %c -> (!tt.ptr<f32>) {",
        "  scf.yield %x : !tt.ptr<f32>",
        "} else {",
        "  scf.yield %out : !tt.ptr<f32>",
        "}",
        "tt.store %r, %v : !tt.ptr<f32>",
    ) == [0, 1]
    assert written(
        WHILE,
        "  scf.condition(%c) %q, %p : !tt.ptr<f32>, !tt.ptr<f32>",
        "} do {",
        "^bb0(%s: !tt.ptr<f32>, %t: !tt.ptr<f32>):",
        "  tt.store %s, %v : !tt.ptr<f32>",
        "  scf.yield %t, %s : !tt.ptr<f32>, !tt.ptr<f32>",
        "}",
    ) == [1]
    assert written(
        "cf.cond_br %c, ^bb1(%x : !tt.ptr<f32>), ^bb2",
        "^bb1(%p: !tt.ptr<f32>):  // pred: ^bb0",
        "tt.store %p, %v : !tt.ptr<f32>",
        "cf.br ^bb2",
        "^bb2:  // 2 preds: ^bb0, ^bb1",
        "tt.return",
    ) == [0]


def test_a_region_of_a_reduction_is_left_again():
    assert written(
        '%3 = "tt.reduce"(%off) <{axis = 0 : i32}> ({',
        "^bb0(%a: i32, %b: i32):",
        "  %6 = arith.maxsi %a, %b : i32",
        "  tt.reduce.return %6 : i32",
        "}) : (tensor<8xi32>) -> i32",
        "%4 = tt.addptr %x, %3 : !tt.ptr<f32>, i32",
        "tt.store %4, %v : !tt.ptr<f32>",
    ) == [0]


def test_calls():
    callee = (
        '  tt.func private @"lib.f__(2,)"(%p: !tt.ptr<f32>, %q: !tt.ptr<f32>) -> !tt.ptr<f32> {\n'
        "    tt.store %q, %v : !tt.ptr<f32>\n    tt.return %p : !tt.ptr<f32>\n  }\n"
    )
    call = '%r = tt.call @"lib.f__(2,)"(%x, %out) : (!tt.ptr<f32>, !tt.ptr<f32>) -> !tt.ptr<f32>'
    assert written(call, more=callee) == [1]
    assert written(call, "tt.store %r, %v : !tt.ptr<f32>", more=callee) == [0, 1]
    with pytest.raises(Unclear) as error:
        written(call)
    assert str(error.value) == "it calls lib.f__(2,), which is not understood"


def test_descriptors():
    assert written(
        "%d = tt.make_tensor_descriptor %out, [%n], [%c1] : !tt.ptr<f32>, !tt.tensordesc<tensor<8xf32>>",
        "tt.descriptor_store %d[%c0], %v : !tt.tensordesc<tensor<8xf32>>, tensor<8xf32>",
    ) == [1]


def test_an_operation_that_is_not_known_is_harmless_without_an_address():
    assert written("%0 = new.thing %n : i32 -> i32", "tt.store %out, %0 : !tt.ptr<f32>") == [1]
    assert written(f'%0 = tt.elementwise_inline_asm "mov" {{{ASM}}} %n : i32 -> i32') == []


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ["%0 = new.thing %x : !tt.ptr<f32> -> i32"],
            "new.thing gets an address, and what it does with it is not known",
        ),
        (
            ['%0 = tt.elementwise_inline_asm "st" {pure = false} %x : !tt.ptr<f32> -> i32'],
            "tt.elementwise_inline_asm gets an address, and what it does with it is not known",
        ),
        (
            ["%0 = tt.load %x : !tt.ptr<!tt.ptr<f32>>", "tt.store %0, %v : !tt.ptr<f32>"],
            "tt.store writes to an address that does not come from a parameter alone",
        ),
        (
            [
                "%0 = tt.load %x : !tt.ptr<!tt.ptr<f32>>",
                "%1 = arith.select %c, %0, %out : !tt.ptr<f32>",
                "tt.store %1, %v : !tt.ptr<f32>",
            ],
            "tt.store writes to an address that does not come from a parameter alone",
        ),
        (
            [
                "%0 = tt.load %x : !tt.ptr<i64>",
                "%1 = tt.int_to_ptr %0 : i64 -> !tt.ptr<f32>",
                "tt.store %1, %v : !tt.ptr<f32>",
            ],
            "tt.store writes to an address that does not come from a parameter alone",
        ),
    ],
)
def test_what_cannot_be_told_is_said(lines, reason):
    with pytest.raises(Unclear) as error:
        written(*lines)
    assert str(error.value) == reason


def test_code_that_is_no_module():
    with pytest.raises(Unclear) as error:
        written_parameters("nothing")
    assert str(error.value) == "its intermediate code has no function that is understood"


def test_locations_are_not_read():
    text = (
        BODY.replace("%x:", '%x loc("x (1)"(#loc2)):')
        + '    tt.store %out, %v : !tt.ptr<f32> loc(callsite(#a at "f(x"(#b)))\n  }\n}'
    )
    assert written_parameters(text) == [1]
