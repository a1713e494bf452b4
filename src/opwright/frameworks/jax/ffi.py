"""Host kernels as XLA FFI targets of a stable name, through the optional extra ``tvm-ffi``.

* The extra imports torch where torch is installed, so it is imported at the first lowering, never before.
* A target is registered once in a process; its body finds the operator's kernel by what the attribute
  ``call`` says, so that one target serves every combination of static arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


class Target:
    pass


def usable(dtypes: Sequence[Any]) -> bool:
    """Return whether the extra is installed and takes arrays of these dtypes."""
    return False


def through_target(plan: Any, target: Target, shapes: Sequence[jax.ShapeDtypeStruct]) -> Any:
    raise NotImplementedError
