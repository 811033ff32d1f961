"""The trained weights: one flat float32 array, the gradient beside it, and the optimizer that moves it.

Parameters and gradients of the model are views into the flat arrays, so adding them over ranks, clipping and stepping
are single operations. A model that computes in bfloat16 with all weights trained keeps its own rounded copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agent_lightning.errors import CheckpointError
from agent_lightning.learner.learner import LearnerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class Weights:
    """`sums` holds the gradient, then `extra` further numbers that travel with it over the ranks."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: LearnerConfig, extra: int) -> None:
        self._parameters = dict(parameters)
        size = sum(parameter.numel() for parameter in self._parameters.values())
        device = next(iter(self._parameters.values())).device
        self.flat = nn.Parameter(torch.empty(size, dtype=torch.float32, device=device))
        self.sums = torch.zeros(size + extra, dtype=torch.float32, device=device)
        self.gradient, self.extra = self.sums[:size], self.sums[size:]
        self.flat.grad = self.gradient
        self.optimizer = torch.optim.AdamW(
            [self.flat],
            betas=config.adam_betas,
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._max_norm = config.max_grad_norm
        self._views = self._bind()

    def _bind(self) -> dict[str, Tensor]:
        """Move every parameter into the flat array; gives the float32 view of each by name."""
        views, offset = {}, 0
        for name, parameter in self._parameters.items():
            view = self.flat.detach()[offset : offset + parameter.numel()].view(parameter.shape)
            grad = self.gradient[offset : offset + parameter.numel()].view(parameter.shape)
            view.copy_(parameter.detach())
            if parameter.dtype == torch.float32:
                parameter.data, parameter.grad = view, grad
            else:
                parameter.register_post_accumulate_grad_hook(_moving_into(grad))
            views[name] = view
            offset += parameter.numel()
        return views

    def clear(self) -> None:
        self.sums.zero_()

    def step(self, rate: float) -> float:
        """Clip the gradient, take one AdamW step; gives the norm before clipping."""
        norm = self.norm()
        self.gradient.mul_(min(1.0, self._max_norm / (norm + 1e-6)))
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self._show()
        return norm

    def norm(self) -> float:
        """Euclidean norm of the gradient; NaN or infinite where any part of it is."""
        return float(torch.linalg.vector_norm(self.gradient))

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, copied, on the CPU."""
        return {name: view.to("cpu", copy=True) for name, view in self._views.items()}

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's state by "moment.name", copied, on the CPU, and the count of steps under "step"."""
        state = self.optimizer.state.get(self.flat, {})
        moments = {"step": torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).cpu().reshape(1).clone()}
        for moment in MOMENTS:
            flat = state.get(moment, torch.zeros_like(self.gradient))
            moments |= {f"{moment}.{name}": part.to("cpu", copy=True) for name, part in self._parts(flat)}
        return moments

    def take_up(self, tensors: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """The reverse of `tensors` and `moments`. Raises CheckpointError before anything has changed."""
        _check_shapes(self._views, tensors)
        if surplus := sorted(tensors.keys() - self._views.keys()):
            raise CheckpointError(
                f"the checkpoint holds {len(surplus)} weights that are not trained here, {surplus[0]!r} among them: "
                "was it written with other lora_layers?"
            )
        for moment in MOMENTS:
            _check_shapes({f"{moment}.{name}": view for name, view in self._views.items()}, moments)
        for name, view in self._views.items():
            view.copy_(tensors[name])
        state: dict[str, Any] = {"step": moments["step"].reshape(()).clone()}
        for moment in MOMENTS:
            state[moment] = torch.empty_like(self.gradient)
            for name, part in self._parts(state[moment]):
                part.copy_(moments[f"{moment}.{name}"])
        self.optimizer.state[self.flat] = state
        self._show()

    def _parts(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        sizes = [view.numel() for view in self._views.values()]
        pieces = zip(self._views.items(), flat.split(sizes), strict=True)
        return [(name, part.view(view.shape)) for (name, view), part in pieces]

    def _show(self) -> None:
        """Round the float32 weights into the copies that a bfloat16 model computes with."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter.dtype != torch.float32:
                    parameter.copy_(self._views[name])


def _moving_into(grad: Tensor) -> Any:
    def move(parameter: Tensor) -> None:
        grad.add_(parameter.grad)  # type: ignore[arg-type]
        parameter.grad = None

    return move


def _check_shapes(wanted: Mapping[str, Tensor], came: Mapping[str, Tensor]) -> None:
    for name, view in wanted.items():
        if name not in came or came[name].shape != view.shape:
            shape = tuple(came[name].shape) if name in came else "nothing"
            raise CheckpointError(
                f"the checkpoint holds {shape} for {name!r}, {tuple(view.shape)} is wanted: "
                "was it written for another model, lora_rank or lora_layers?"
            )
