"""Bytes of strangers at the collector: read, or refused with a reason, and never a failure of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agent_lightning.errors import RequestError
from agent_lightning.store.rows import span_of, span_row
from agent_lightning.wire.otlp import losses_of, spans_of
from agent_lightning.wire.otlp_protobuf import answer, json_form

NAMES = ("resourceSpans", "scopeSpans", "spans", "attributes", "resource", "key", "value", "values", "stringValue", "intValue",
         "doubleValue", "arrayValue", "kvlistValue", "traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano",
         "endTimeUnixNano", "status", "code", "agent_lightning.rollout_id", "agent_lightning.lost.span")  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a" * 32, "b" * 16, "0" * 16, "1"])
    | st.sampled_from(["\ud800", "9" * 30, "-1", "NaN", "²"])
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=30,
)
ROW = {"traceId": "a" * 32, "spanId": "b" * 16, "startTimeUnixNano": "1", "endTimeUnixNano": 2}


def exported(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def read(body: Any) -> None:
    """Whatever it is, what is read can be written down and comes back the same."""
    spans, refused = spans_of(body)
    assert all(refused.values())
    losses_of(body)
    for span in spans:
        row = span_row(span)
        assert all(not isinstance(value, str) or value.encode("utf-8") is not None for value in row.values())
        assert -(2**63) <= row["start_ns"] < 2**63 and json.loads(row["attributes"]) == span.attributes
        assert span_of([0, *row.values()]) == span


@given(body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_json_object_is_read_or_refused(body: dict[str, Any]):
    read(body)


@given(changes=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_change_of_a_span_is_read_or_refused(changes: dict[str, Any]):
    body = exported({**ROW, **changes}, ROW)
    read(body)
    spans, refused = spans_of(body)
    assert len(spans) + refused.total() == 2


@given(raw=st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_protobuf_or_a_request_error(raw: bytes):
    try:
        read(json_form(raw))
    except RequestError as error:
        assert "ExportTraceServiceRequest" in str(error)


@given(cut=st.integers(0, 200), flip=st.integers(0, 200), byte=st.integers(0, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_export_is_read_or_refused(cut: int, flip: int, byte: int):
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="näme")
    span.attributes.add(key="k").value.array_value.values.add().kvlist_value.values.add(
        key="a"
    ).value.double_value = 1.5
    raw = bytearray(request.SerializeToString())
    raw[flip % len(raw)] = byte
    try:
        read(json_form(bytes(raw[: len(raw) - cut % len(raw)])))
    except RequestError:
        return


def test_both_forms_of_one_export_are_the_same_spans():
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="x", start_time_unix_nano=5, end_time_unix_nano=2**63 - 1)
    )
    span.status.code = 2
    for name, kind, value in (
        ("agent_lightning.component", "string_value", "a/b"),
        ("int", "int_value", -(2**63)),
        ("flag", "bool_value", True),
        ("bytes", "bytes_value", b"\x01"),
    ):
        setattr(span.attributes.add(key=name).value, kind, value)
    [found], refused = spans_of(json_form(request.SerializeToString()))
    assert not refused and (found.component, found.status, found.end_ns) == ("a/b", "error", 2**63 - 1)
    assert found.attributes == {"int": -(2**63), "flag": True, "bytes": "01"}
    again = spans_of(json.loads(json.dumps(json_form(request.SerializeToString()))))
    assert again == ([found], refused)
    assert answer(0, "") == b""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"traceId": "0" * 32}, "traceId is not 32 hex digits, other than all zeros"),
        ({"spanId": "+0b" + "1" * 13}, "spanId is not 16 hex digits, other than all zeros"),
        ({"startTimeUnixNano": str(2**63)}, "startTimeUnixNano is no time in Unix nanoseconds"),
        ({"endTimeUnixNano": -1}, "endTimeUnixNano is no time in Unix nanoseconds"),
        ({"attributes": [{"key": "agent_lightning.rollout_id", "value": {"intValue": 1}}]},
         "agent_lightning.rollout_id is no text of at most 200 characters"),
        ({"attributes": [{"key": "n", "value": {"intValue": 2**64}}]}, "an intValue of more than 64 bits"),
    ],
)  # fmt: skip
def test_a_span_that_cannot_be_kept_says_why(change: dict[str, Any], reason: str):
    spans, refused = spans_of(exported({**ROW, **change}, ROW))
    assert len(spans) == 1 and dict(refused) == {reason: 1}
