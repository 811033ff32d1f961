"""LoRA beside a pristine base: y = W x + (alpha / rank) B A x (Hu et al. 2021, arXiv:2106.09685, section 4.1).

A (rank, in) and B (out, rank) are float32 whatever the base computes in; the base is never written. Engine and learner
may share one base: `shared_skeleton` gives a second module tree over the same tensors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agent_lightning.errors import ModelError
from agent_lightning.models.adapter import Adapter


class LoraLinear(nn.Module):
    """A linear layer with its two float32 matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.active = True  # False: the pristine base, which serves as the reference policy
        bound = 1.0 / math.sqrt(base.in_features)  # kaiming uniform with a = sqrt(5), as in the paper's own code
        start = torch.empty(rank, base.in_features, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(start.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return self.base(x)
        return _BesideBase.apply(x, self.base.weight, self.base.bias, self.a, self.b, self.scale)


class _BesideBase(torch.autograd.Function):
    """W x + bias + scale B (A x): base product in the model's dtype, the rest in float32.

    Written by hand because autograd would keep a float32 copy of every input.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        inner = functional.linear(x.float(), a)
        y = functional.linear(x, weight, bias)
        y += functional.linear(inner, b).mul_(scale).to(y.dtype)
        ctx.save_for_backward(x, weight, a, b, inner)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, inner = ctx.saved_tensors
        grad_y = grads[0].reshape(-1, weight.shape[0])
        scaled = grad_y.float() * ctx.scale
        grad_inner = scaled @ b
        grad_b = scaled.T @ inner.reshape(-1, inner.shape[-1])
        grad_a = grad_inner.T @ x.reshape(-1, x.shape[-1]).float()
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_y @ weight).add_((grad_inner @ a).to(x.dtype)).view(x.shape)
        return grad_x, None, None, grad_a, grad_b, None


def shared_skeleton(model: Any) -> Any:
    """A second module tree over the same parameters and buffers: wrapping it leaves `model` as it is."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared)


def adaptable(model: Any, last: int | None = None) -> dict[str, nn.Linear]:
    """The linear layers inside the decoder blocks, or inside the `last` ones of each stack, by module path.

    The embedding and the output head stay out. Raises ModelError, also where there are fewer blocks than `last`.
    """
    blocks = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    stacks = {name: m for name, m in blocks if any(isinstance(leaf, nn.Linear) for leaf in m.modules())}
    outermost = [n for n in stacks if not any(n.startswith(f"{other}.") for other in stacks if other != n)]
    if last is not None and (few := [n for n in outermost if len(stacks[n]) < last]):
        raise ModelError(f"lora_layers is {last}: {few[0]} of {type(model).__name__} has {len(stacks[few[0]])} blocks")
    found = {
        f"{stack}.{path}": leaf
        for stack in outermost
        for path, leaf in stacks[stack].named_modules()
        if type(leaf) is nn.Linear and (last is None or int(path.split(".")[0]) >= len(stacks[stack]) - last)
    }
    if not found:
        raise ModelError(f"{type(model).__name__} has no linear layers in a stack of blocks: use lora_rank = 0")
    return found


def attach_lora(model: Any, rank: int, alpha: float, seed: int = 0, last: int | None = None) -> dict[str, LoraLinear]:
    """Wrap every adaptable layer of `model` in place; gives the wrappers by module path. A depends on `seed` alone.

    With `last`, backward passes end where the first of the last blocks begins.
    """
    generator = torch.Generator().manual_seed(seed)
    wrapped = {path: LoraLinear(leaf, rank, alpha, generator) for path, leaf in adaptable(model, last).items()}
    for path, layer in wrapped.items():
        parent, name = path.rsplit(".", 1)
        setattr(model.get_submodule(parent), name, layer)
    return wrapped


def lora_layers(model: Any) -> dict[str, LoraLinear]:
    return {path: module for path, module in model.named_modules() if isinstance(module, LoraLinear)}


def base_linear(module: nn.Module) -> nn.Linear:
    """The pristine layer of a wrapped or plain one."""
    base = module.base if isinstance(module, LoraLinear) else module
    assert isinstance(base, nn.Linear)
    return base


@contextmanager
def adapter_off(model: Any) -> Iterator[None]:
    """Within the block the model is its pristine base."""
    layers = lora_layers(model).values()
    for layer in layers:
        layer.active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.active = True


def export_adapter(model: Any, *, policy: str, version: int, rank: int, alpha: float) -> Adapter:
    """Copy the matrices out."""
    matrices = {path: (_copied(layer.a), _copied(layer.b)) for path, layer in lora_layers(model).items()}
    return Adapter(policy=policy, version=version, rank=rank, alpha=alpha, matrices=matrices)


def load_adapter(model: Any, matrices: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy matrices into the wrapped layers. Raises ModelError when paths or shapes differ."""
    layers = lora_layers(model)
    if missing := sorted(layers.keys() ^ matrices.keys()):
        raise ModelError(f"the adapter and the model disagree about {len(missing)} layers, {missing[0]!r} among them")
    for path, (a, b) in matrices.items():
        layer = layers[path]
        if a.shape != tuple(layer.a.shape) or b.shape != tuple(layer.b.shape):
            raise ModelError(f"{path}: A {a.shape} and B {b.shape} came, {tuple(layer.a.shape)} and "
                             f"{tuple(layer.b.shape)} were wanted; is lora_rank the same?")  # fmt: skip
        with torch.no_grad():
            layer.a.copy_(torch.from_numpy(np.ascontiguousarray(a)))
            layer.b.copy_(torch.from_numpy(np.ascontiguousarray(b)))


def _copied(parameter: Tensor) -> np.ndarray:
    return parameter.detach().to("cpu", torch.float32, copy=True).numpy()
