"""The learner's sums are the same however a batch is cut: packed or not, in micro-batches, over ranks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_lightning.learner.forward import score
from agent_lightning.learner.pack import Cost, Pass, plan, plan_unpacked
from learner_cases import apart, gradient, learner, passes_of, random_samples, shaken, tiny_model

SEEDS = st.integers(0, 10_000)
WHOLE = {"micro_tokens": 4096, "max_sample_tokens": 4096}
LIMITS = {"pack_tokens": 4096, **WHOLE}
ALWAYS_PACK = Cost(overhead=0.0, quadratic=0.0)
FEW = settings(max_examples=15, deadline=None)

PLAIN = shaken(learner(packing=False, kl_coef=0.1, entropy_coef=0.05))
PACKED = shaken(learner(kl_coef=0.1, entropy_coef=0.05))
PACKED._cost = ALWAYS_PACK


@FEW
@given(seed=SEEDS)
def test_packed_and_unpacked_gradients_are_the_same(seed):
    samples = random_samples(seed)
    assert sum(work.tokens for work in passes_of(PACKED, samples)) < sum(len(sample.tokens) for sample in samples)
    assert apart(gradient(PACKED, samples), gradient(PLAIN, samples)) < 1e-5


@FEW
@given(seed=SEEDS)
def test_packed_log_probabilities_are_those_of_each_branch_alone(seed):
    model = tiny_model().double()
    samples = random_samples(seed)

    def by_entry(passes: list[Pass]) -> list[tuple[int, float]]:
        found = []
        for work in passes:
            logp_E, _ = score(model, work)
            found += list(zip(work.entry_E.tolist(), logp_E.tolist(), strict=True))
        return sorted(found)

    packed = np.array(by_entry(plan(samples, ALWAYS_PACK, **LIMITS)))
    alone = np.array(by_entry(plan_unpacked(samples, **WHOLE)))
    assert np.array_equal(packed[:, 0], alone[:, 0])
    assert np.abs(packed[:, 1] - alone[:, 1]).max() < 1e-5


@FEW
@given(seed=SEEDS, micro=st.integers(16, 400), order=st.randoms(use_true_random=False))
def test_the_gradient_does_not_depend_on_micro_batches_or_on_the_order_of_samples(seed, micro, order):
    samples = random_samples(seed)
    whole = gradient(PLAIN, samples)
    order.shuffle(samples)
    cut = shaken(learner(packing=False, kl_coef=0.1, entropy_coef=0.05, micro_tokens=micro))
    assert apart(gradient(cut, samples), whole) < 1e-5


@FEW
@given(seed=SEEDS, limit=st.integers(16, 200))
def test_trees_cut_to_a_limit_keep_it_and_the_gradient(seed, limit):
    samples = random_samples(seed)
    cut = shaken(learner(kl_coef=0.1, entropy_coef=0.05, pack_tokens=limit))
    cut._cost = ALWAYS_PACK
    assert all(work.tokens <= limit for work in passes_of(cut, samples) if work.mask_TT is not None)
    assert apart(gradient(cut, samples), gradient(PLAIN, samples)) < 1e-5


@FEW
@given(seed=SEEDS, share=st.integers(0, 12))
def test_the_sums_of_two_ranks_are_the_sum_of_one(seed, share):
    samples = random_samples(seed)
    rollouts = len(samples)
    parts = gradient(PACKED, samples[:share], rollouts) + gradient(PACKED, samples[share:], rollouts)
    assert apart(parts, gradient(PACKED, samples, rollouts)) < 1e-5


@FEW
@given(seed=SEEDS, cut=st.integers(1, 30))
def test_a_rollout_weighs_the_same_in_however_many_samples_it_comes(seed, cut):
    """A sample cut in two keeps all tokens in both halves and trains each token in exactly one of them."""
    samples = random_samples(seed)
    halves = []
    for whole in samples:
        first, second = list(whole.trained), list(whole.trained)
        first[cut:], second[:cut] = [0] * len(first[cut:]), [0] * len(second[:cut])
        for marks in (first, second):
            halves.append(
                replace(
                    whole,
                    trained=type(whole.trained)("b", marks),
                    advantages=type(whole.advantages)(
                        "f", [a * m for a, m in zip(whole.advantages, marks, strict=True)]
                    ),
                )
            )
    assert apart(gradient(PACKED, halves, len(samples)), gradient(PACKED, samples)) < 1e-5


@FEW
@given(seed=SEEDS)
def test_the_cheapest_cut_is_no_dearer_than_any_other(seed):
    """Against every way of cutting six branches into runs, by brute force."""
    from agent_lightning.learner.pack import _cheapest_runs

    rng = np.random.default_rng(seed)
    lengths_N = rng.integers(5, 40, 6)
    common_N = np.array([0, *(rng.integers(0, min(a, b)) for a, b in itertools.pairwise(lengths_N))])
    cost = Cost(overhead=float(rng.integers(0, 50)), quadratic=0.02)

    def price(runs: list[tuple[int, int]]) -> float:
        total = 0.0
        for start, end in runs:
            size = lengths_N[start:end].sum() - common_N[start + 1 : end].sum()
            share = size / 100 if end - start == 1 else 1.0  # a branch alone shares a batch of 100 tokens
            total += cost.of(np.array([size]))[0] - cost.overhead * (1.0 - share)
            total += np.inf if size > 90 and end - start > 1 else 0.0
        return total

    cuts = [[0, *[i + 1 for i in range(5) if bits >> i & 1], 6] for bits in range(32)]
    cheapest = min(price(list(itertools.pairwise(cut))) for cut in cuts)
    assert np.isclose(price(_cheapest_runs(lengths_N, common_N, cost, 90, 100)), cheapest)


def test_an_untrained_token_has_no_gradient_and_a_trained_one_has():
    samples = random_samples(1)
    changed = [
        replace(
            s,
            logprobs=type(s.logprobs)("f", [x if m else -9.0 for x, m in zip(s.logprobs, s.trained, strict=True)]),
            advantages=type(s.advantages)("f", [x if m else 7.0 for x, m in zip(s.advantages, s.trained, strict=True)]),
        )
        for s in samples
    ]
    assert torch.equal(gradient(PACKED, samples), gradient(PACKED, changed))
    louder = [replace(s, advantages=type(s.advantages)("f", [2 * x for x in s.advantages])) for s in samples]
    assert not torch.equal(gradient(PACKED, samples), gradient(PACKED, louder))
