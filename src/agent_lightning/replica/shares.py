"""Which rank trains which samples, which child serves which rollout, and how many children a machine carries. Pure."""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from agent_lightning.inference.engine import EngineLoad
from agent_lightning.records import Batch, Sample

_CPUS = Path("/sys/devices/system/cpu")


def split(batch: Batch, ranks: int) -> list[Batch]:
    """One share a rank. Groups stay whole, so that each is packed once; the largest goes to the lightest rank first.

    Every share keeps the whole batch's `rollouts` and `figures`, and the order of its samples.
    """
    groups: dict[str, int] = {}  # group id -> tokens
    for sample in batch.samples:
        groups[sample.group_id] = groups.get(sample.group_id, 0) + len(sample.tokens)
    load_R, rank_of = [0] * ranks, dict[str, int]()
    for group, tokens in sorted(groups.items(), key=lambda item: -item[1]):
        rank_of[group] = load_R.index(min(load_R))
        load_R[rank_of[group]] += tokens
    samples_R: list[list[Sample]] = [[] for _ in range(ranks)]
    for sample in batch.samples:
        samples_R[rank_of[sample.group_id]].append(sample)
    return [dataclasses.replace(batch, samples=tuple(samples)) for samples in samples_R]


class Affinity:
    """Keeps requests of one attempt on one child, where their KV cache is; forgets the attempts unseen for longest."""

    def __init__(self, places: int, *, remembered: int = 65_536) -> None:
        self._remembered = remembered
        self._place: OrderedDict[str, int] = OrderedDict()
        self._given = [0] * places

    def choose(self, key: str, in_flight: Sequence[int]) -> int:
        """The place of `key`; at first sight the one with the fewest requests, then the fewest rollouts."""
        place = self._place.pop(key, None)
        if place is None:
            place = min(range(len(in_flight)), key=lambda i: (in_flight[i], self._given[i], i))
            self._given[place] += bool(key)
        if key:
            self._place[key] = place
        if len(self._place) > self._remembered:
            self._given[self._place.popitem(last=False)[1]] -= 1
        return place


def together(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Several children as one engine: sums, but the mean of the busy seconds, so that busy / elapsed is a share."""
    return EngineLoad(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        capacity=sum(load.capacity for load in loads),
        tokens_per_second=sum(load.tokens_per_second for load in loads),
        busy_seconds=sum(load.busy_seconds for load in loads) / max(1, len(loads)),
        tokens=sum(load.tokens for load in loads),
        context_length=min((load.context_length for load in loads), default=0),
    )


def physical_cores() -> int:
    """Cores that this process may use; two hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    return max(1, len({_siblings(cpu) for cpu in allowed}))


def _siblings(cpu: int) -> str:
    """The hardware threads of this CPU's core; the CPU alone where the kernel does not say."""
    try:
        return (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
