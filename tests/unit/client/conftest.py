"""Fixtures of the client's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from client_loopback import FakeServer, serve

from agent_lightning.client import breaker, live
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.outbox import OUTBOX


@pytest.fixture
def gateway() -> Iterator[FakeServer]:
    yield from serve("gateway")


@pytest.fixture
def provider() -> Iterator[FakeServer]:
    yield from serve("provider")


@pytest.fixture
def config(gateway: FakeServer) -> ClientConfig:
    return ClientConfig(endpoint=gateway.url, trace_sampling_rate=1.0)


@pytest.fixture
def installed() -> Iterator[None]:
    with install():
        yield


@pytest.fixture(autouse=True)
def undisturbed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, nothing queued that a test left behind."""
    for name in [n for n in os.environ if n.startswith("AGENT_LIGHTNING_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "ASK_SECONDS", 5.0)
    breaker.forget_all()
    yield
    OUTBOX.flush(2.0)
    OUTBOX.close()
