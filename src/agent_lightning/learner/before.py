"""What is settled before the weights move: rounds over the batch, advantages of tokens, what pairs still teach.

Everything is in numpy over a share's entries; `Adding` sums an array of float64 over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from agent_lightning.credit.tokens import gae, to_go, whitened
from agent_lightning.errors import LearnerError
from agent_lightning.learner.algorithms import Algorithm
from agent_lightning.learner.algorithms.dpo import pair_loss, pair_slope
from agent_lightning.learner.entries import Doubles, Entries, Floats, Ints
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.losses import divergence
from agent_lightning.records import Pair

Adding = Callable[[Doubles], Doubles]


def rounds(groups: Sequence[str], config: LearnerConfig, version: int) -> Iterator[frozenset[str]]:
    """The groups of each optimizer step: every epoch cuts the whole batch anew, alike on every rank."""
    if config.optimizer_steps == 1:
        yield frozenset(groups)
        return
    for epoch in range(config.epochs):
        order = np.random.default_rng([config.seed, version, epoch]).permutation(len(groups))
        for part in np.array_split(order, config.minibatches):
            yield frozenset(groups[int(place)] for place in part)


def settle_advantages(entries: Entries, algorithm: Algorithm, config: LearnerConfig, add: Adding) -> None:
    """Make `advantage_N`, and with a critic `return_N`, out of what was measured."""
    cost_N = np.zeros(len(entries.step_N))
    if config.kl_coef and config.kl_in == "reward":
        cost_N = config.kl_coef * _divergence(entries, config)
    if algorithm.critic:
        _from_values(entries, config, cost_N)
    elif cost_N.any():
        order, last = entries.order_N, _ends(entries.step_N[entries.order_N])
        ahead = np.zeros(len(order))
        ahead[order] = to_go(cost_N[order], last)
        entries.advantage_N = (entries.advantage_N - ahead).astype(np.float32)
    if config.whiten_advantages:
        entries.advantage_N = _whitened(entries.advantage_N.astype(np.float64), add).astype(np.float32)
    entries.advantage_N = entries.advantage_N * entries.mass_N


def _divergence(entries: Entries, config: LearnerConfig) -> Doubles:
    assert entries.old_N is not None and entries.reference_N is not None and config.kl_form is not None
    old, reference = torch.from_numpy(entries.old_N).double(), torch.from_numpy(entries.reference_N).double()
    return divergence(old, reference, config.kl_form).numpy()


def _from_values(entries: Entries, config: LearnerConfig, cost_N: Doubles) -> None:
    """An episode is a call, paid at its last token, or the whole rollout: then values look across calls."""
    assert entries.value_N is not None
    order, values_N = entries.order_N, entries.value_N.astype(np.float64)
    episode_N = entries.rollout_N if config.gae_over == "trajectory" else entries.step_N
    advantages_N = np.zeros(len(order))
    advantages_N[order] = gae(
        (entries.paid_N - cost_N)[order],
        values_N[order],
        _ends(episode_N[order]),
        gamma=config.gae_gamma,
        decay=config.gae_lambda,
    )
    entries.advantage_N = advantages_N.astype(np.float32)
    entries.return_N = (advantages_N + values_N).astype(np.float32)


def _ends(episode_N: Ints) -> NDArray[np.bool_]:
    return np.diff(episode_N, append=-1) != 0


def _whitened(values_N: Doubles, add: Adding) -> Doubles:
    count, total = add(np.array([len(values_N), values_N.sum()]))
    if not count:
        return values_N
    mean = total / count
    (spread,) = add(np.array([np.square(values_N - mean).sum()]))
    return whitened(values_N, mean, spread / count)


class Preferences:
    """The tokens of both sides of each pair whose rollouts are in this share."""

    def __init__(self, entries: Entries, pairs: Sequence[Pair]) -> None:
        tokens = _tokens_of(entries)
        self.sides: list[tuple[Pair, Ints, Ints]] = []
        for pair in pairs:
            good, bad = tokens.get((pair.chosen, pair.chosen_call)), tokens.get((pair.rejected, pair.rejected_call))
            if (good is None) != (bad is None):
                raise LearnerError(f"of the pair {pair} only one side has samples here: groups must stay together")
            if good is not None and bad is not None:
                self.sides.append((pair, good, bad))

    def weigh(self, ratio_N: Doubles, beta: float, rollouts: frozenset[str]) -> tuple[Floats, Doubles, Doubles]:
        """(advantage_N, margin_K, loss_K) of the pairs among these rollouts; ratio_N = log pi - log pi_ref."""
        advantage_N, sides = np.zeros(len(ratio_N)), [side for side in self.sides if side[0].chosen in rollouts]
        margin_K = np.array([beta * (ratio_N[good].sum() - ratio_N[bad].sum()) for _, good, bad in sides])
        for (_, good, bad), slope in zip(sides, pair_slope(margin_K), strict=True):
            advantage_N[good] += beta * slope
            advantage_N[bad] -= beta * slope
        return advantage_N.astype(np.float32), margin_K, pair_loss(margin_K)


def _tokens_of(entries: Entries) -> dict[tuple[str, str], Ints]:
    """Numbers of the tokens by (rollout, call), and of all of a rollout's by (rollout, "")."""
    found: dict[tuple[str, str], list[Ints]] = {}
    for index, sample in enumerate(entries.samples):
        own = np.arange(len(entries.step_N))[entries.of_sample(index)]
        found.setdefault((sample.rollout_id, ""), []).append(own)
        step = entries.step_N[own] - entries.step_N[own[0]]
        for place, call in enumerate(sample.call_ids):
            found.setdefault((sample.rollout_id, call), []).append(own[step == place])
    return {name: np.concatenate(parts) for name, parts in found.items()}
