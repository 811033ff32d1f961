"""An LLM cache in the agent's process answers for the policy: it is named, with the way to switch it off."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from client_loopback import FakeServer, claim
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_openai import ChatOpenAI

from agent_lightning.client import caches
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.session import claimed


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(caches, "_said", set())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("installed")
def test_a_langchain_cache_that_swallows_calls_is_pointed_out(
    gateway: FakeServer, config: ClientConfig, caplog: pytest.LogCaptureFixture
) -> None:
    set_llm_cache(InMemoryCache())
    model = ChatOpenAI(model="m", base_url="http://provider.invalid/v1", api_key="sk-x")  # type: ignore[arg-type]
    records = []
    with caplog.at_level(logging.WARNING, logger="agent_lightning"):
        for number in (1, 2):
            with claimed(claim(number), config=config) as record:
                assert model.invoke("the same prompt").content == "gateway: the same prompt"
            records.append(record)
    assert [record.calls_sent for record in records] == [1, 0], "the cache has answered the second"
    for record in records:
        (warning,) = record.warnings
        assert "InMemoryCache" in warning
        assert "set_llm_cache(None)" in warning
    assert len(caplog.records) == 1, "said once"
    assert len(gateway.calls) == 1


def test_without_a_cache_nothing_is_said(config: ClientConfig, caplog: pytest.LogCaptureFixture) -> None:
    with claimed(claim(), config=config) as record:
        pass
    assert record.warnings == []
    assert caplog.records == []


def test_a_cache_is_named_also_when_the_agent_failed(config: ClientConfig) -> None:
    set_llm_cache(InMemoryCache())
    with pytest.raises(ValueError, match="broken"), claimed(claim(), config=config) as record:
        raise ValueError("broken")
    assert len(record.warnings) == 1


@pytest.mark.parametrize(("disk", "memory", "warned"), [(True, True, 1), (False, True, 1), (False, False, 0)])
def test_dspys_cache_is_read_as_it_stands(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch, disk: bool, memory: bool, warned: int
) -> None:
    module: Any = types.ModuleType("dspy")
    module.cache = types.SimpleNamespace(enable_disk_cache=disk, enable_memory_cache=memory)
    monkeypatch.setitem(sys.modules, "dspy", module)
    with claimed(claim(), config=config) as record:
        pass
    assert ["dspy.configure_cache" in warning for warning in record.warnings] == [True] * warned


def test_a_dspy_cache_that_nobody_has_used_is_not_made(config: ClientConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("dspy")
    made = []
    module.__getattr__ = made.append
    monkeypatch.setitem(sys.modules, "dspy", module)
    with claimed(claim(), config=config) as record:
        pass
    assert record.warnings == []
    assert made == []
