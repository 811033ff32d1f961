"""What holds for every algorithm, however a batch is cut. A new algorithm is tested here because it is registered."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_lightning.learner.algorithms import algorithm_of, algorithms
from agent_lightning.learner.before import rounds
from agent_lightning.learner.pack import Cost
from agent_lightning.learner.update import TorchLearner
from agent_lightning.records import Pair, Sample
from learner_cases import apart, batch, gradient, learner, passes_of, random_samples, shaken

NAMES = [algorithm.name for algorithm in algorithms()]
SEEDS = st.integers(0, 10_000)
FEW = settings(max_examples=2, deadline=None)
BOUND = 2e-5


@cache
def made(name: str, packed: bool = True, **given: Any) -> TorchLearner:
    """Every term on that the algorithm has, values and weights that are not the start's."""
    uses = algorithm_of(name).settings
    terms = {key: value for key, value in {"kl_coef": 0.1, "entropy_coef": 0.05}.items() if key in uses}
    one = shaken(learner(algorithm=name, packing=False, **terms, **given))  # the probe has tests of its own
    if one._critic is not None:
        generator = torch.Generator().manual_seed(1)
        for view in one._critic.weights._views.values():
            view.add_(torch.randn(view.shape, generator=generator) * 0.1)
    one.packing, one._cost = packed, Cost(overhead=0.0, quadratic=0.0)  # packs whatever can be packed
    return one


def steps_of(sample: Sample) -> int:
    marks = [0, *sample.trained]
    return sum(marks[i] < marks[i + 1] for i in range(len(marks) - 1))


def told(seed: int) -> list[Sample]:
    """Random samples that say of their steps what an algorithm may want to know."""
    rng = np.random.default_rng(seed)
    found = []
    for one in random_samples(seed):
        steps = steps_of(one)
        ends = [i + 1 for i, mark in enumerate(one.trained) if mark and not [*one.trained, 0][i + 1]]
        found.append(
            replace(
                one,
                call_ids=tuple(f"{one.rollout_id}-{step}" for step in range(steps)),
                step_ends=array("i", ends),
                step_places=array("i", range(steps)),
                step_rewards=array("f", rng.normal(size=steps).tolist()),
            )
        )
    return found


def pairs_among(samples: Sequence[Sample]) -> tuple[Pair, ...]:
    groups: dict[str, list[str]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample.rollout_id)
    return tuple(
        Pair(chosen=own[i], rejected=own[j]) for own in map(list, map(dict.fromkeys, groups.values())) for i, j in
        ((0, 1), (0, 2), (3, 1))
    )  # fmt: skip


def summed(one: TorchLearner, samples: Sequence[Sample], **given: Any) -> torch.Tensor:
    pairs = pairs_among(samples) if algorithm_of(one.config.algorithm).pairs else ()
    return gradient(one, samples, 12, **{"pairs": pairs, **given})


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=SEEDS)
def test_packed_and_unpacked_gradients_are_the_same(name: str, seed: int):
    samples, packed = told(seed), made(name)
    assert sum(work.tokens for work in passes_of(packed, samples)) < sum(len(sample.tokens) for sample in samples)
    assert apart(summed(packed, samples), summed(made(name, packed=False), samples)) < BOUND


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=SEEDS, order=st.randoms(use_true_random=False))
def test_neither_micro_batches_nor_the_order_of_samples_matter(name: str, seed: int, order: Any):
    samples = told(seed)
    whole, pairs = summed(made(name), samples), pairs_among(samples) if algorithm_of(name).pairs else ()
    order.shuffle(samples)
    assert apart(summed(made(name, packed=False, micro_tokens=40), samples, pairs=pairs), whole) < BOUND


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=SEEDS)
def test_a_rollout_may_come_as_one_sample_or_as_one_a_step(name: str, seed: int):
    samples = told(seed)
    pieces = []
    for whole in samples:
        for step, end in enumerate(whole.step_ends):
            begin = whole.step_ends[step - 1] if step else 0
            marks = [mark if begin <= i < end else 0 for i, mark in enumerate(whole.trained)]
            pieces.append(
                replace(
                    whole,
                    trained=array("b", marks),
                    advantages=array("f", [a * m for a, m in zip(whole.advantages, marks, strict=True)]),
                    call_ids=whole.call_ids[step : step + 1],
                    step_ends=array("i", [end]),
                    step_places=array("i", [step]),
                    step_rewards=whole.step_rewards[step : step + 1],
                )
            )
    assert apart(summed(made(name), pieces, pairs=pairs_among(samples) if algorithm_of(name).pairs else ()),
                 summed(made(name), samples)) < BOUND  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_trained_is_never_looked_at(name: str):
    samples = told(1)
    changed = [
        replace(
            s,
            logprobs=array("f", [x if m else -9.0 for x, m in zip(s.logprobs, s.trained, strict=True)]),
            advantages=array("f", [x if m else 7.0 for x, m in zip(s.advantages, s.trained, strict=True)]),
        )
        for s in samples
    ]
    assert torch.equal(summed(made(name), samples), summed(made(name), changed))
    assert float(summed(made(name), samples).norm()) > 0


