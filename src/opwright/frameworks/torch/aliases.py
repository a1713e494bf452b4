"""Which tensors share memory: torch's own private tests, and what stands in where a release lacks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_core: Any = torch._C  # noqa: SLF001  (like private.py, this file has private names of torch)


def _stand_in_alias(args: Any, kwargs: Any, outputs: Any) -> bool:
    seen = list(_storages((*args, *kwargs.values())))
    for storage in _storages(outputs):
        if storage in seen:
            return True
        seen.append(storage)
    return False


def _storages(values: Any) -> Iterator[int]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _storages(value)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            yield value.untyped_storage()._cdata  # noqa: SLF001


def _alias_test() -> Callable[..., bool]:
    """Return torch's own test; that of torch 2.9 raises where a tensor has no storage, as sparse ones."""
    test: Callable[..., bool] = getattr(_core, "_any_output_is_alias_to_input_or_output", _stand_in_alias)

    def stored(args: Any, kwargs: Any, outputs: Any) -> bool:
        try:
            return test(args, kwargs, outputs)
        except NotImplementedError:
            return _stand_in_alias(args, kwargs, outputs)

    try:
        test((torch.empty(0).to_sparse(),), {}, ())
    except NotImplementedError:
        return stored
    return test


any_alias = _alias_test()  # it misses what has no address in torch 2.9, as on the meta device
is_alias_of: Any = getattr(_core, "_is_alias_of", lambda one, other: any_alias((one,), {}, (other,)))
