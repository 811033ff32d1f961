"""`gc` and `forget`: what goes is gone, what stays is whole, and a run that goes on is not harmed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_lightning.cli.app import app
from agent_lightning.cli.retention import seconds_of
from agent_lightning.errors import Conflict, LightningError, NotFound, RunInUse, SettingError
from agent_lightning.records import Outcome
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.train import Trainer
from agent_lightning.trainer import report
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.replay import decode
from kept_runs import RUN, evaluated, found, ids_of, lived, make_run, marker, span, trained_step
from showing_cases import TRAINED, graded, trained_run
from store_cases import make_rollout


def done(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.split())


async def command(*arguments: str) -> str:
    return await asyncio.to_thread(done, *arguments)


async def opened(folder: RunFolder) -> SqliteStore:
    return await SqliteStore.open(folder.store)


async def texts(folder: RunFolder) -> set[str]:
    """Rollouts whose text is still there."""
    store = await opened(folder)
    whole = {rollout.id for rollout in await store.rollouts(RUN) if rollout.cleared_at is None}
    calls = await store.calls_of(sorted(whole))
    assert all(call.sampled_ids and call.request and call.response for each in calls.values() for call in each)
    await store.close()
    return whole


VAL = f"{RUN}.val-"
SHOWN = {f"s{step}.{sibling}" for step in range(5, 10) for sibling in range(2)} | {
    f"{VAL}000000.task",
    f"{VAL}000010.task",
}


async def test_old_texts_go_and_what_the_report_shows_stays(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    told = await command("gc", str(folder.path), "--older-than", "0m")
    assert "deleted the text and tokens of 12 rollouts: 24 calls, 24 spans, the samples of 8 batches" in told
    assert "kept 12 older rollouts: the run's report shows them" in told
    assert await texts(folder) == SHOWN
    again = await command("gc", str(folder.path), "--older-than", "0m")
    assert "of 0 rollouts: 0 calls, 0 spans, the samples of 0 batches" in again


async def test_rows_numbers_and_rewards_stay(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    before, calls_before = await store.rollout("s1.0"), await store.calls("s1.0")
    await store.close()
    await command("gc", str(folder.path), "--older-than", "0m")
    store = await opened(folder)
    after = await store.rollout("s1.0")
    assert after.cleared_at is not None and after.outcome is Outcome.OK
    assert (after.task.id, after.task.input, after.task.meta) == ("task-1", None, {})
    assert (after.finished_at, after.step, after.attempts) == (before.finished_at, 1, 1)
    calls = await store.calls("s1.0")
    assert [(c.id, c.order, c.version_from, c.finished_at) for c in calls] == [
        (c.id, c.order, c.version_from, c.finished_at) for c in calls_before
    ]
    assert calls[0].meta == {"suffix_tokens": 64, "sampled_tokens": 64}
    assert calls[0].used_sampling == {"temperature": 1.0}
    [reward] = (await store.rewards_of(["s1.0"]))["s1.0"]
    assert (reward.name, reward.value, reward.source) == ("reward", 0.5, marker("s1.0", "source"))
    assert await store.spans("s1.0") == []
    assert await store.enqueue([make_rollout("s1.0", run_id=RUN, task=before.task)]) == 0, "it is not queued anew"
    assert [batch.version for batch in await store.batches(RUN, "default", after_version=0)] == list(range(1, 11))
    await store.close()


@pytest.mark.parametrize("held", [False, True])
async def test_space_is_given_back(tmp_path: Path, held: bool) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    await lived(store, "long", mode="live")
    await store.close()
    db = sqlite3.connect(folder.store)
    db.execute("UPDATE calls SET request = ? WHERE rollout_id = 'long'", ('{"x": "' + "y" * 3_000_000 + '"}',))
    db.commit()
    db.close()
    before = folder.store.stat().st_size
    if held:
        store = await opened(folder)
        await store.open_run(RUN, {}, holder="trainer", lease_seconds=60)
    await command("gc", str(folder.path), "--older-than", "0m")
    await store.close()
    assert folder.store.stat().st_size < before - 5_500_000


async def test_a_file_that_cannot_give_space_back_is_written_anew_when_nobody_holds_it(tmp_path: Path) -> None:
    """Files made by the first version are of this kind."""
    folder = await make_run(tmp_path)
    db = sqlite3.connect(folder.store, isolation_level=None)
    db.execute("PRAGMA auto_vacuum = NONE")
    db.execute("VACUUM")
    assert db.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    store = await opened(folder)
    await store.open_run(RUN, {}, holder="trainer", lease_seconds=60)
    assert "is used again" in await command("gc", str(folder.path), "--older-than", "0m")
    await store.release_run(RUN, holder="trainer")
    await store.close()
    before = folder.store.stat().st_size
    await command("gc", str(folder.path), "--older-than", "0m")
    assert folder.store.stat().st_size < before
    db.close()
    db = sqlite3.connect(folder.store)
    assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    db.close()


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    before = await texts(folder)
    assert "would delete the text and tokens of 12 rollouts" in await command(
        "gc", str(folder.path), "--older-than", "0m", "--dry-run"
    )
    assert await texts(folder) == before


async def test_young_rollouts_and_on_request_those_that_were_trained_on_are_kept(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    before = await texts(folder)
    assert "of 0 rollouts" in await command("gc", str(folder.path))
    assert await texts(folder) == before
    told = await command("gc", str(folder.path), "--older-than", "0m", "--keep-training")
    assert "a batch was trained on them (--keep-training)" in told
    assert await texts(folder) == before - {"live", f"{VAL}000005.task"}


async def test_what_a_run_needs_to_go_on_is_kept(tmp_path: Path) -> None:
    """A step that is only half collected, one whose batch is committed and not applied, an evaluation that is open."""
    folder = await make_run(tmp_path)
    store = await opened(folder)
    await lived(store, "half", step=10)
    await trained_step(store, 10, applied=False)
    await lived(store, "s11.0", step=11)
    await lived(store, f"{VAL}000011.task", mode="val", step=11, task_id="task")
    await store.close()
    told = await command("gc", str(folder.path), "--older-than", "0m")
    assert "kept 5 older rollouts: a trainer that goes on will read them" in told
    assert {"half", "s10.0", "s10.1", "s11.0", f"{VAL}000011.task"} <= await texts(folder)
    store = await opened(folder)
    for record in await store.batches(RUN, "default", after_version=8):
        assert len(decode(record.payload).samples) == 2, "every batch since the oldest checkpoint can be repeated"
    await store.close()


async def test_gc_works_beside_a_trainer_that_writes(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    await store.open_run(RUN, {}, holder="trainer", lease_seconds=60)
    clearing = asyncio.create_task(command("gc", str(folder.path), "--older-than", "0m"))
    step = 10
    while not clearing.done() or step < 12:
        await evaluated(store, step + 1_000)
        await trained_step(store, step)
        step += 1
    await clearing
    for name in (f"s{step - 1}.0", f"{VAL}{step + 999:06d}.task"):
        assert (await store.rollout(name)).cleared_at is None
        assert all(call.sampled_ids for call in await store.calls(name))
    await store.close()


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "30 days", "1e3d"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    with pytest.raises(SettingError, match="such as 30d"):
        seconds_of(age)
    assert seconds_of("1.5h") == 5_400.0


# --- forget -----------------------------------------------------------------------------------------------------


async def test_a_forgotten_rollout_is_in_no_byte_of_the_run(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    await asyncio.to_thread(report.write, folder)
    db = sqlite3.connect(folder.store)
    db.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on, others not
    db.execute("UPDATE calls SET error = ? WHERE id = 's1.0.c0'", (marker("s1.0", "left behind") * 200,))
    db.commit()
    db.execute("UPDATE calls SET error = NULL WHERE id = 's1.0.c0'")
    db.commit()
    db.close()
    assert found(folder, b"s1.0|left behind") == ["store.db"], "free pages hold what earlier writes left behind"
    assert found(folder, b"marker<s1.0|") and found(folder, ids_of("s1.0").tobytes()) == ["store.db"]
    told = await command("forget", str(folder.path), "s1.0")
    assert "forgotten: s1.0" in told and "2 calls, 2 spans, the samples of 1 batches" in told
    assert "default version 2 (run kept, step 1, checkpoint step-000002)" in told
    assert "1 other rollouts of the same task keep its input (s1.1)" in told
    for text in (b"marker<s1.0", ids_of("s1.0").tobytes(), ids_of("s1.0s").tobytes(), b"|response-1>-filler ..."):
        assert found(folder, text) == []
    assert found(folder, b"marker<s1.1|"), "others are whole"
    store = await opened(folder)
    [record] = [r for r in await store.batches(RUN, "default", after_version=0) if r.version == 2]
    assert record.rollout_ids == ("s1.0", "s1.1")
    assert [sample.rollout_id for sample in decode(record.payload).samples] == ["s1.1"]
    [reward] = (await store.rewards_of(["s1.0"]))["s1.0"]
    assert (reward.value, reward.name, reward.source) == (0.5, "", "")
    alerts = [event["body"] for event in await store.events(RUN, "alert")]
    assert alerts == [{"text": "(forgotten)", "of": "s1.0"}]
    assert [event["body"]["text"] for event in await store.events(RUN, "note")] == ["the template is not append-only"]
    await store.close()
    assert "step 1" in await command("forget", str(folder.path), "s1.0"), "the same again is harmless"


async def test_what_gc_has_cleared_can_be_forgotten_and_a_whole_task_too(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    await command("gc", str(folder.path), "--older-than", "0m")
    told = await command("forget", str(folder.path), "s2.0", "--whole-task")
    assert "forgotten: s2.0" in told and "forgotten: s2.1" not in told, "its sibling has no text any more"
    told = await command("forget", str(folder.path), "s7.0", "--whole-task")
    assert "forgotten: s7.0" in told and "forgotten: s7.1" in told and "other rollouts" not in told
    assert found(folder, b"marker<s7.") == []
    assert found(folder, b"marker<s2.0|") == []
    assert "no policy version was trained on it" in await command("forget", str(folder.path), "live")


async def test_what_comes_late_does_not_bring_a_rollout_back(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    claim = await store.start_live(make_rollout("mine", mode="live", run_id=RUN), "w", lease_seconds=60)
    await store.end_attempt(claim.attempt.id, Outcome.OK)
    late = [span("mine", claim.attempt.id, 7), span("s9.0", "a", 8)]
    assert (await store.access(claim.key)) is not None
    await store.close()
    await command("forget", str(folder.path), "mine")
    store = await opened(folder)
    assert await store.access(claim.key) is None
    await store.add_spans(late)
    assert await store.spans("mine") == [] and len(await store.spans("s9.0")) == 3
    await store.close()


async def refusal(folder: RunFolder, rollout_id: str) -> LightningError:
    with pytest.raises(LightningError) as refused:
        await command("forget", str(folder.path), rollout_id)
    return refused.value


async def test_what_a_run_needs_to_go_on_is_not_forgotten(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    await lived(store, "half", step=10)
    await trained_step(store, 10, applied=False)
    await store.enqueue([make_rollout("queued", run_id=RUN)])
    await store.close()
    for name, why in (
        ("s10.0", "its batch is committed, and the update is not made yet"),
        ("half", "has not finished step 10"),
        ("queued", "is queued"),
    ):
        refused = await refusal(folder, name)
        assert isinstance(refused, Conflict) and why in str(refused)
    assert isinstance(await refusal(folder, "nobody"), NotFound)
    assert {"s10.0", "half"} <= await texts(folder)


async def test_a_run_that_is_held_forgets_nothing(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = await opened(folder)
    await store.open_run(RUN, {}, holder="elsewhere/1/a", lease_seconds=60)
    refused = await refusal(folder, "s1.0")
    assert isinstance(refused, RunInUse) and "held by elsewhere/1/a" in str(refused)
    await store.close()
    assert "s1.0" in await texts(folder)


async def test_a_reader_beside_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are gone then, but their bytes may not be: the command says so and can be repeated."""
    monkeypatch.setattr("agent_lightning.store.opening.BUSY_MS", 100)
    folder = await make_run(tmp_path)
    reader = sqlite3.connect(folder.store, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM rollouts").fetchone()
    assert "another process" in str(await refusal(folder, "s1.0"))
    reader.close()
    await command("forget", str(folder.path), "s1.0")
    assert found(folder, b"marker<s1.0|") == []


async def test_a_run_goes_on_after_its_past_was_forgotten(tmp_path: Path) -> None:
    """Its newer checkpoints are damaged, so that it goes on from the first one and repeats every committed batch."""
    from examples.lookup.agent import answer

    first = await asyncio.to_thread(trained_run)
    folder = RunFolder(tmp_path / first.name)
    shutil.copytree(first.path, folder.path)
    weights = [place for step in (1, 2) for place in folder.checkpoint(step).glob("*.safetensors")]
    for place in weights:
        place.write_bytes(b"damaged")
    lost = "trained.step-000001.train-0000.2"
    await command("gc", str(folder.path), "--older-than", "0m")
    assert f"version 2 (run {first.name}, step 1" in await command("forget", str(folder.path), lost)
    trainer = Trainer(
        answer, reward=graded, config={**TRAINED, "total_steps": 3, "runs": str(tmp_path)}, run=first.name
    )
    await asyncio.to_thread(trainer.fit, ["1", "2", "3"], ["4"], ["5", "6"])
    store = await opened(folder)
    assert weights and all(place.stat().st_size > 1_000 for place in weights), "they were made again"
    assert [event["step"] for event in await store.events(first.name, "step")] == [1, 2, 3]
    assert [version.version for version in await store.versions(first.name)] == [1, 2, 3]
    assert (await store.rollout(lost)).cleared_at is not None
    await store.close()
