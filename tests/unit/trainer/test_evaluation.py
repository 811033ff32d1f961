"""Held-out measurement: failures of the agent count, losses of the infrastructure do not."""

from __future__ import annotations

from dataclasses import replace

from agent_lightning.records import Outcome, Task
from agent_lightning.trainer.evaluate import evaluation, rollouts_of
from lived import lived


def measured(name: str, reward: float | None, *, outcome: Outcome = Outcome.OK, **meta):
    item = lived(name, reward, [1], group=name, outcome=outcome)
    return replace(item, rollout=replace(item.rollout, task=Task(id=name, input=name, meta=meta)))


def score(*items):
    return evaluation(items, split="val", step=3, version=2, success_reward=1.0)


def test_kinds_and_unseen_kinds_are_reported_apart():
    found = score(
        measured("a", 1.0, kind="add"),
        measured("b", 0.4, kind="add"),
        measured("c", 1.0, kind="sub"),
        measured("d", 0.0, kind="odd", unseen_kind=True),
    )
    assert (found.seen.success, found.seen.n) == (2 / 3, 3)
    assert found.unseen is not None
    assert (found.unseen.success, found.unseen.n) == (0.0, 1)
    assert found.kinds["add"].success == 0.5


def test_an_agents_failure_counts_as_the_lowest_reward():
    found = score(measured("a", 1.0), measured("b", None, outcome=Outcome.AGENT_ERROR), measured("c", -0.5))
    assert found.rewards == {"a": 1.0, "b": -0.5, "c": -0.5}
    assert found.failed == {"agent_error": 1}


def test_what_the_infrastructure_lost_is_left_out():
    found = score(measured("a", 1.0), measured("b", None, outcome=Outcome.LOST_WORKER))
    assert (found.seen.success, found.seen.n) == (1.0, 1)
    assert found.failed == {"lost_worker": 1}


def test_ids_say_what_is_measured_so_that_a_resumed_run_finds_them():
    tasks = [Task(id="x", input=1), Task(id="y", input=2)]
    once = rollouts_of(tasks, run_id="run", step=4, mode="val", label="val-000004", seed=0)
    again = rollouts_of(tasks, run_id="run", step=4, mode="val", label="val-000004", seed=0)
    assert [item.id for item in once] == ["run.val-000004.x", "run.val-000004.y"] == [item.id for item in again]
