"""Defining an overload in torch's dispatcher, keeping its kernels there in step, and taking it out again.

* One FRAGMENT library for a definition: torch can only destroy a Library whole and refuses a second
  definition of a name.
* What a change asks for goes into one IMPL library; where one of its kernels must go, it goes whole, and what
  is still wanted of it is installed again.
* Kernels read the record's rules when they are called; only which keys have one depends on the rules.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.library import Library

from opwright.errors import DuplicateError, layout
from opwright.frameworks.torch import (
    autocast,
    autograd,
    backend,
    eager,
    fake,
    fingerprint,
    foreign_keys,
    held,
    mutation,
    opaque,
    private,
    retired,
    returned,
    torch_dispatch,
    triton,
    vmap,
    watched,
)
from opwright.frameworks.torch.lowered import Lowered
from opwright.frameworks.torch.schema_text import torch_signature
from opwright.keys import AUTOCAST_DEVICES, DEFAULT, IMPLICIT, device_of
from opwright.rules.autograd import AutogradRule
from opwright.rules.base import Rule
from opwright.rules.decomposition import DecompositionRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.overload import Kernel, OpOverload

_KEYSET = ("Autograd", "ADInplaceOrView", mutation.FRONT)  # our kernels there get the dispatch key set
_ON_META = (DEFAULT, "CompositeExplicitAutogradNonFunctional", "BackendSelect")
"""Keys whose kernels torch itself runs with meta tensors, where an operator has no fake."""


def attach(record: OpOverload) -> Lowered:
    """Define a record's overload in torch's dispatcher and install its kernels.

    Raises
    ------
    DuplicateError
        If torch has an operator of that name already.
    """
    private.require()
    namespace, _, name = record.name.partition("::")
    state = Lowered(record)
    definition = _definition(record)
    parked = retired.take_over(record.qualname, definition)
    try:
        if parked is None:
            state.fragment = Library(namespace, "FRAGMENT")
            signature, tags = definition
            retired.wait_for_calls(record.qualname, signature)
            state.fragment.define(state.op_name + signature, tags=tags)
        else:
            state.fragment = parked.fragment
        state.native = getattr(getattr(getattr(torch.ops, namespace), name), record.overload or "default")
        record.lowered["torch"] = state
        with retired.covered(parked):
            sync(state)
    except BaseException as error:
        detach(state)
        if "multiple times" in str(error):
            raise _taken(record) from None
        raise
    return state


def _definition(record: OpOverload) -> tuple[str, tuple[Any, ...]]:
    """Return what torch is told of an overload: its signature and tags."""
    tags = (getattr(torch.Tag, name, None) for name in record.tags)
    return torch_signature(record.schema), tuple(tag for tag in tags if tag is not None)


def _taken(record: OpOverload) -> DuplicateError:
    return DuplicateError(
        layout(
            f"operator {record.qualname} is already registered, in torch's own dispatcher",
            registered=held.source_of(record.qualname),
            got=f"a second definition at {record.source}",
            fix="choose another name or overload; kernels and rules can be registered for torch's operator "
            "too",
        )
    )


_READ_WHEN_CALLED = ("fake", "autograd", "jvp", "vmap", "samples")
"""Kinds of rules for which a kernel stands beside every explicit one, whether there is a rule or not."""


def sync(state: Lowered, item: Any = None) -> None:
    """Install the kernels that the record's present kernels and rules ask for, and remove all others.

    ``item`` is what has changed, where only one thing has.
    """
    state.cache = {}  # a new one, not an empty one: see `Lowered.derive`
    sync_opaque(state)
    if (
        {DEFAULT, "fake"} <= state.installed.keys()
        and isinstance(item, Rule)
        and item.kind in _READ_WHEN_CALLED
    ):
        return
    returned.sync(state, attach)
    wanted = _wanted(state)
    gone = [slot for slot in state.installed if slot not in wanted]
    if "fake" in wanted and "fake" not in state.installed:  # torch takes it before a composite kernel only
        gone += [slot for slot in state.installed if slot == IMPLICIT]
    for library in {state.installed[slot] for slot in gone}:
        _drop(state, library)
    missing = {slot: make for slot, make in wanted.items() if slot not in state.installed}
    if missing:
        state.bundle = Library(state.record.name.partition("::")[0], "IMPL")
        try:
            for slot, make in missing.items():
                state.installed[slot] = make()
        finally:
            state.bundle = None


def _drop(state: Lowered, library: Library) -> None:
    """Destroy a library, with every kernel that it holds."""
    for slot in [slot for slot, held_by in state.installed.items() if held_by is library]:
        del state.installed[slot]
    retired.destroy(library)


def sync_opaque(state: Lowered) -> None:
    """Define the operator that runs the record's backward, where that takes one of its own."""
    rule = state.record.rule("autograd")
    if isinstance(rule, AutogradRule) and opaque.is_opaque(rule) and rule not in state.opaque:
        state.opaque[rule] = opaque.opaque_rule(state, rule, attach)


