"""OTLP's binary form: requests are brought to the JSON form that otlp.py reads, answers are written back.

`opentelemetry-proto` comes with the extra `server`; it is imported when the first such request comes.
"""

from __future__ import annotations

from typing import Any

from agent_lightning.errors import MissingExtra, RequestError

CONTENT_TYPE = "application/x-protobuf"


def json_form(raw: bytes) -> dict[str, Any]:
    """An ExportTraceServiceRequest in its JSON form. Raises RequestError for bytes that are none."""
    from google.protobuf.message import DecodeError

    try:
        request = _service().ExportTraceServiceRequest.FromString(raw)
    except DecodeError as error:
        raise RequestError(f"the body is no ExportTraceServiceRequest: {error}") from error
    return {"resourceSpans": [_resource(resource) for resource in request.resource_spans]}


def answer(rejected: int, reason: str) -> bytes:
    """An ExportTraceServiceResponse; empty when every span was taken."""
    service = _service()
    if not rejected:
        return service.ExportTraceServiceResponse().SerializeToString()
    partial = service.ExportTracePartialSuccess(rejected_spans=rejected, error_message=reason)
    return service.ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def refusal(code: int, message: str) -> bytes:
    """A google.rpc.Status."""
    from google.rpc.status_pb2 import Status

    return Status(code=code, message=message).SerializeToString()


def _service() -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "spans as protobuf need opentelemetry-proto: pip install 'agent-lightning[server]', or send OTLP/JSON"
        ) from error
    return trace_service_pb2


def _resource(resource: Any) -> dict[str, Any]:
    return {
        "resource": {"attributes": _pairs(resource.resource.attributes)},
        "scopeSpans": [{"spans": [_span(span) for span in scope.spans]} for scope in resource.scope_spans],
    }


def _span(span: Any) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "name": span.name,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _pairs(span.attributes),
        "status": {"code": span.status.code},
    }


def _pairs(listed: Any) -> list[dict[str, Any]]:
    return [{"key": item.key, "value": _value(item.value)} for item in listed]


def _value(value: Any) -> dict[str, Any]:
    match value.WhichOneof("value"):
        case "string_value":
            return {"stringValue": value.string_value}
        case "bool_value":
            return {"boolValue": value.bool_value}
        case "int_value":
            return {"intValue": value.int_value}
        case "double_value":
            return {"doubleValue": value.double_value}
        case "bytes_value":
            return {"bytesValue": value.bytes_value.hex()}
        case "array_value":
            return {"arrayValue": {"values": [_value(item) for item in value.array_value.values]}}
        case "kvlist_value":
            return {"kvlistValue": {"values": _pairs(value.kvlist_value.values)}}
    return {}
