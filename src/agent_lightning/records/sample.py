"""What the learner eats: token ids, which of them are trained, and with what advantage."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


def _ints() -> array[int]:
    return array("i")


def _floats() -> array[float]:
    return array("f")


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
    advantages: array[float]  # "f": token advantage; 0.0 where not trained
    temperature: float  # of the sampler; the learner divides its logits by the same
    rollout_tokens: int  # trained tokens of the whole rollout, over all of its samples
    version: int  # newest policy version that wrote a token of it
    call_ids: tuple[str, ...] = ()  # steps trained here, in token order; the arrays below have one entry for each
    step_ends: array[int] = field(
        default_factory=_ints
    )  # "i": token behind its last one; empty: runs of trained tokens
    step_places: array[int] = field(default_factory=_ints)  # "i": among the trajectory's steps; empty: in sample order
    step_rewards: array[float] = field(default_factory=_floats)  # "f": what it is paid, for an algorithm with a critic
    # "f", one entry a token; empty: all 1. Under a grammar the policy's probability of what was legal: the importance
    # weight of a token's advantage, however that is made (trajectory/branches.py).
    legal_mass: array[float] = field(default_factory=_floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Of two siblings, one is preferred: as a whole, or in one step of each that began with the same prompt."""

    chosen: str  # rollout id
    rejected: str
    chosen_call: str = ""  # call id of the step; "" is all steps
    rejected_call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one update of one policy; a share of it has fewer samples and all else of the whole.

    By default the loss is sum over samples of (sum over trained tokens of token loss / rollout_tokens) / rollouts.
    """

    policy: str
    samples: tuple[Sample, ...]
    rollouts: int  # R: rewarded rollouts, flat and later-dropped ones included
    figures: Mapping[str, float] = field(default_factory=dict)  # reward.mean, reward.std, ... for the report
    algorithm: str = ""  # whose loss; "" is the one that the learner was set to
    pairs: tuple[Pair, ...] = ()  # for an algorithm that learns from preferences
    tokens: int = 0  # trained tokens of all samples; 0: counted here
    groups: tuple[str, ...] = ()  # group ids of all samples; empty: in the order in which they appear here

    def __post_init__(self) -> None:
        if not self.tokens:
            object.__setattr__(self, "tokens", sum(sum(sample.trained) for sample in self.samples))
        if not self.groups:
            object.__setattr__(self, "groups", tuple(dict.fromkeys(sample.group_id for sample in self.samples)))
