"""GRPO on the tiny model: a copy task is learned from rewards alone."""

from __future__ import annotations

from array import array

import torch

from learner_cases import batch, learner, sample

TASKS, SIBLINGS = 8, 16


def rollouts(model, prompts_GL: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """One sampled token for each sibling of each prompt: (token, log-prob), both (G, S)."""
    with torch.no_grad():
        logp_GV = model(input_ids=prompts_GL).logits[:, -1].float().log_softmax(-1)
    token_GS = torch.multinomial(logp_GV.exp(), SIBLINGS, replacement=True, generator=generator)
    return token_GS, logp_GV.gather(1, token_GS)


def test_grpo_learns_to_copy_a_digit():
    generator = torch.Generator().manual_seed(0)
    made = learner(lora_rank=0, entropy_coef=0.02)
    digits_G = torch.arange(4, 4 + TASKS)
    prompts_GL = torch.stack([torch.full_like(digits_G, 2), digits_G, torch.full_like(digits_G, 3)], dim=1)
    success = []
    for version in range(1, 61):
        token_GS, logp_GS = rollouts(made._model, prompts_GL, generator)
        reward_GS = (token_GS == digits_G[:, None]).float()
        success.append(float(reward_GS.mean()))
        advantage_GS = (reward_GS - reward_GS.mean(1, keepdim=True)) / (reward_GS.std(1, keepdim=True) + 1e-4)
        samples = [
            sample(
                [*prompts_GL[g].tolist(), int(token_GS[g, s])],
                [0, 0, 0, 1],
                float(advantage_GS[g, s]),
                logprobs=array("f", [0, 0, 0, float(logp_GS[g, s])]),
            )
            for g in range(TASKS)
            for s in range(SIBLINGS)
        ]
        report = made.update(batch(samples), rate=5e-3, version=version)
        assert report.figures["learner.sampler_gap"] < 1e-4
    assert sum(success[:5]) / 5 < 0.2
    assert sum(success[-5:]) / 5 > 0.8, success
