"""Who trains what, who serves whom."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.records import Batch, Sample
from agent_lightning.replica.shares import Affinity, physical_cores, split


def sample(group: int, length: int) -> Sample:
    return Sample(
        rollout_id=f"{group}",
        group_id=f"g{group}",
        tokens=array("i", range(length)),
        trained=array("b", [1] * length),
        logprobs=array("f", [0.0] * length),
        advantages=array("f", [0.0] * length),
        temperature=1.0,
        rollout_tokens=length,
        version=0,
    )


groups = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=30)


@given(groups, st.integers(1, 5))
def test_every_sample_goes_to_one_rank_and_groups_stay_whole(drawn: list[tuple[int, int]], ranks: int) -> None:
    batch = Batch(policy="p", samples=tuple(sample(*d) for d in drawn), rollouts=9, figures={"reward.mean": 0.5})
    shares = split(batch, ranks)
    order = {id(s): position for position, s in enumerate(batch.samples)}
    assert len(shares) == ranks
    assert all((share.rollouts, share.figures) == (9, batch.figures) for share in shares)
    assert sorted(id(s) for share in shares for s in share.samples) == sorted(id(s) for s in batch.samples)
    for share in shares:
        positions = [order[id(s)] for s in share.samples]
        assert positions == sorted(positions)
    homes = [{s.group_id for s in share.samples} for share in shares]
    assert sum(len(home) for home in homes) == len(set().union(*homes))


@given(groups, st.integers(1, 5))
def test_no_rank_carries_more_than_its_fair_part_and_one_group(drawn: list[tuple[int, int]], ranks: int) -> None:
    batch = Batch(policy="p", samples=tuple(sample(*d) for d in drawn), rollouts=1)
    loads = [sum(len(s.tokens) for s in share.samples) for share in split(batch, ranks)]
    sizes: dict[int, int] = {}
    for group, length in drawn:
        sizes[group] = sizes.get(group, 0) + length
    assert max(loads) <= sum(loads) / ranks + max(sizes.values(), default=0)


def test_a_rollout_stays_where_it_was_put_and_new_ones_go_where_it_is_quiet() -> None:
    affinity = Affinity(2)
    assert affinity.choose("a", [0, 0]) == 0
    assert affinity.choose("b", [0, 0]) == 1  # equally quiet, but it has fewer rollouts
    assert affinity.choose("a", [9, 0]) == 0
    assert affinity.choose("c", [9, 0]) == 1
    assert affinity.choose("", [0, 1]) == 0


def test_rollouts_unseen_for_longest_are_forgotten() -> None:
    affinity = Affinity(2, remembered=2)
    for key in ("a", "b", "a", "c"):
        affinity.choose(key, [0, 0])
    assert affinity.choose("a", [5, 0]) == 0  # remembered: it was seen after "b"
    assert affinity.choose("b", [0, 5]) == 0  # forgotten: placed anew


def test_a_machine_has_a_core() -> None:
    assert physical_cores() >= 1