def _wanted(state: Lowered) -> dict[Any, Callable[[], Library]]:
    """Return what must be installed: from a dispatch key, or dispatch class, to what installs it."""
    record = state.record
    composite = _composite(record)
    backends = [DEFAULT] if composite is None else _beside_composite(record)
    wanted: dict[Any, Callable[[], Library]] = {}
    has_fake = record.rule("fake") is not None or _has_meta(record)
    has_fake = has_fake or (composite is None and not _torch_runs_on_meta(record))
    if has_fake:  # first: torch refuses a fake for what it has a composite kernel of
        wanted["fake"] = lambda: _install_fake(state)
    if composite is not None:
        wanted[IMPLICIT] = lambda: _impl(state, IMPLICIT, _implicit_kernel(state))
    for key in backends:
        wanted[key] = partial(_put_backend, state, key)
    explicit = bool(backends)
    if composite is not None and (record.rule("autograd") or record.rule("jvp")):
        wanted["Autograd", IMPLICIT] = lambda: _impl(
            state, "Autograd", _autograd_kernel(state), held.runtime_keys("Autograd")
        )
    elif explicit or has_fake:  # torch takes it on devices where the composite kernel is not what runs
        wanted["Autograd"] = lambda: _impl(state, "Autograd", _autograd_kernel(state), ["Autograd"])
    if explicit or record.rule("vmap") or _has_autograd(record):
        wanted["FuncTorchBatched"] = lambda: _impl(state, "FuncTorchBatched", vmap.make_kernel(state))
        if explicit and vmap.is_random(state):
            wanted[vmap.MODE] = lambda: _impl(state, vmap.MODE, vmap.make_kernel(state))
    else:  # torch decomposes its own operators there, and only those
        wanted["FuncTorchBatched", IMPLICIT] = lambda: _impl(
            state, "FuncTorchBatched", _implicit_kernel(state)
        )
    if state.mutated and explicit:
        wanted[mutation.COUNTED] = lambda: _impl(state, mutation.COUNTED, mutation.make_kernel(state))
        for key in mutation.BITS:
            wanted[key] = partial(_put_bits, state, key)
        if mutation.FRONT in state.installed or mutation.make_front_kernel(state) is not None:
            wanted[mutation.FRONT] = partial(_put_front, state)
    for rule in record.rules_of("autocast"):
        device = str(rule.slot)
        if device in AUTOCAST_DEVICES:  # no tensor is on any other, where frameworks have it
            key = autocast.key_for(rule)  # type: ignore[arg-type]
            wanted[key] = partial(_put_autocast, state, key, device)
    for rule in record.rules_of("torch_dispatch"):
        cls: Any = rule.slot
        wanted[cls] = partial(torch_dispatch.install, state, cls)
    mode = private.functional_mode()
    if state.stand_in is not None and mode not in wanted:
        wanted["returned"] = partial(returned.install, state, state.stand_in)
    body = record.rule("decomposition")
    if isinstance(body, DecompositionRule) and mode not in wanted:
        wanted["decomposition", body] = lambda: triton.install(state, body)
    return foreign_keys.with_authors(state, wanted)


def _composite(record: OpOverload) -> Kernel | None:
    """Return the kernel that torch takes apart on every device that has none of its own, or None."""
    kernel = record.select_kernel("torch", "")
    is_own = kernel is not None and kernel.key == IMPLICIT and kernel.flavour in eager.OWN_FLAVOURS
    return kernel if is_own else None


