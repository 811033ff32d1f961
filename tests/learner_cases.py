"""Samples and tiny models for tests of the learner."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_lightning.learner.algorithms import algorithm_of
from agent_lightning.learner.entries import entries_of
from agent_lightning.learner.learner import LearnerConfig, settled
from agent_lightning.learner.pack import Pass
from agent_lightning.learner.update import TorchLearner
from agent_lightning.models.load import load_model
from agent_lightning.models.tiny import write_tiny
from agent_lightning.records import Batch, Sample

torch.set_num_threads(1)
VOCABULARY = 21


@cache
def tiny_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tiny-")) / "tiny"
    folder.mkdir()
    write_tiny(folder)
    return folder


def tiny_model() -> Any:
    return load_model(tiny_folder())


def learner(model: Any | None = None, ranks: Any = None, **settings: Any) -> TorchLearner:
    chosen = {"dtype": "float32", "lora_rank": 4, "lora_alpha": 8.0, **settings}
    return TorchLearner(model or tiny_model(), LearnerConfig(**chosen), policy="p", ranks=ranks)


def sample(tokens: Sequence[int], trained: Sequence[int], advantage: float = 1.0, **given: Any) -> Sample:
    fields: dict[str, Any] = {
        "rollout_id": "r",
        "group_id": "g",
        "tokens": array("i", tokens),
        "trained": array("b", trained),
        "logprobs": array("f", [-3.0 * mark for mark in trained]),
        "advantages": array("f", [advantage * mark for mark in trained]),
        "temperature": 1.0,
        "rollout_tokens": max(1, sum(trained)),
        "version": 0,
    }
    return Sample(**{**fields, **given})


def batch(samples: Sequence[Sample], rollouts: int | None = None) -> Batch:
    return Batch(policy="p", samples=tuple(samples), rollouts=rollouts or len(samples))


def random_samples(seed: int, groups: int = 3, size: int = 4) -> list[Sample]:
    """Groups that share prompts, siblings that often sample alike, turns with untrained tool results between."""
    rng = np.random.default_rng(seed)
    found = []
    common = rng.integers(0, VOCABULARY, rng.integers(0, 6)).tolist()
    for group in range(groups):
        prompt = common + rng.integers(0, VOCABULARY, rng.integers(1, 12)).tolist()
        for sibling in range(size):
            tokens, trained = list(prompt), [0] * len(prompt)
            for _ in range(rng.integers(1, 4)):
                said, heard = rng.integers(1, 6), rng.integers(0, 4)
                tokens += rng.integers(0, 3, said).tolist() + rng.integers(0, 2, heard).tolist()
                trained += [1] * int(said) + [0] * int(heard)
            floats = [float(x) for x in rng.normal(size=len(tokens))]
            found.append(
                sample(
                    tokens,
                    trained,
                    rollout_id=f"{group}.{sibling}",
                    group_id=str(group),
                    logprobs=array(
                        "f", [-abs(x) - 2 if mark else 0.0 for x, mark in zip(floats, trained, strict=True)]
                    ),
                    advantages=array("f", [x * mark for x, mark in zip(floats, trained, strict=True)]),
                    temperature=float(rng.choice([1.0, 0.7])),
                    rollout_tokens=sum(trained) + int(rng.integers(0, 3)),
                )
            )
    return found


def shaken(made: TorchLearner, seed: int = 0) -> TorchLearner:
    """Give the trained weights values that are not the start's, so that B = 0 hides nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for view in made._weights._views.values():
            view.add_(torch.randn(view.shape, generator=generator) * 0.1)
    return made


def gradient(made: TorchLearner, samples: Sequence[Sample], rollouts: int | None = None, **given: Any) -> torch.Tensor:
    """The gradient sums of a batch, the critic's behind the policy's, in float64, without a step."""
    whole = replace(batch(samples, rollouts), **given)
    made._sum(made._lesson(whole, 1), frozenset(whole.groups))
    found = [made._weights.gradient]
    if made._critic is not None:
        found.append(made._critic.weights.gradient)
    return torch.cat(found).double()


def passes_of(made: TorchLearner, samples: Sequence[Sample]) -> list[Pass]:
    entries = entries_of(batch(samples), settled(made.config, algorithm_of(made.config.algorithm)))
    return made._plan(entries, range(len(samples)))


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Distance of two gradients relative to their norm."""
    return float((a - b).norm() / max(float(b.norm()), 1e-12))
