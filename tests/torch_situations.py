"""Situations of every kind that a call of an operator can be in, and what is compared of them.

A situation takes ``call``, a function of one tensor, and returns what is compared; it makes its own tensors,
so that the direct call and torch's dispatcher can each be given fresh ones.
"""

from __future__ import annotations

import threading
import warnings

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Subclass(Tensor):
    """A subclass with all of torch's defaults."""


class Disabled(Tensor):
    """A subclass that ``has_torch_function`` does not see."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Functions(TorchFunctionMode):
    """Notes the functions that it sees, without the operator's own name."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += "situations" in str(func)
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    """Notes whether it sees the operator."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += "situations" in str(func)
        return func(*args, **(kwargs or {}))


def base(*shape, dtype=torch.float32):
    return torch.linspace(0.5, 2.0, max(1, int(np.prod(shape)))).to(dtype).reshape(shape)


def _plain(make):
    return lambda call: call(make())


def _under(context, make=lambda: base(3)):
    def situation(call):
        with context():
            return call(make())

    return situation


def _backward(make):
    def situation(call):
        x = make().requires_grad_()
        y = call(x * 1)
        y.sum().backward()
        return y, x.grad

    return situation


def _double_backward(call):
    x = base(3).double().requires_grad_()
    y = call(x * 1)
    (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    return y, first, *torch.autograd.grad(first.sum(), x)


def _leaf(call):
    return call(base(3).requires_grad_())


def _parameter(call):
    return call(torch.nn.Parameter(base(3)))


def _inference_tensor():
    with torch.inference_mode():
        return base(3)


def _normal_in_inference_mode(call):
    x = base(3)
    with torch.inference_mode():
        return call(x)


def _mode(kind):
    def situation(call):
        with kind() as mode:
            out = call(base(3))
        return out, mode.seen

    return situation


def _fake(call):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.ones(3)
        del mode
        return call(x)


def _fake_input(call):
    from torch._subclasses import FakeTensorMode

    return call(FakeTensorMode().from_tensor(base(3)))


def _make_fx(call):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: call(x * 1))(base(3))
    nodes = [str(node.target) for node in graph.graph.nodes]
    return sum("situations" in name for name in nodes), graph(base(3) + 1)


def _traced(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: call(x * 1), base(3), check_trace=False)
    return traced(base(3) + 1), "situations" in str(traced.graph)


def _functionalize(call):
    return torch.func.functionalize(lambda x: call(x * 1))(base(3))


def _vmap(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.vmap(lambda x: call(x * 1))(base(4, 3))


def _grad(call):
    return torch.func.grad(lambda x: call(x * 1).sum())(base(3))


def _jvp(call):
    return torch.func.jvp(lambda x: call(x * 1), (base(3),), (torch.ones(3),))


def _captured(call):
    captured = base(3)
    return torch.func.grad(lambda x: (call(captured) * x).sum())(base(3))


def _captured_jvp(call):
    captured = base(3)
    return torch.func.jvp(lambda x: call(captured) * x, (base(3),), (torch.ones(3),))


def _dead(call):
    left = []
    torch.func.grad(lambda x: (left.append(x * 1), x.sum())[1])(base(3))
    return call(left[0])


def _dual(call):
    import torch.autograd.forward_ad as fwad

    with fwad.dual_level():
        return tuple(fwad.unpack_dual(call(fwad.make_dual(base(3), torch.ones(3)))))


def _in_dual_level(call):
    import torch.autograd.forward_ad as fwad

    with fwad.dual_level():
        return call(base(3))


def _profiled(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = call(base(3))
    return out, sum("situations" in event.name for event in profile.events())


def _checkpoint(call):
    from torch.utils.checkpoint import checkpoint

    x = base(3).requires_grad_()
    y = checkpoint(lambda x: call(x * 1), x, use_reentrant=False)
    y.sum().backward()
    return y, x.grad


def _saved_hooks(call):
    packed = []
    x = base(3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        y = call(x * 1)
    y.sum().backward()
    return y, x.grad, len(packed)


def _anomaly(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            return _backward(lambda: base(3))(call)


def _thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call(base(3))))
    thread.start()
    thread.join()
    return found


def _batched_backward(call):
    x = base(3).requires_grad_()
    y = call(x * 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


def _mkldnn():
    return base(3).to_mkldnn()


def _quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(base(3), 0.1, 0, torch.quint8)


def _default_device(call):
    torch.set_default_device("cpu")
    try:
        return call(base(3))
    finally:
        torch.set_default_device(None)


def _csr():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(3).to_sparse_csr()


SITUATIONS = {
    "plain": _plain(lambda: base(3)),
    "float64": _plain(lambda: base(3, dtype=torch.float64)),
    "bfloat16": _plain(lambda: base(3, dtype=torch.bfloat16)),
    "int": _plain(lambda: base(3, dtype=torch.int64)),
    "bool": _plain(lambda: base(3, dtype=torch.bool)),
    "complex": _plain(lambda: base(3, dtype=torch.complex64)),
    "zero dimensions": _plain(base),
    "empty": _plain(lambda: torch.ones(0, 3)),
    "expanded": _plain(lambda: base(1).expand(3)),
    "transposed": _plain(lambda: base(2, 3).t()),
    "strided": _plain(lambda: base(6)[::2]),
    "conjugated": _plain(lambda: base(3, dtype=torch.complex64).conj()),
    "negated": _plain(lambda: (base(3) + 1j).conj().imag),
    "zero tensor": _plain(lambda: torch._efficientzerotensor(3)),
    "sparse": _plain(lambda: base(3).to_sparse()),
    "sparse rows": _plain(_csr),
    "mkldnn": _plain(_mkldnn),
    "quantized": _plain(_quantized),
    "meta": _plain(lambda: torch.ones(3, device="meta")),
    "parameter": _parameter,
    "buffer": _plain(lambda: torch.nn.Buffer(base(3))),
    "subclass": _plain(lambda: base(3).as_subclass(Subclass)),
    "disabled subclass": _plain(lambda: base(3).as_subclass(Disabled)),
    "leaf": _leaf,
    "view of a leaf": lambda call: call(base(3).requires_grad_()[:2]),
    "not a leaf": lambda call: call(base(3).requires_grad_() * 1),
    "int that has no gradient": lambda call: call((base(3).requires_grad_() * 2).long()),
    "backward": _backward(lambda: base(3)),
    "backward, strided": _backward(lambda: base(6)[::2]),
    "backward, float64": _backward(lambda: base(3).to(torch.float64)),
    "double backward": _double_backward,
    "batched backward": _batched_backward,
    "no grad": _under(torch.no_grad),
    "leaf, no grad": _under(torch.no_grad, lambda: base(3).requires_grad_()),
    "grad enabled in no grad": lambda call: _under(torch.no_grad)(lambda _: _under(torch.enable_grad)(call)),
    "inference mode": _under(torch.inference_mode),
    "leaf, inference mode": _under(torch.inference_mode, lambda: base(3).requires_grad_()),
    "normal tensor in inference mode": _normal_in_inference_mode,
    "inference tensor": _plain(_inference_tensor),
    "autocast": _under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "leaf, autocast": _under(
        lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: base(3).requires_grad_()
    ),
    "autocast off in autocast": _under(
        lambda: torch.autocast("cpu", enabled=False),
    ),
    "function mode": _mode(Functions),
    "dispatch mode": _mode(Dispatches),
    "device context": _under(lambda: torch.device("cpu")),
    "default device": _default_device,
    "fake mode": _fake,
    "fake tensor": _fake_input,
    "make_fx": _make_fx,
    "jit.trace": _traced,
    "functionalize": _functionalize,
    "vmap": _vmap,
    "grad": _grad,
    "jvp": _jvp,
    "captured by grad": _captured,
    "captured by jvp": _captured_jvp,
    "dead wrapper": _dead,
    "dual": _dual,
    "in a dual level": _in_dual_level,
    "profiler": _profiled,
    "checkpoint": _checkpoint,
    "saved tensor hooks": _saved_hooks,
    "anomaly mode": _anomaly,
    "another thread": _thread,
}


def calls_of(op):
    """Return the operator and its path through torch's dispatcher, each as a function of one tensor."""
    slow = op._record.lowered["torch"].fast.slow
    mutates = bool(op.schema.mutated)
    defaults = [argument.default.value for argument in op.schema.arguments[1:]]

    def direct(x):
        out = op(x)
        return x if mutates else out

    def dispatched(x):
        out = slow(x, *defaults)
        return x if mutates else out

    return direct, dispatched


def observed(situation, call):
    """Return what a situation's result looks like, or its error."""
    try:
        return describe(situation(call))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is compared)
        return type(error).__name__, str(error).splitlines()[0]


def describe(value):
    if isinstance(value, Tensor):
        dense = value
        try:
            if value.layout is torch.strided and value.device.type == "cpu":
                dense = value.detach().resolve_conj().resolve_neg().tolist()
            else:
                dense = tuple(value.shape)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            dense = type(error).__name__
        return (
            type(value).__name__, str(dense), str(value.dtype), value.requires_grad, value.grad_fn is None,
            value.is_leaf, value.is_inference(), str(value.layout), str(value.device), tuple(value.shape),
            None if value.is_inference() else value._version > 0,
        )  # fmt: skip
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    return value
