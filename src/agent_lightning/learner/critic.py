"""The critic: one linear layer in float32 on the policy's last hidden state, with an optimizer of its own.

V is the value of a state: it is read where the next token is predicted. It starts at 0 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agent_lightning.errors import CheckpointError
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.weights import Weights

WEIGHT = "weights."  # before the names of tensors in what is saved, beside the optimizer's moments


class Critic:
    def __init__(self, model: Any, config: LearnerConfig) -> None:
        width = model.config.get_text_config().hidden_size
        self._head = nn.Linear(width, 1, dtype=torch.float32, device=next(model.parameters()).device)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._rate = config.value_learning_rate
        self.weights = Weights(dict(self._head.named_parameters()), config, 0)

    def values(self, hidden_PD: Tensor) -> Tensor:
        """(P,), float32, in units of what steps are paid."""
        return self._head(hidden_PD.float()).squeeze(-1)

    def step(self) -> None:
        self.weights.step(self._rate)

    def state(self) -> dict[str, Tensor]:
        """Weights and the optimizer's moments, copied, on the CPU."""
        own = {f"{WEIGHT}{name}": tensor for name, tensor in self.weights.tensors().items()}
        return {**own, **self.weights.moments()}

    def take_up(self, state: Mapping[str, Tensor] | None) -> None:
        """The reverse. Raises CheckpointError before anything has changed."""
        if state is None:
            raise CheckpointError("the checkpoint holds no critic: it was written by an algorithm that needs none")
        own = {name.removeprefix(WEIGHT): tensor for name, tensor in state.items() if name.startswith(WEIGHT)}
        self.weights.take_up(own, state)
