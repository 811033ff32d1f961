"""Every algorithm learns a copy task on the tiny model from rewards alone, credit, batch and update in process."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agent_lightning.credit import CreditConfig, assign
from agent_lightning.learner.algorithms import algorithm_of, algorithms
from agent_lightning.learner.update import TorchLearner
from agent_lightning.records import Batch, Trajectory, Transition
from agent_lightning.trainer import reading
from learner_cases import learner
from lived import rollout

TASKS, SIBLINGS = 4, 12
DIGITS_G = torch.arange(4, 4 + TASKS)
PROMPTS_GL = torch.stack([torch.full_like(DIGITS_G, 2), DIGITS_G, torch.full_like(DIGITS_G, 3)], dim=1)
NEEDS: dict[str, dict[str, Any]] = {
    "ppo": {"value_learning_rate": 1e-2, "entropy_coef": 0.02},
    "dpo": {"dpo_beta": 0.5},
    "sft": {},
}


def lived_once(prompt: Sequence[int], token: int, logp: float, reward: float, name: str, group: str) -> Trajectory:
    step = Transition(
        call_id=f"{name}.call",
        component="",
        order=0,
        index=0,
        parent_call_id=None,
        state=array("i", prompt),
        action=array("i", [token]),
        logprobs=array("f", [logp]),
        reward=0.0,
        next_state=None,
        version_from=0,
        version_to=0,
        temperature=1.0,
    )
    return Trajectory(rollout=rollout(name, group=group), policy="p", reward=reward, parts=(), steps=(step,))


def copied(made: TorchLearner, generator: torch.Generator) -> dict[str, list[Trajectory]]:
    """One sampled token for each sibling of each prompt; the reward is 1 for the prompt's own digit."""
    with torch.no_grad():
        logp_GV = made._model(input_ids=PROMPTS_GL).logits[:, -1].float().log_softmax(-1)
    token_GS = torch.multinomial(logp_GV.exp(), SIBLINGS, replacement=True, generator=generator)
    logp_GS = logp_GV.gather(1, token_GS)
    return {
        str(g): [
            lived_once(
                PROMPTS_GL[g].tolist(),
                int(token_GS[g, s]),
                float(logp_GS[g, s]),
                float(token_GS[g, s] == DIGITS_G[g]),
                f"{g}.{s}",
                str(g),
            )
            for s in range(SIBLINGS)
        ]
        for g in range(TASKS)
    }


def sampled(made: TorchLearner, algorithm: str, generator: torch.Generator) -> tuple[float, Batch]:
    groups = copied(made, generator)
    report = assign(groups, CreditConfig(advantage=algorithm_of(algorithm).advantage))
    return report.figures["reward.mean"], reading.batch(report, policy="p", max_tokens=None, algorithm=algorithm)


def learned(made: TorchLearner, updates: int, *, rate: float, first: str | None = None, until: int = 0) -> list[float]:
    """Success by update; `first` is the algorithm of the first `until` updates."""
    generator, success = torch.Generator().manual_seed(0), []
    for version in range(1, updates + 1):
        name = first if first and version <= until else made.config.algorithm
        reward, batch = sampled(made, name, generator)
        success.append(reward)
        report = made.update(batch, rate=rate, version=version)
        assert report.figures.get("learner.sampler_gap", 0.0) < 1e-4
        if not report.applied:
            made.version = version  # nothing could be learned: go on
    return success


@pytest.mark.parametrize("name", [algorithm.name for algorithm in algorithms()])
def test_it_learns_to_copy_a_digit(name: str):
    needs = NEEDS.get(name, {"entropy_coef": 0.02})
    made = learner(lora_rank=0, algorithm=name, **needs)
    success = learned(made, 29, rate=5e-3)
    assert sum(success[:5]) / 5 < 0.3
    assert sum(success[-5:]) / 5 > 0.6, [round(value, 2) for value in success]


def test_a_run_begins_by_imitation_and_goes_on_by_reward():
    made = learner(lora_rank=0, algorithm="ppo", sft_steps=10, critic_warmup=2, **NEEDS["ppo"])
    success = learned(made, 24, rate=5e-3, first="sft", until=10)
    assert sum(success[10:13]) / 3 > success[0] + 0.1
    assert sum(success[-4:]) / 4 > sum(success[10:13]) / 3 + 0.1, [round(value, 2) for value in success]
