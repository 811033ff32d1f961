"""Requests and batches for tests of replicas, made of what the policy itself wrote."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_lightning.inference.engine import Engine, GenerateRequest, Piece, Sampling
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Batch, Sample
from agent_lightning.replica import ReplicaConfig

SCRIPTED = "agent_lightning.replica.scripted:ScriptedHost"
PROMPTS = ((3, 4, 5, 6), (7, 8, 9), (5, 5, 11, 2, 4))


def config(**changes: Any) -> ReplicaConfig:
    learner = LearnerConfig(lora_rank=4, dtype="float32", entropy_coef=0.01)
    return ReplicaConfig(**{"model": "tiny", "replicas": 2, "learner": learner, "max_sequences": 16, **changes})


def request(
    name: str, *, prompt: Sequence[int] = PROMPTS[0], tokens: int = 6, affinity: str = "", policy: str = "default"
) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        policy=policy,
        prompt_ids=array("i", prompt),
        sampling=Sampling(max_new_tokens=tokens),
        noise_key=f"0/{name}/0/0/0",
        affinity=affinity,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished sequence."""

    ids: array[int]
    logprobs: array[float]
    versions: frozenset[int]
    finish_reason: str | None


async def written(engine: Engine, asked: GenerateRequest) -> Written:
    pieces: list[Piece] = [piece async for piece in engine.generate(asked)]
    return Written(
        ids=array("i", [token for piece in pieces for token in piece.ids]),
        logprobs=array("f", [value for piece in pieces for value in piece.logprobs]),
        versions=frozenset(piece.version for piece in pieces),
        finish_reason=pieces[-1].finish_reason,
    )


async def lived(engine: Engine, siblings: int = 4) -> Batch:
    """A batch of one group a prompt; siblings are rewarded in turn."""
    asked = {
        (group, sibling): request(f"{group}.{sibling}", prompt=prompt, affinity=f"{group}.{sibling}")
        for group, prompt in enumerate(PROMPTS)
        for sibling in range(siblings)
    }
    answers = await asyncio.gather(*(written(engine, one) for one in asked.values()))
    samples = [
        sample(group, sibling, PROMPTS[group], answer) for (group, sibling), answer in zip(asked, answers, strict=True)
    ]
    return Batch(policy="default", samples=tuple(samples), rollouts=len(samples))


def sample(group: int, sibling: int, prompt: Sequence[int], answer: Written) -> Sample:
    before, count = len(prompt), len(answer.ids)
    advantage = 0.8 if sibling % 2 else -0.8
    return Sample(
        rollout_id=f"{group}.{sibling}",
        group_id=f"{group}",
        tokens=array("i", [*prompt, *answer.ids]),
        trained=array("b", [0] * before + [1] * count),
        logprobs=array("f", [0.0] * before + list(answer.logprobs)),
        advantages=array("f", [0.0] * before + [advantage] * count),
        temperature=1.0,
        rollout_tokens=count,
        version=max(answer.versions),
    )
