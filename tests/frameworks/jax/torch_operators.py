"""Rows of the matrix with torch kernels: rules of flavour ``torch`` run on the host, first order only."""

from __future__ import annotations

import jax.numpy as jnp
import torch

import opwright as ow
from frameworks.jax.operators import X, kind, saving, xp_of


@ow.custom_op("jaxm::torch_kernel", mutates_args=())
def torch_kernel(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


torch_kernel.register_fake(lambda x: x.new_empty(x.shape))
torch_kernel.register_autograd(lambda ctx, grad: grad * ctx.saved_tensors[0].cos(), setup_context=saving)
kind(
    "torch_rules",
    lambda x: (jnp.sin(x),),
    X,
    fn=lambda x: (torch_kernel(x),),
    refuses={"higher": "is of flavour torch", "forward": "is of flavour torch"},
)


@ow.custom_op("jaxm::torch_ported", mutates_args=())
def torch_ported(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


torch_ported.register_fake(lambda x: ow.empty_like(x), flavour="array_api")
torch_ported.register_autograd(
    lambda ctx, grad: grad * xp_of(grad).cos(ctx.saved_tensors[0]), setup_context=saving, flavour="array_api"
)
kind("torch_kernel", lambda x: (jnp.sin(x),), X, fn=lambda x: (torch_ported(x),))
