"""/v1/traces as OpenTelemetry's own exporter and others speak to it."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import StatusCode

from agent_lightning.records import Claim
from agent_lightning.server.access import Keys
from agent_lightning.store.sqlite import SqliteStore
from server_rig import FIXED, bearer, claimed, on_a_socket, rig_state

PROTOBUF = "application/x-protobuf"


@dataclass
class Rig:
    store: SqliteStore
    claim: Claim
    url: str
    http: httpx.AsyncClient


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    store = await SqliteStore.open()
    async with on_a_socket(rig_state(store, Keys(**FIXED))) as (host, port):
        claim, url = await claimed(store), f"http://{host}:{port}"
        async with httpx.AsyncClient(base_url=url, headers=bearer(claim.key), verify=False) as http:
            yield Rig(store, claim, url, http)
    await store.close()


def export(url: str, key: str, compression: Compression, attributes: dict[str, Any]) -> list[SpanExportResult]:
    """Two spans through the official exporter."""
    headers = {"Authorization": f"Bearer {key}"}
    exporter = OTLPSpanExporter(f"{url}/v1/traces", headers=headers, compression=compression, timeout=5)
    results: list[SpanExportResult] = []
    plain = exporter.export

    def seen(spans: Any) -> SpanExportResult:
        results.append(plain(spans))
        return results[-1]

    exporter.export = seen  # type: ignore[method-assign]
    provider = TracerProvider(resource=Resource({"service.name": "agent"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("t")
    agent = tracer.start_as_current_span("agent", attributes=attributes)
    tool = {**attributes, "tries": [1, 2], "cost": float("nan")}
    with agent, tracer.start_as_current_span("tool", attributes=tool) as span:
        span.set_status(StatusCode.ERROR)
    provider.shutdown()
    return results


@pytest.mark.parametrize("compression", list(Compression))
async def test_spans_of_the_official_exporter_are_stored(rig: Rig, compression: Compression):
    results = await asyncio.to_thread(export, rig.url, rig.claim.key, compression, {"gen_ai.agent.name": "solver"})
    assert results == [SpanExportResult.SUCCESS] * 2
    agent, tool = await rig.store.spans(rig.claim.rollout.id)
    assert (agent.name, tool.name, tool.parent_span_id) == ("agent", "tool", agent.span_id)
    assert (agent.parent_span_id, agent.trace_id, tool.status) == (None, tool.trace_id, "error")
    assert tool.attributes == {"gen_ai.agent.name": "solver", "tries": [1, 2], "cost": "NaN"}
    assert {span.attempt_id for span in (agent, tool)} == {rig.claim.attempt.id}
    assert 0 < tool.end_ns - tool.start_ns < 10**10


async def test_a_worker_names_the_rollout_in_each_span(rig: Rig):
    for attributes in ({"agent_lightning.rollout_id": rig.claim.rollout.id}, {}):
        await asyncio.to_thread(export, rig.url, FIXED["worker"], Compression.Gzip, attributes)
        assert len(await rig.store.spans(rig.claim.rollout.id)) == 2, "spans that name none are counted, not stored"


def request(*ids: bytes, rollout: str | None = None) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    scope = made.resource_spans.add().scope_spans.add()
    for own in ids:
        span = scope.spans.add(trace_id=b"t" * 16, span_id=own, name="x", start_time_unix_nano=1, end_time_unix_nano=2)
        if rollout:
            span.attributes.add(key="agent_lightning.rollout_id").value.string_value = rollout
    return made


async def test_partial_success_is_told_in_protobuf_with_the_reasons(rig: Rig):
    foreign = request(b"b" * 8, rollout="another")
    foreign.resource_spans.add().scope_spans.add().spans.extend(
        request(b"c" * 8, b"short").resource_spans[0].scope_spans[0].spans
    )
    answer = await rig.http.post("/v1/traces", content=foreign.SerializeToString(), headers={"content-type": PROTOBUF})
    assert answer.headers["content-type"] == PROTOBUF
    told = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert told.rejected_spans == 2
    assert "1 are of another rollout" in told.error_message and "1 spanId is not 16 hex digits" in told.error_message
    assert [span.span_id for span in await rig.store.spans(rig.claim.rollout.id)] == [(b"c" * 8).hex()]


async def test_whole_success_is_an_empty_answer(rig: Rig):
    sent = request(b"b" * 8).SerializeToString()
    answer = await rig.http.post("/v1/traces", content=sent, headers={"content-type": PROTOBUF})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await rig.http.post("/v1/traces", json={"resourceSpans": []})).json() == {}


@pytest.mark.parametrize("form", [PROTOBUF, "application/json"])
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"content": b"\x0a\xff\xff\xff\xff\xff"}, 400),
        ({"content": gzip.compress(b"{}")[:-4], "headers": {"content-encoding": "gzip"}}, 400),
        ({"content": b"no gzip", "headers": {"content-encoding": "gzip"}}, 400),
        ({"headers": {"content-encoding": "br"}}, 415),
        ({"headers": bearer("alo-1")}, 401),
    ],
    ids=["garbage", "torn gzip", "no gzip", "brotli", "read key"],
)
async def test_refusals_are_a_status_in_the_encoding_that_was_spoken(
    rig: Rig, form: str, change: dict[str, Any], status: int
):
    headers = {"content-type": form, **change.get("headers", {})}
    answer = await rig.http.post("/v1/traces", content=change.get("content", b""), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, form)
    if form == PROTOBUF:
        told = Status.FromString(answer.content)
        code, message = told.code, told.message
    else:
        code, message = answer.json()["code"], answer.json()["error"]["message"]
    assert code == (16 if status == 401 else 3) and message


async def test_other_forms_are_refused_with_those_that_are_read(rig: Rig):
    answer = await rig.http.post("/v1/traces", content=b"<x/>", headers={"content-type": "text/xml"})
    assert answer.status_code == 415
    assert "application/json or application/x-protobuf" in answer.json()["error"]["message"]


async def test_deflate_and_several_gzip_members_are_unpacked(rig: Rig):
    raw = json.dumps({"resourceSpans": []}).encode()
    for encoding, packed in (
        ("deflate", zlib.compress(raw)),
        ("gzip", gzip.compress(raw[:5]) + gzip.compress(raw[5:])),
    ):
        headers = {"content-type": "application/json", "content-encoding": encoding}
        assert (await rig.http.post("/v1/traces", content=packed, headers=headers)).json() == {}
