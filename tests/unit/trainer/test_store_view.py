"""Looking at a store beside the process that writes it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agent_lightning.errors import NotFound, StoreError
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.view import StoreView
from showing_cases import Lived, hand_made, live


async def test_a_view_sees_what_is_written_while_it_is_open_and_does_not_hold_up_the_writer(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await store.open_run("run", {}, holder="trainer", lease_seconds=60.0)
    with StoreView(tmp_path / "store.db") as view:
        assert view.states("run") == {}
        await live(store, "run", Lived(rollout_id="r1", parts={"exact": 1.0}))
        assert view.states("run") == {"finished": 1}
        assert [call.id for call in view.calls_of(["r1"])["r1"]] == ["r1.call-0", "r1.call-1"]
        assert view.run("run")["holder"] == "trainer"
    await store.close()


def test_a_view_cannot_write(tmp_path: Path) -> None:
    with StoreView(hand_made(tmp_path).store) as view, pytest.raises(sqlite3.OperationalError, match="readonly"):
        view._db.execute("DELETE FROM rollouts")


def test_what_is_no_store_of_ours_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no store yet"):
        StoreView(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("this is a text and no database at all, however long one makes it")
    with pytest.raises(StoreError, match=r"text\.db"):
        StoreView(tmp_path / "text.db")
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE cats (name TEXT)")
    foreign.close()
    with pytest.raises(StoreError, match=r"foreign\.db"):
        StoreView(tmp_path / "foreign.db")


def test_drops_are_counted_by_reason_with_an_example(tmp_path: Path) -> None:
    folder = hand_made(tmp_path)
    with StoreView(folder.store) as view:
        found = {item.reason: (item.count, item.example) for item in view.dropped("made")}
        assert found == {
            "agent_error": (1, "made.step-000000.digit-9.0"),
            "no_reward": (1, "made.step-000000.digit-9.1"),
        }
        with pytest.raises(NotFound):
            view.run("another")
