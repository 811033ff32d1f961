"""Fixtures of the frameworks' tests. Each file is skipped, with the name of what is missing, where it cannot run.

Not all frameworks can be installed side by side: docs/frameworks.md says which environments run which file.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from framework_servers import Server, serve

from agent_lightning.client.breaker import forget_all
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.install import install
from agent_lightning.client.outbox import OUTBOX

HERE = Path(__file__).parent
# Frameworks send their own telemetry, and read keys and addresses from here.
ENVIRONMENT = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "sk-secret",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:  # what the frameworks warn of is theirs
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def undisturbed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [n for n in os.environ if n.startswith("AGENT_LIGHTNING_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    forget_all()
    yield
    OUTBOX.flush(2.0)
    OUTBOX.close()
    gc.collect()  # clients and loops that a framework leaves open warn here, where it is ignored


@pytest.fixture
def gateway() -> Iterator[Server]:
    yield from serve("gateway")


@pytest.fixture
def provider() -> Iterator[Server]:
    yield from serve("provider")


@pytest.fixture
def config(gateway: Server) -> ClientConfig:
    return ClientConfig(endpoint=gateway.url)


@pytest.fixture
def installed() -> Iterator[None]:
    with install():
        yield
