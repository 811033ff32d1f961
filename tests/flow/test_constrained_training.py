"""A call that a grammar bound, from the engine to the update: what was chosen is trained, and no gap opens."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_lightning.inference.engine import GenerateRequest, Sampling
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.records import Batch, Reward, nats, token_ids
from agent_lightning.replica.local import LocalReplica
from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.trajectory import build, samples
from learner_cases import tiny_folder
from lived import call, rollout

GRAMMAR = json.dumps({"grammars": [{"lark_grammar": 'start: "12" /[0-9]{3}/ ("+" | "-") "34"'}]})
PROMPT, END = [2, 5, 6, 1, 3], 1


async def test_a_bound_call_is_trained_where_the_policy_chose_and_its_gap_stays_zero() -> None:
    learner = LearnerConfig(lora_rank=4, lora_alpha=8.0, dtype="float32")
    replica = LocalReplica(ReplicaConfig(model=str(tiny_folder()), policy="default", learner=learner, replicas=0))
    await replica.start()
    try:
        lived = []
        for name, reward in (("a", 1.0), ("b", -1.0)):
            pieces = [piece async for piece in replica.generate(asked(name))]
            bound = replace(
                call(name, order=0, suffix=PROMPT, sampled=[i for p in pieces for i in p.ids], rollout_id=name),
                logprobs=nats([x for p in pieces for x in p.logprobs]),
                legal_mass=nats([x for p in pieces for x in p.legal_mass]),
            )
            assert bound.sampled_ids[-1] == END and len(bound.sampled_ids) == 9
            assert [mass > 0.0 for mass in bound.legal_mass] == [False] * 2 + [True] * 4 + [False] * 3
            part = Reward(id=name, rollout_id=name, attempt_id="attempt", name="reward", value=reward, target="rollout", target_id="")  # fmt: skip
            lived.append((build(rollout(name), [bound], [part], policy="default"), reward))
        made = [sample for trajectory, reward in lived for sample in samples(trajectory, [reward])]
        report = await replica.update(Batch(policy="default", samples=tuple(made), rollouts=2), rate=1e-3, version=1)
    finally:
        await replica.close()
    assert report.figures["learner.tokens"] == 8
    assert report.figures["learner.sampler_gap"] == pytest.approx(0.0, abs=1e-4)


def asked(name: str) -> GenerateRequest:
    sampling = Sampling(grammar=GRAMMAR, stop_ids=(END,), max_new_tokens=20)
    return GenerateRequest(
        id=name, policy="default", prompt_ids=token_ids(PROMPT), sampling=sampling, noise_key=f"7/{name}"
    )
