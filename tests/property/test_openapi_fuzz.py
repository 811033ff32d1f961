"""Every operation of the OpenAPI, with what schemathesis makes of it: no 5xx, and answers as they are described."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agent_lightning.records import Claim
from agent_lightning.store.sqlite import SqliteStore
from server_rig import bearer, claimed, on_a_socket, rig_state

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@dataclass
class Served:
    url: str
    claims: list[Claim]  # one for each operation
    http: requests.Session


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server without keys on a loop of its own: schemathesis speaks blocking HTTP."""
    found: list[Served] = []
    ready, over = threading.Event(), threading.Event()

    async def run() -> None:
        store = await SqliteStore.open()
        async with on_a_socket(rig_state(store)) as (host, port):
            claims = [await claimed(store) for _ in range(100)]
            found.append(Served(f"http://{host}:{port}", claims, requests.Session()))
            ready.set()
            await asyncio.to_thread(over.wait)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="fuzzed server", daemon=True)
    thread.start()
    assert ready.wait(20)
    yield found[0]
    found[0].http.close()
    over.set()
    thread.join(20)


def fuzz(served: Served, examples: int, modes: Sequence[GenerationMode] = (GenerationMode.POSITIVE,)) -> int:
    """Try each operation so often; gives how many operations there were."""
    document = served.http.get(f"{served.url}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:
        claim = served.claims.pop()
        served.http.headers.update(bearer(claim.key))
        names = {"rollout_id": claim.rollout.id, "attempt_id": claim.attempt.id, "run_id": "run"}
        own = {name: value for name, value in names.items() if f"{{{name}}}" in operation.path}
        cases = [operation.as_strategy(generation_mode=mode) for mode in modes]
        cases += [operation.as_strategy(path_parameters=own)] if own else []
        _try(served, st.one_of(cases), examples)
    return len(operations)


def _try(served: Served, cases: st.SearchStrategy[Any], examples: int) -> None:
    @given(case=cases)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any) -> None:
        if isinstance(case.body, dict) and "wait_seconds" in case.body:
            case.body["wait_seconds"] = 0  # nobody queues anything
        case.call_and_validate(base_url=served.url, session=served.http, checks=CHECKS)

    one()


@pytest.mark.filterwarnings("default")  # of schemathesis about what it cannot make
def test_no_operation_fails_or_answers_what_is_not_described(served: Served):
    assert fuzz(served, 3) >= 24


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_no_operation_fails_in_many_tries(served: Served):
    assert fuzz(served, 250, list(GenerationMode)) >= 24


def test_each_operation_says_what_it_is_and_how_it_fails(served: Served):
    document = served.http.get(f"{served.url}/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary") or operation.get("description"), (method, path)
            assert "422" not in operation["responses"]
            if path not in ("/healthz", "/readyz"):
                assert {"400", "401", "413", "429"} <= operation["responses"].keys(), (method, path)
    bodies = [schema for name, schema in document["components"]["schemas"].items() if name.endswith("Body")]
    assert sum("examples" in schema for schema in bodies) >= 5
