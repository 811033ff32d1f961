"""What is known of every trained token of a share, by its number: N tokens, sample after sample.

Passes come and go with the way in which a batch is cut; these arrays are what all of them read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent_lightning.errors import LearnerError
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.pack import trained_places
from agent_lightning.records import Batch, Sample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Entries:
    """`old`, `reference`, `value` and `returns` are measured before the weights move; None where nobody wants them."""

    samples: tuple[Sample, ...]
    first: Ints  # (samples + 1,) number of each sample's first token
    step_N: Ints  # number of the step
    paid_N: Doubles  # at the last token of each step what it is paid, 0.0 elsewhere
    order_N: Ints  # the tokens by rollout, then in the order in which the rollout's steps were taken
    rollout_N: Ints  # number of the rollout
    sampler_N: Floats
    advantage_N: Floats
    mass_N: Floats  # importance weight of the advantage: the legal mass under a grammar
    weight_N: Floats  # what the token's loss is multiplied by
    old_N: Floats | None = None
    reference_N: Floats | None = None
    value_N: Floats | None = None
    return_N: Floats | None = None

    def of_sample(self, index: int) -> slice:
        return slice(int(self.first[index]), int(self.first[index + 1]))


def entries_of(batch: Batch, config: LearnerConfig) -> Entries:
    """Number the trained tokens of a share. `config` is settled. Raises LearnerError for a broken sample."""
    samples = tuple(sample for sample in batch.samples if any(sample.trained))
    if samples and batch.rollouts < 1:
        raise LearnerError(f"a batch with samples of rollout {samples[0].rollout_id} counts {batch.rollouts} rollouts")
    places = [trained_places(sample) for sample in samples]
    steps = [_steps(sample, trained) for sample, trained in zip(samples, places, strict=True)]
    first = np.cumsum([0, *(len(trained) for trained in places)])
    begun = np.cumsum([0, *(int(own[-1]) + 1 for own in steps)])
    rollouts = {name: number for number, name in enumerate(dict.fromkeys(s.rollout_id for s in samples))}
    rollout_N = _joined([np.full(len(t), rollouts[s.rollout_id]) for s, t in zip(samples, places, strict=True)], int)
    place_N = _joined([_places(*item) for item in zip(samples, steps, range(len(samples)), strict=True)], int)
    scale = config.minibatches  # each part's loss is a mean over its own part of the batch
    return Entries(
        samples=samples,
        first=first,
        step_N=_joined([own + start for own, start in zip(steps, begun, strict=False)], int),
        paid_N=_joined([_paid(sample, own) for sample, own in zip(samples, steps, strict=True)], float),
        order_N=np.lexsort((np.arange(len(rollout_N)), place_N, rollout_N)),
        rollout_N=rollout_N,
        sampler_N=_joined([np.array(s.logprobs)[t] for s, t in zip(samples, places, strict=True)], np.float32),
        advantage_N=_joined([np.array(s.advantages)[t] for s, t in zip(samples, places, strict=True)], np.float32),
        mass_N=_joined([_masses(s, t) for s, t in zip(samples, places, strict=True)], np.float32),
        weight_N=_joined(
            [np.full(len(t), scale / divisor(s, batch, config)) for s, t in zip(samples, places, strict=True)],
            np.float32,
        ),
    )


def divisor(sample: Sample, batch: Batch, config: LearnerConfig) -> float:
    """What the sum of a sample's token losses is divided by: the mean over rollouts of the mean over their tokens, the
    mean over all tokens, or the mean over rollouts of the sum over a constant (Dr. GRPO); of pairs, their number."""
    if batch.pairs:
        return len(batch.pairs)
    if config.loss_scale == "token":
        return batch.tokens
    if config.loss_scale == "constant":
        return config.loss_tokens * batch.rollouts
    return sample.rollout_tokens * batch.rollouts


def _steps(sample: Sample, trained: Ints) -> Ints:
    """The number of each trained token's step within the sample, from 0; without `step_ends`, runs are steps."""
    if len(sample.step_ends):
        step = np.searchsorted(np.array(sample.step_ends), trained, side="right")
    else:
        step = np.cumsum(np.diff(trained, prepend=trained[0] - 1) > 1)
    return np.unique(step, return_inverse=True)[1].reshape(-1)


def _named(sample: Sample, values: Sequence[float], steps: Ints) -> NDArray[np.generic]:
    """What a sample says of its steps, one entry a step. Raises LearnerError where the counts differ."""
    if len(values) != int(steps[-1]) + 1:
        raise LearnerError(
            f"a sample of rollout {sample.rollout_id} trains {int(steps[-1]) + 1} steps and tells of {len(values)}"
        )
    return np.array(values)


def _places(sample: Sample, steps: Ints, number: int) -> Ints:
    """Where the token's step stands in its rollout; without `step_places`, samples follow each other."""
    if len(sample.step_places):
        return _named(sample, sample.step_places, steps)[steps].astype(np.int64)
    return steps + (number << 32)


def _paid(sample: Sample, steps: Ints) -> Doubles:
    paid = np.zeros(len(steps))
    if len(sample.step_rewards):
        last = np.flatnonzero(np.diff(steps, append=steps[-1] + 1))
        paid[last] = _named(sample, sample.step_rewards, steps)
    return paid


def _masses(sample: Sample, trained: Ints) -> NDArray[np.generic]:
    return np.array(sample.legal_mass)[trained] if len(sample.legal_mass) else np.ones(len(trained), np.float32)


def _joined(parts: Sequence[NDArray[np.generic]], kind: type) -> NDArray:
    """One array, also of no parts."""
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind, copy=False)
