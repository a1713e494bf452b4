"""What holds for operators under PyTorch as for those of ``torch.library``, and which tests show it.

A test shows a row by its name: ``test_row_12_…``, ``test_row_85_86_…``. The table in docs/behaviours.md is
printed from here; ``tests/test_behaviour_rows.py`` fails where a row has no test or a test names no row.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent

ROWS = {
    1: "An operator is called like the function that it decorates, and gives the same value.",
    2: "`mutates_args` is any iterable of names, a generator included.",
    3: 'A bare string for `mutates_args`, other than `"unknown"`, is a `ValueError`.',
    4: '`mutates_args="unknown"` marks every tensor, optional ones and lists too.',
    5: "A name in `mutates_args` that is no argument is a `ValueError` that lists it.",
    6: "The version counters of mutated tensors go up, those of others do not.",
    7: "A mutated optional argument may be left out, or given by keyword.",
    8: "Defining and calling a mutating operator warns of nothing.",
    9: "Defaults reach the kernel as they are written, and stand in the schema.",
    10: "A function without a return annotation is a `ValueError`; `-> None` is fine.",
    11: "An unsupported parameter type is a `ValueError` that names the nearest one, where there is one.",
    12: "`schema=` replaces annotations, and must agree with `mutates_args`.",
    13: "Keyword-only tensors are supported, by rules too; torch refuses them.",
    14: "An output that is an argument, or shares memory with one or with another output, raises.",
    15: "A name that is defined again has the new body.",
    16: "`ns::name.overload` is one overload of several; the packet picks by arguments.",
    17: "A return annotation `tuple[Tensor]` gives a tuple of one.",
    18: "Without a tensor input, kernels for devices need a `device` parameter, which they are picked by.",
    19: "`device_types` limits the body to devices; kernels for others may follow.",
    20: "`tags` is one tag or several; `pt2_compliant_tag` is there once.",
    21: "`torch.compile(op, fullgraph=True)` runs the fake at trace time and the kernel at run time.",
    22: "`setup_context` runs once where a gradient is needed, and not otherwise.",
    23: "Without an autograd formula calls work, and backward raises “no autograd formula”.",
    24: "`set_kernel_enabled` turns a device's kernel off and on, nests, and logs what is odd.",
    25: "With `Tag.inplace` the first argument is mutated and returned, the same object.",
    26: "Returning something else than the first argument raises at the call.",
    27: "`Tag.inplace` with another first argument, mutated argument or return is refused.",
    28: "Both tags together are refused.",
    29: "With `Tag.out` the mutated keyword-only arguments are what is returned.",
    30: "`Tag.out` with positional, missing, optional or list arguments, or other returns, is refused.",
    31: "A schema by hand is held to the rules of both tags.",
    32: "Both tags give a fake; registering another one warns, and wins.",
    33: "In-place results ask for a formula; out operators refuse tensors that require grad.",
    34: "`register_autograd` on an out operator is refused.",
    35: "Operators with these tags work under `torch.compile`.",
    36: "Plain types become torch's schema types, as parameters and as returns.",
    37: "Lists, sequences, optionals and unions of numbers become schema types.",
    38: "Tuples become several returns, `-> None` none.",
    39: "Keyword-only parameters stand behind `*`.",
    40: "Mutated arguments get alias sets by position.",
    41: "Defaults are printed in schema syntax.",
    42: "`op_name` is what the text starts with.",
    43: "`tags` alias the returns.",
    44: "String annotations are resolved in the function's own module, and nowhere else.",
    45: "Variadic and positional-only parameters, missing annotations and open tuples are a `ValueError`.",
    46: "A string that cannot be resolved is a `ValueError` “not a type” that hints at module scope.",
    47: "A bare name under postponed annotations is resolved if the function's module has it.",
    48: "Libraries are DEF, FRAGMENT or IMPL; reserved namespaces are refused.",
    49: "A second DEF library is a `RuntimeError` with both lines.",
    50: "FRAGMENT libraries work with and without a DEF, several at once.",
    51: "`define` makes an operator of torch; unknown types have a hint; opaque types are taken.",
    52: "`define(qualname, schema, lib=, tags=)` wants a namespace and a parenthesis.",
    53: "The legacy decorators `define(lib, schema)` and `impl(lib, name, key)` work.",
    54: '`impl` takes dispatch keys, device types, lists of them, and `"default"`.',
    55: "`Library.impl` takes a name, a qualified name or an overload, of its own namespace.",
    56: "A library for one dispatch key may leave it out, and refuses another.",
    57: "A second kernel for a key replaces the first, unless `allow_override=False`.",
    58: "Destroying a library removes what it registered and restores what that covered.",
    59: "Kernels of `aten` are overridden and restored in the same way.",
    60: "Operators of a destroyed library are gone from `torch.ops`.",
    61: "Kernels get lists for lists of dtypes, layouts and memory formats.",
    62: "`fallthrough_kernel` skips a dispatch key.",
    63: "A fallback catches every operator at a key; with the key set it can redispatch.",
    64: "Operators take and return symbolic sizes.",
    65: "`SchemaCheckMode` reports what breaks the schema's promises.",
    66: "`define` with `Tag.inplace` is held to its rules.",
    67: "An in-place operator has a fake, and is functionalised in compiled code.",
    68: "`register_kernel` takes the operator, its name or an overload.",
    69: "`device_types` of `register_kernel` is a string, a sequence or None.",
    70: "`register_kernel` works with `lib=` for operators made with `define`.",
    71: "`register_fake` takes the operator, its name or an overload; `lib=` ties it to a library.",
    72: "Fakes run for FakeTensors and for meta tensors.",
    73: "Without one, FakeTensors and `torch.compile` raise “no fake impl is registered”.",
    74: "A second fake replaces the first; `allow_override=False` raises with its line.",
    75: "`allow_override=False` also refuses a Meta kernel; an implicit composite is always refused.",
    76: "A fake of a library hides another one only while the library lives.",
    77: "Fakes can be given to any overload, and to operators that something else defined.",
    78: "`make_fx` records the operator as one node.",
    79: "A fake of an operator without tags is used as it is.",
    80: "Fakes of torch's sample operators are like real results, propagated ones too.",
    81: "`get_ctx().new_dynamic_size(min=, max=)` gives a size that depends on data; bounds are checked.",
    82: "`opcheck` takes operators with such sizes.",
    83: "Meta tensors have no such sizes; `torch.compile` breaks the graph once and says where.",
    84: "`register_autograd` takes the operator, its name or an overload.",
    85: "With keyword-only arguments `setup_context` gets them as `keyword_only_inputs`.",
    86: "Defaults are filled in before `setup_context` sees the inputs.",
    87: "`ctx` saves tensors and attributes, and knows `needs_input_grad`.",
    88: "Gradients may be returned for all parameters or for those that were given.",
    89: "A wrong number of gradients raises “incorrect number of gradients”, with both numbers.",
    90: "`register_autograd` works with `lib=` for operators made with `define`.",
    91: "First and second gradients of torch's sample operators pass `gradcheck`.",
    92: "`register_vmap` takes the operator, its name or an overload.",
    93: "A batching rule gets `info`, `in_dims` and every argument, and returns outputs and their axes.",
    94: "Axes in, axes out and nesting are honoured; registering again replaces.",
    95: "vmap of torch's sample operators equals a loop, and without a rule it is one.",
    96: "Under autocast floating inputs are cast, those in lists too.",
    97: "`register_autocast` may be called again, for the same device or another.",
    98: "A rule for a dispatch mode runs in place of the mode's own handler.",
    99: "`get_kernel(op, key).call_boxed(keyset, …)` calls the kernel of a key.",
    100: "An override reaches the original kernel; chains of overrides work.",
    101: "A kernel whose registration is gone raises “invalidated”.",
    102: "No kernel for a key is a `RuntimeError` that names both.",
    103: "`opcheck` takes an operator or overload, `test_utils`, `raise_exception` and tolerances.",
    104: 'It returns a mapping of torch\'s four names to `"SUCCESS"` or an exception.',
    105: "It finds mutation, views, wrong fakes, autograd at a wrong key, differences under AOT.",
    106: "It works with and without gradients and needs no test package.",
    107: "Torch's sample operators pass, save for faults that only further laws look for.",
    108: "A `triton_op` on meta tensors runs its body and launches nothing.",
    109: "Eagerly the kernels run, tuned or not; in compiled code the body takes the operator's place.",
    110: "Tensor subclasses and dynamic grids work in compiled code, without recompiling.",
    111: "In an operator that runs eagerly `wrap_triton` launches at once, by `[grid]` and by `run`.",
    112: "`wrap_triton` passes special keywords on, and `make_fx` traces it.",
    113: "Dynamo does not trace kernels; a kernel may itself use `torch.compile`.",
    114: "Operators that are tagged pt2-compliant stay in the graph; overloads are resolved.",
    115: "Draft export infers a missing fake and reports a wrong one.",
    116: "Exported programs with lists, optionals and tuples are saved and loaded; effects keep their order.",
}


@cache
def named_tests() -> dict[int, list[str]]:
    """Return the tests of each row as ``path::name``, found by their names in the sources."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            match = re.match(r"test_row((?:_\d+)+)_", getattr(node, "name", ""))
            for number in match[1].split("_")[1:] if match else ():
                found.setdefault(int(number), []).append(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return found
