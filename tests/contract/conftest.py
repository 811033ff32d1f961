"""Every store that a contract is held against."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.store import Store
from store_cases import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: StillClock) -> AsyncIterator[Store]:
    path = ":memory:" if request.param == "memory" else tmp_path / "store.db"
    opened = await SqliteStore.open(path, clock=clock)
    yield opened
    await opened.close()
