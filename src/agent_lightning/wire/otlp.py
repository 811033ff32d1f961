"""OTLP/JSON trace exports -> span records. Unknown attributes are kept; a span that cannot be read is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_lightning.records import Span

_ROLLOUT, _ATTEMPT = "agent_lightning.rollout_id", "agent_lightning.attempt_id"
_CALL, _COMPONENT, _KIND = "agent_lightning.call_id", "agent_lightning.component", "agent_lightning.kind"
_OURS = frozenset({_ROLLOUT, _ATTEMPT, _CALL, _COMPONENT, _KIND})
_INSTANCE, _LOST = "service.instance.id", "agent_lightning.lost."
_STATUS = {0: "unset", 1: "ok", 2: "error"}


def spans_of(body: Mapping[str, Any]) -> tuple[list[Span], int]:
    """The spans of an ExportTraceServiceRequest in its JSON form, and how many could not be read."""
    spans: list[Span] = []
    refused = 0
    for resource in _list(body.get("resourceSpans")):
        for scope in _list(resource.get("scopeSpans")):
            for raw in _list(scope.get("spans")):
                try:
                    spans.append(_span(raw))
                except (KeyError, TypeError, ValueError):
                    refused += 1
    return spans, refused


def losses_of(body: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """What clients say that they could not deliver so far: (client process, kind of record) -> records."""
    found: dict[tuple[str, str], int] = {}
    for resource in _list(body.get("resourceSpans")):
        listed = _attributes(resource.get("resource") if isinstance(resource, Mapping) else None)
        told = {item["key"]: _value(item.get("value") or {}) for item in listed}
        for key, count in told.items():
            if key.startswith(_LOST) and type(count) is int and count > 0:
                found[str(told.get(_INSTANCE, "")), key.removeprefix(_LOST)] = count
    return found


def _attributes(resource: Any) -> list[Mapping[str, Any]]:
    listed = _list(resource.get("attributes")) if isinstance(resource, Mapping) else []
    return [item for item in listed if isinstance(item, Mapping) and isinstance(item.get("key"), str)]


def _span(raw: Mapping[str, Any]) -> Span:
    attributes = {item["key"]: _value(item.get("value") or {}) for item in _list(raw.get("attributes"))}
    return Span(
        trace_id=_hex(raw["traceId"], 32),
        span_id=_hex(raw["spanId"], 16),
        parent_span_id=_hex(raw["parentSpanId"], 16) if raw.get("parentSpanId") else None,
        rollout_id=attributes.get(_ROLLOUT),
        attempt_id=attributes.get(_ATTEMPT),
        name=str(raw.get("name", "")),
        kind=str(attributes.get(_KIND, "span")),
        start_ns=int(raw["startTimeUnixNano"]),
        end_ns=int(raw["endTimeUnixNano"]),
        call_id=attributes.get(_CALL),
        component=str(attributes.get(_COMPONENT, "")),
        status=_STATUS.get(int((raw.get("status") or {}).get("code", 0)), "unset"),
        attributes={key: value for key, value in attributes.items() if key not in _OURS},
    )


def _value(value: Mapping[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(item) for item in _list(value["arrayValue"].get("values"))]
    if "kvlistValue" in value:
        return {item["key"]: _value(item.get("value") or {}) for item in _list(value["kvlistValue"].get("values"))}
    for name in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if name in value:
            return value[name]
    return None


def _hex(text: Any, length: int) -> str:
    if not isinstance(text, str) or len(text) != length:
        raise ValueError(f"{text!r} has not {length} hex digits")
    int(text, 16)
    return text.lower()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
