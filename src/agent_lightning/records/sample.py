"""What the learner eats: token ids, which of them are trained, and with what advantage."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One branch of a rollout, root to leaf. Every array has one entry a token.

    A sampled token that several branches of a rollout share is trained in exactly one of them.
    """

    rollout_id: str
    group_id: str
    tokens: array[int]  # "i"
    trained: array[int]  # "b": 1 where the policy sampled the token and it is trained here
    logprobs: array[float]  # "f": nats under the weights that sampled; 0.0 where not trained
    advantages: array[float]  # "f": token advantage, times the legal mass of a constrained token; 0.0 where not trained
    temperature: float  # of the sampler; the learner divides its logits by the same
    rollout_tokens: int  # trained tokens of the whole rollout, over all of its samples
    version: int  # newest policy version that wrote a token of it
    call_ids: tuple[str, ...] = ()  # steps trained here, in token order


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one optimizer step of one policy.

    The loss is sum over samples of (sum over trained tokens of token loss / rollout_tokens) / rollouts.
    """

    policy: str
    samples: tuple[Sample, ...]
    rollouts: int  # R: rewarded rollouts, flat and later-dropped ones included
    figures: Mapping[str, float] = field(default_factory=dict)  # reward.mean, reward.std, ... for the report
