"""Samples -> passes: what one forward and backward computes, each distinct token once where that is cheaper.

Samples that begin alike form a tree. A tree is laid out flat in depth-first order; a token sees its ancestors alone
(a mask over the T flat tokens) and stands at its depth, so that it computes what it would in a branch of its own.

B is the number of rows of a pass (1 for a tree), T its length, P the positions whose logits are needed, E the trained
tokens. Several entries may share a position: siblings that sampled from the same prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agent_lightning.errors import LearnerError
from agent_lightning.records import Sample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def trained_places(sample: Sample) -> Ints:
    """Where the trained tokens stand, ascending. Raises LearnerError for a sample that cannot be trained."""
    trained = np.flatnonzero(np.array(sample.trained))
    sizes = {len(sample.tokens), len(sample.trained), len(sample.logprobs), len(sample.advantages)}
    if len(sizes) > 1 or not len(trained) or trained[0] == 0 or sample.rollout_tokens < 1:
        first = int(trained[0]) if len(trained) else None
        raise LearnerError(
            f"a sample of rollout {sample.rollout_id} cannot be trained: arrays of {sorted(sizes)} tokens, first "
            f"trained token {first}, rollout_tokens {sample.rollout_tokens}"
        )
    return trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward. `at_P` indexes the B * T flat positions; `of_E` indexes the P of them, ascending.

    `entry_E` is the number of the trained token among all of the samples: what else is known of it is kept by number.
    """

    ids_BT: Ints
    depth_BT: Ints
    mask_TT: NDArray[np.bool_] | None  # True where the row may see the column; None is plain causal
    at_P: Ints
    temperature_P: Floats
    of_E: Ints
    target_E: Ints
    entry_E: Ints
    tokens: int  # computed, padding included


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time of a pass as overhead + T + quadratic T^2, in units of one token's linear layers."""

    overhead: float
    quadratic: float

    def of(self, tokens_N: Ints) -> NDArray[np.float64]:
        return self.overhead + tokens_N + self.quadratic * np.square(tokens_N.astype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A sample cut behind the last token that predicts a trained one."""

    ids: Ints  # (L,)
    at: Ints  # (n,) positions in `ids` that predict the trained tokens
    target: Ints  # (n,)
    entry: Ints  # (n,)
    temperature: float


def plan(samples: Sequence[Sample], cost: Cost, *, pack_tokens: int, micro_tokens: int, max_sample_tokens: int,
         first: Sequence[int] | None = None) -> list[Pass]:  # fmt: skip
    """Cut samples into passes. `first` has the number of each sample's first entry; without it they are counted here.

    Sorted by their tokens, any run of neighbours is a tree of size sum(lengths) - sum(common prefixes), so the
    cheapest cut into runs is found exactly. Runs of one, and samples over `max_sample_tokens`, go unpacked.
    """
    branches = _branches(samples, first)
    short = [branch for branch in branches if len(branch.ids) <= max_sample_tokens]
    passes = _alone(branches, max_sample_tokens)
    short.sort(key=lambda branch: branch.ids.tolist())
    common = [0, *(_common(a.ids, b.ids) for a, b in pairwise(short))]
    runs = _cheapest_runs(
        np.array([len(branch.ids) for branch in short]), np.array(common), cost, pack_tokens, micro_tokens
    )
    trees = [_tree(short[start:end], common[start:end]) for start, end in runs if end - start > 1]
    loose = [short[start] for start, end in runs if end - start == 1]
    return passes + trees + _batched(loose, micro_tokens)


def plan_unpacked(samples: Sequence[Sample], *, micro_tokens: int, max_sample_tokens: int,
                  first: Sequence[int] | None = None) -> list[Pass]:  # fmt: skip
    """The same sums, each sample computed in full; those over `max_sample_tokens` alone."""
    branches = _branches(samples, first)
    return _alone(branches, max_sample_tokens) + _batched(
        [branch for branch in branches if len(branch.ids) <= max_sample_tokens], micro_tokens
    )


def _alone(branches: Sequence[_Branch], longer_than: int) -> list[Pass]:
    return [_padded([branch]) for branch in branches if len(branch.ids) > longer_than]


def _branches(samples: Sequence[Sample], first: Sequence[int] | None) -> list[_Branch]:
    places = [trained_places(sample) for sample in samples]
    counted = np.cumsum([0, *(len(trained) for trained in places)]).tolist()
    begins: Sequence[int] = counted[:-1] if first is None else first
    return [_branch(*item) for item in zip(samples, places, begins, strict=True)]


def _branch(sample: Sample, trained: Ints, first: int) -> _Branch:
    tokens = np.array(sample.tokens, dtype=np.int64)
    return _Branch(
        ids=tokens[: trained[-1]],
        at=trained - 1,
        target=tokens[trained],
        entry=np.arange(first, first + len(trained)),
        temperature=sample.temperature or 1.0,  # greedy tokens carry log-probs of temperature 1
    )


def _common(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def _cheapest_runs(lengths_N: Ints, common_N: Ints, cost: Cost, limit: int, batch: int) -> list[tuple[int, int]]:
    """Cut 0..N into runs (start, end) of least total cost; a run of several fits in `limit` tokens.

    A run of one joins an unpacked batch of `batch` tokens and pays its share of that pass's overhead.
    """
    count = len(lengths_N)
    best = np.zeros(count + 1)
    start_of = np.zeros(count + 1, dtype=np.int64)
    grown = np.concatenate([[0], np.cumsum(lengths_N - common_N)])
    for end in range(1, count + 1):
        starts = np.arange(end)
        sizes = grown[end] - grown[starts] + common_N[starts]  # the first of a run repeats its prefix
        prices = np.where(sizes <= limit, cost.of(sizes), np.inf)
        alone = lengths_N[end - 1 : end]
        prices[-1] = (cost.of(alone) - cost.overhead * (1.0 - alone / batch))[0]
        totals = best[:end] + prices
        start_of[end] = int(np.argmin(totals))
        best[end] = totals[start_of[end]]
    runs, end = [], count
    while end:
        runs.append((int(start_of[end]), end))
        end = int(start_of[end])
    return runs[::-1]


def _tree(branches: Sequence[_Branch], common: Sequence[int]) -> Pass:
    """Lay a sorted run out flat, depth first. `common[i]` is the prefix that branch i shares with the one before."""
    shared = [0, *common[1:]]
    size = sum(len(branch.ids) - prefix for branch, prefix in zip(branches, shared, strict=True))
    ids_T, depth_T = np.zeros(size, np.int64), np.zeros(size, np.int64)
    mask_TT = np.zeros((size, size), dtype=np.bool_)
    path, used, nodes = np.zeros(0, np.int64), 0, []
    for branch, prefix in zip(branches, shared, strict=True):
        new = len(branch.ids) - prefix
        fresh = slice(used, used + new)
        path = np.concatenate([path[:prefix], np.arange(used, used + new)])
        ids_T[fresh], depth_T[fresh] = branch.ids[prefix:], np.arange(prefix, len(branch.ids))
        mask_TT[fresh, path[:prefix]] = True
        mask_TT[fresh, fresh] = np.tri(new, dtype=np.bool_)
        nodes.append(path[branch.at])
        used += new
    return _pass(branches, nodes, ids_T[None], depth_T[None], mask_TT)


def _batched(branches: Sequence[_Branch], micro_tokens: int) -> list[Pass]:
    """Padded batches of at most `micro_tokens` (or one branch), like lengths together."""
    passes, batch = [], []
    for branch in sorted(branches, key=lambda branch: len(branch.ids)):
        if batch and len(branch.ids) * (len(batch) + 1) > micro_tokens:
            passes.append(_padded(batch))
            batch = []
        batch.append(branch)
    return passes + ([_padded(batch)] if batch else [])


def _padded(branches: Sequence[_Branch]) -> Pass:
    """Branches as rows, padded on the right: under a causal mask no real token sees the padding."""
    width = max(len(branch.ids) for branch in branches)
    ids_BT = np.zeros((len(branches), width), np.int64)
    for row, branch in enumerate(branches):
        ids_BT[row, : len(branch.ids)] = branch.ids
    depth_BT = np.broadcast_to(np.arange(width), ids_BT.shape)
    nodes = [row * width + branch.at for row, branch in enumerate(branches)]
    return _pass(branches, nodes, ids_BT, depth_BT, None)


def _pass(branches: Sequence[_Branch], nodes: list[Ints], ids_BT: Ints, depth_BT: Ints,
          mask_TT: NDArray[np.bool_] | None) -> Pass:  # fmt: skip
    """Gather the entries; positions are told apart by (node, temperature)."""
    node_E = np.concatenate(nodes)
    heat_E = np.concatenate([np.full(len(branch.at), branch.temperature) for branch in branches])
    keys = np.stack([node_E.astype(np.float64), heat_E], axis=1)
    rows, of_E = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(of_E.reshape(-1), kind="stable")

    def gathered(name: str) -> np.ndarray:
        return np.concatenate([getattr(branch, name) for branch in branches])[order]

    return Pass(
        ids_BT=ids_BT,
        depth_BT=depth_BT,
        mask_TT=mask_TT,
        at_P=rows[:, 0].astype(np.int64),
        temperature_P=rows[:, 1].astype(np.float32),
        of_E=of_E.reshape(-1)[order],
        target_E=gathered("target"),
        entry_E=gathered("entry"),
        tokens=ids_BT.size,
    )