class Meeting:
    """Ranks in threads of this process."""

    def __init__(self) -> None:
        self.turn = threading.Lock()  # only one computes at a time: what is packed is known to the whole process
        self.barrier, self.brought = threading.Barrier(2, timeout=60), dict[int, torch.Tensor]()

    def rank(self, number: int) -> Any:
        meeting = self

        class Rank:
            rank, count = number, 2

            def add(self, flat: torch.Tensor) -> None:
                meeting.brought[number] = flat.clone()
                meeting.turn.release()
                meeting.barrier.wait()
                flat.copy_(meeting.brought[0] + meeting.brought[1])
                meeting.barrier.wait()
                meeting.turn.acquire()

        return Rank()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [4, 12])
def test_two_ranks_do_what_one_does(name: str, cut: int):
    """Groups stay together; a rank without samples takes part."""
    samples = told(2)
    alone = summed(made(name), samples)
    whole = batch(samples, 12)
    given = {"tokens": whole.tokens, "groups": whole.groups, "pairs": pairs_among(samples)}
    meeting, both = Meeting(), [made(name, seed=0, micro_tokens=4095 + number) for number in range(2)]
    for number, one in enumerate(both):
        one.ranks = meeting.rank(number)
    if not algorithm_of(name).pairs:
        del given["pairs"]

    def turn(one: TorchLearner, own: Sequence[Sample]) -> torch.Tensor:
        with meeting.turn:
            return gradient(one, own, 12, **given)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(turn, both, (samples[:cut], samples[cut:])))
    assert torch.equal(found[0], found[1])
    assert apart(found[0], alone) < BOUND


@pytest.mark.parametrize("name", NAMES)
def test_minibatches_go_through_every_group_once_an_epoch_and_repeat_bit_for_bit(name: str):
    samples = told(3)
    pairs = pairs_among(samples) if algorithm_of(name).pairs else ()
    whole = replace(batch(samples, 12), pairs=pairs)
    twice = [shaken(learner(algorithm=name, packing=False, minibatches=3, epochs=2)) for _ in range(2)]
    reports = [one.update(whole, rate=1e-3, version=1) for one in twice]
    assert torch.equal(twice[0]._weights.flat, twice[1]._weights.flat)
    assert float(twice[0]._weights.moments()["step"]) == 6
    assert reports[0].figures["learner.tokens"] == 2 * whole.tokens


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_batch_have_the_gradient_of_the_whole(name: str):
    """Each part is a mean over its share, so the mean of the parts' gradients is the whole batch's."""
    samples = told(4)
    pairs = pairs_among(samples) if algorithm_of(name).pairs else ()
    whole = replace(batch(samples, 12), pairs=pairs)
    cut = made(name, minibatches=3)
    lesson = cut._lesson(whole, 1)
    total = torch.zeros(())
    for groups in rounds(whole.groups, cut.config, 1):
        cut._sum(lesson, groups)
        critic = [cut._critic.weights.gradient] if cut._critic is not None else []
        total = total + torch.cat([cut._weights.gradient, *critic]).double() / 3
    assert apart(total, summed(made(name), samples)) < BOUND


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("ppo", "reinforce++", "dpo")])
@FEW
@given(seed=SEEDS)
def test_the_legal_mass_under_a_grammar_weighs_the_advantage(name: str, seed: int):
    rng, samples = np.random.default_rng(seed), told(seed)
    masses = [array("f", rng.uniform(0.1, 1.0, len(sample.tokens)).tolist()) for sample in samples]
    bound = [replace(sample, legal_mass=mass) for sample, mass in zip(samples, masses, strict=True)]
    weighed = [
        replace(sample, advantages=array("f", (np.array(sample.advantages) * np.array(mass)).tolist()))
        for sample, mass in zip(samples, masses, strict=True)
    ]
    assert apart(summed(made(name), bound), summed(made(name), weighed)) < BOUND
    assert apart(summed(made(name), bound), summed(made(name), samples)) > 1e-3


@pytest.mark.parametrize("name", ["ppo", "reinforce++"])
def test_the_legal_mass_weighs_advantages_that_the_learner_makes_itself(name: str):
    samples = told(3)
    half = [replace(sample, legal_mass=array("f", [0.5]) * len(sample.tokens)) for sample in samples]
    free, bound = (made(name)._lesson(batch(given, 12), 1).entries.advantage_N for given in (samples, half))
    assert np.abs(free).max() > 0.1
    assert bound == pytest.approx(free * 0.5, abs=1e-6)