def _beside_composite(record: OpOverload) -> list[str]:
    """Return the keys of the devices on which another kernel than the composite one runs."""
    keys = dict.fromkeys(kernel.key for kernel in record.enabled_kernels() if foreign_keys.is_backend(kernel))
    devices = [(key, device_of(key)) for key in keys if key != "Meta"]
    found = [(key, record.select_kernel("torch", device)) for key, device in devices if device is not None]
    return [key for key, kernel in found if kernel is not None and kernel.key == key]


def _has_meta(record: OpOverload) -> bool:
    kernel = record.kernel("Meta")
    return kernel is not None and kernel.enabled and foreign_keys.is_backend(kernel)


def _torch_runs_on_meta(record: OpOverload) -> bool:
    """Return whether a kernel stands in torch's dispatcher where meta tensors come by too."""
    kernels = () if record.decorated else record.enabled_kernels()
    return any(
        kernel.key in _ON_META and not kernel.falls_through and not foreign_keys.is_backend(kernel)
        for kernel in kernels
    )


def _has_autograd(record: OpOverload) -> bool:
    """Return whether an author put a kernel where gradients are recorded: a batch comes by there too."""
    return any(kernel.key.startswith("Autograd") for kernel in record.enabled_kernels())


def _put_backend(state: Lowered, key: str) -> Library:
    return _impl(state, key, backend.make_kernel(state))


def _put_bits(state: Lowered, key: str) -> Library:
    return _impl(state, key, mutation.make_bits_kernel(state, key))


def _put_front(state: Lowered) -> Library:
    # Made now: what it goes on to is torch's own once a library that held it is gone.
    return _impl(state, mutation.FRONT, mutation.make_front_kernel(state))


def _put_autocast(state: Lowered, key: str, device_type: str) -> Library:
    return _impl(state, key, autocast.make_kernel(state, device_type))


def _impl(
    state: Lowered, key: str, kernel: Callable[..., Any] | None, keys: list[str] | None = None
) -> Library:
    library = state.bundle
    assert library is not None  # noqa: S101  (what is wanted is installed in one go)
    for one in keys or held.concrete_keys(state.record.qualname, key):
        watched.impl(library, state.op_name, kernel, one, with_keyset=key in _KEYSET)
    return library


def _install_fake(state: Lowered) -> Library:
    library = state.bundle
    assert library is not None  # noqa: S101  (the same)
    qualname = f"{library.ns}::{state.op_name}"
    private.register_fake(library, qualname, fake.make_kernel(state), state.record.source)
    return library


def _autograd_kernel(state: Lowered) -> Callable[..., Any]:
    if state.record.non_differentiable:
        return autograd.make_constant_kernel(state)
    if "out" in state.record.tags:
        return autograd.make_out_kernel(state)
    return autograd.make_kernel(state, eager.make)


def _implicit_kernel(state: Lowered) -> Callable[..., Any]:
    record, apply, flat = state.record, state.apply, state.flat

    def newest() -> Kernel:
        # A call that came before another kernel covered it may still be on its way here.
        kernel = _composite(record) or record.kernel(IMPLICIT)
        assert kernel is not None  # noqa: S101  (it stands only while there is one)
        return kernel

    def implicit(*args: Any, **kwargs: Any) -> Any:
        if private.dispatch_mode_count():
            fingerprint.publish()  # as where a fake runs: this may be traced
        kernel = state.cache.get(IMPLICIT) or state.derive(IMPLICIT, newest)
        return apply(kernel.fn, flat(args, kwargs))

    return implicit


def detach(state: Lowered, *, redefined: bool = False) -> None:
    """Take the overload out of torch's dispatcher, with the operators that run its backwards.

    Where it is being redefined and other threads may be calling it, what the new definition covers goes
    only then.
    """
    for inner in state.inner:
        detach(inner)
    if redefined and state.fragment is not None and all(_is_plain(slot) for slot in state.installed):
        libraries = list(dict.fromkeys(state.installed.values()))
        if retired.park(state.record.qualname, _definition(state.record), state.fragment, libraries):
            return
    if state.fragment is not None:  # first, so that no further call comes
        retired.undefine(state.record.qualname, _definition(state.record)[0], state.fragment)
    for library in set(state.installed.values()):
        _drop(state, library)


def _is_plain(slot: Any) -> bool:
    """Return whether what is installed is a kernel or a fake, which others may cover."""
    return isinstance(slot, str) and slot != "returned"
