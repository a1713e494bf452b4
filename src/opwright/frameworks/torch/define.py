"""Defining an overload in torch's dispatcher, and taking it out again.

* One FRAGMENT library for a definition: torch can only destroy a Library whole and refuses a second
  definition of a name.
* One IMPL library for each dispatch key that has a kernel of ours, so that each can be exchanged alone.
"""

from __future__ import annotations

from typing import Any

import torch

from opwright.frameworks.torch import backend
from opwright.frameworks.torch.lowered import Lowered
from opwright.keys import DEFAULT
from opwright.overload import OpOverload


def attach(record: OpOverload) -> Lowered:
    """Define a record's overload in torch's dispatcher and install its kernels."""
    namespace = record.name.partition("::")[0]
    fragment = torch.library.Library(namespace, "FRAGMENT")
    state = Lowered(record, fragment)
    tags = tuple(getattr(torch.Tag, name) for name in record.tags if hasattr(torch.Tag, name))
    fragment.define(state.op_name + str(record.schema.signature), tags=tags)
    packet = getattr(getattr(torch.ops, namespace), record.name.partition("::")[2])
    state.native = getattr(packet, record.overload or "default")
    record.lowered["torch"] = state
    install(state, DEFAULT, backend.make_kernel(state))
    return state


def install(state: Lowered, key: str, kernel: Any, *, with_keyset: bool = False) -> None:
    """Put a kernel at a dispatch key, in a library of its own."""
    library = torch.library.Library(state.record.name.partition("::")[0], "IMPL")
    library.impl(state.op_name, kernel, key, with_keyset=with_keyset)
    state.installed[key] = library


def detach(state: Lowered) -> None:
    """Take the overload out of torch's dispatcher."""
    for library in state.installed.values():
        library._destroy()  # noqa: SLF001
    state.fragment._destroy()  # noqa: SLF001
