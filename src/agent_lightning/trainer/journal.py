"""The run's journal: metrics rows, evaluations and alerts, in the store and as JSON lines, each once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from agent_lightning.store.store import Store
from agent_lightning.trainer.folder import RunFolder

Listener = Callable[[str, int, Mapping[str, Any]], None]  # kind, step, body
ONCE = ("step", "eval", "before", "after")  # kinds that a resumed run must not repeat


class Journal:
    """`write` keeps and passes on; `told` answers whether a step's row is there already."""

    def __init__(self, store: Store, run_id: str, folder: RunFolder, listeners: tuple[Listener, ...] = ()) -> None:
        self._store, self._run_id, self._folder, self._listeners = store, run_id, folder, listeners
        self._rows: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._notes: set[str] = set()
        self._discarded: Counter[tuple[str, int]] = Counter()

    async def open(self) -> None:
        """Read what an earlier process wrote, and make the JSON lines agree with it."""
        lines = []
        for event in await self._store.events(self._run_id):
            if event["kind"] in ONCE:
                self._rows[event["kind"], event["step"]] = event["body"]
            elif event["kind"] == "note":
                self._notes.add(event["body"]["text"])
            elif event["kind"] == "discarded":
                self._discarded[event["body"]["label"], event["step"]] += 1
            lines.append(_line(event["kind"], event["step"], event["body"], event["created_at"]))
        draft = self._folder.metrics.with_suffix(".draft")
        draft.write_text("".join(lines), encoding="utf-8")
        draft.replace(self._folder.metrics)

    def told(self, kind: str, step: int) -> Mapping[str, Any] | None:
        return self._rows.get((kind, step))

    def rows(self, kind: str) -> list[Mapping[str, Any]]:
        """Bodies of one kind, by step."""
        return [body for (name, _), body in sorted(self._rows.items(), key=lambda row: row[0][1]) if name == kind]

    async def write(self, kind: str, step: int, body: Mapping[str, Any]) -> None:
        if kind in ONCE:
            if (kind, step) in self._rows:
                return
            self._rows[kind, step] = body
        await self._store.add_event(self._run_id, kind, step, body)
        try:
            with self._folder.metrics.open("a", encoding="utf-8") as file:
                file.write(_line(kind, step, body, time.time()))
        except OSError as error:  # the store has the row; the lines are made again when the run is opened
            self.notice("alert", {"text": f"{self._folder.metrics} could not be written: {error}"})
        for listener in self._listeners:
            listener(kind, step, body)

    async def discard(self, label: str, step: int, reason: str) -> None:
        """Keep that rollouts taken under `label` at this step are of no use: who goes on takes them anew."""
        self._discarded[label, step] += 1
        await self.write("discarded", step, {"label": label, "reason": reason})

    def discarded(self, label: str, step: int) -> int:
        """How often that happened."""
        return self._discarded[label, step]

    async def note(self, text: str) -> None:
        """Keep something that a reader of the run should know, once a run."""
        if text not in self._notes:
            self._notes.add(text)
            await self.write("note", len(self.rows("step")), {"text": text})

    def notice(self, stage: str, body: Mapping[str, Any]) -> None:
        """Something that is shown and not kept: progress within a stage."""
        for listener in self._listeners:
            listener(stage, -1, body)


def _line(kind: str, step: int, body: Mapping[str, Any], at: float) -> str:
    return json.dumps({"kind": kind, "step": step, "time": round(at, 3), **body}, default=str) + "\n"
