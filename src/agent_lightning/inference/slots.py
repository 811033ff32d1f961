"""Which token sequence lies in which cache slot, and which slot a new sequence gets.

The first `rows` slots are those in which sequences are decoded; close together, so that a decode step reads the cache
in place. A finished sequence rests where it was until its row is needed, then moves to a shelf slot; the least
recently used resting sequence is forgotten first. Nothing is shared across lanes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_lightning.records import token_ids

Key = tuple[str, int, int]  # policy, version, count of publications so far: the same number may be published again
Lane = tuple[Key, str]  # who may share: one publication's sequences and, where attempts are kept apart, one attempt's
Copy = Callable[[int, int, int], None]  # source slot, target slot, tokens


@dataclass(slots=True)
class Slot:
    number: int
    lane: Lane | None = None  # None: free
    tokens: array[int] = field(default_factory=token_ids)  # whose keys and values are in the cache
    active: bool = False  # a running sequence writes here
    used: int = 0  # clock of the last use


def common(a: array[int], b: array[int]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


class SlotTable:
    def __init__(self, *, rows: int, shelf: int, copy: Copy, crops: bool) -> None:
        self.rows = [Slot(i) for i in range(rows)]
        self.shelf = [Slot(rows + i) for i in range(shelf)]
        self._copy = copy
        self._crops = crops  # False: a slot's sequence can be used whole or not at all
        self._clock = 0

    def find(self, lane: Lane, prompt: array[int]) -> tuple[Slot | None, int]:
        """The slot with the longest usable prefix of the prompt, and its length: at most all but the last token."""
        best, length = None, 0
        for slot in (*self.rows, *self.shelf):
            if slot.lane != lane:
                continue
            shared = min(common(slot.tokens, prompt), len(prompt) - 1)
            if not self._crops and shared < len(slot.tokens):
                continue
            if shared > length:
                best, length = slot, shared
        return best, length

    def take(self, lane: Lane, source: Slot | None, length: int) -> Slot:
        """A row that holds the first `length` tokens of `source`, now active. At least one row must be idle."""
        self._clock += 1
        if source is None:
            row = self._free_row(None)
            row.tokens = token_ids()
        elif not source.active and source.number < len(self.rows) and length == len(source.tokens):
            row = source
        else:
            row = self._free_row(source)
            prefix = source.tokens[:length]
            self._copy(source.number, row.number, length)
            if not source.active and source is not row and length == len(source.tokens):
                source.lane = None  # its sequence goes on in the row
            row.tokens = prefix
            source.used = self._clock
        row.lane, row.active, row.used = lane, True, self._clock
        return row

    def rest(self, slot: Slot) -> None:
        """The sequence ended: what was computed stays for its next turn."""
        self._clock += 1
        slot.active, slot.used = False, self._clock

    def forget(self, keep: Callable[[Lane], bool]) -> None:
        """Free the resting slots whose lane is not kept."""
        for slot in (*self.rows, *self.shelf):
            if slot.lane is not None and not slot.active and not keep(slot.lane):
                slot.lane = None

    def clear(self) -> None:
        for slot in (*self.rows, *self.shelf):
            slot.lane, slot.active = None, False

    def _free_row(self, source: Slot | None) -> Slot:
        free = [row for row in self.rows if row.lane is None]
        if free:
            return free[0]
        resting = [row for row in self.rows if not row.active]
        assert resting, "every row is active: the core admits too many sequences"
        others = [row for row in resting if row is not source]
        if not others:
            return resting[0]
        row = min(others, key=lambda slot: slot.used)
        self._shelve(row, source)
        return row

    def _shelve(self, row: Slot, source: Slot | None) -> None:
        """Move a resting sequence out of a row, over the oldest of the shelf."""
        places = [slot for slot in self.shelf if slot is not source]
        if not places:
            return
        place = min(places, key=lambda slot: (slot.lane is not None, slot.used))
        if place.lane is not None and place.used > row.used:
            return
        self._copy(row.number, place.number, len(row.tokens))
        place.lane, place.tokens, place.used = row.lane, row.tokens, row.used
