"""OTLP trace exports -> span records. Unknown attributes are kept; a span that cannot be read is counted with its reason.

The form is OTLP/JSON; otlp_protobuf.py brings the binary one to it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from agent_lightning.records import Span

_ROLLOUT, _ATTEMPT = "agent_lightning.rollout_id", "agent_lightning.attempt_id"
_CALL, _COMPONENT, _KIND = "agent_lightning.call_id", "agent_lightning.component", "agent_lightning.kind"
_OURS = frozenset({_ROLLOUT, _ATTEMPT, _CALL, _COMPONENT, _KIND})
_INSTANCE, _LOST = "service.instance.id", "agent_lightning.lost."
_STATUS = {0: "unset", 1: "ok", 2: "error"}
_HEX = re.compile("[0-9a-fA-F]+")
_LONGEST_ID, _LONGEST_NAME, _DEEPEST = 200, 1000, 16


def spans_of(body: Mapping[str, Any]) -> tuple[list[Span], Counter[str]]:
    """The spans of an ExportTraceServiceRequest in its JSON form, and how many could not be read, by reason."""
    spans: list[Span] = []
    refused: Counter[str] = Counter()
    for resource in _maps(body.get("resourceSpans")):
        for scope in _maps(resource.get("scopeSpans")):
            for raw in _list(scope.get("spans")):
                try:
                    spans.append(_span(raw))
                except ValueError as error:
                    refused[str(error)] += 1
    return spans, refused


def losses_of(body: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """What clients say that they could not deliver so far: (client process, kind of record) -> records."""
    found: dict[tuple[str, str], int] = {}
    for resource in _maps(body.get("resourceSpans")):
        about = resource.get("resource")
        try:
            told = _attributes(about.get("attributes") if isinstance(about, Mapping) else None)
        except ValueError:
            continue
        for key, count in told.items():
            if key.startswith(_LOST) and type(count) is int and count > 0:
                found[str(told.get(_INSTANCE, "")), key.removeprefix(_LOST)] = count
    return found


def _span(raw: Any) -> Span:
    """Raises ValueError that says what is wrong with it."""
    if not isinstance(raw, Mapping):
        raise ValueError("no span object")
    attributes = _attributes(raw.get("attributes"))
    status = raw.get("status")
    code = status.get("code", 0) if isinstance(status, Mapping) else 0
    return Span(
        trace_id=_hex("traceId", raw.get("traceId"), 32),
        span_id=_hex("spanId", raw.get("spanId"), 16),
        parent_span_id=_parent(raw.get("parentSpanId")),
        rollout_id=_id(attributes, _ROLLOUT),
        attempt_id=_id(attributes, _ATTEMPT),
        name=_text(raw.get("name", ""))[:_LONGEST_NAME],
        kind=_text(attributes.get(_KIND, "span"))[:_LONGEST_NAME],
        start_ns=_nanoseconds("startTimeUnixNano", raw.get("startTimeUnixNano")),
        end_ns=_nanoseconds("endTimeUnixNano", raw.get("endTimeUnixNano")),
        call_id=_id(attributes, _CALL),
        component=_text(attributes.get(_COMPONENT, ""))[:_LONGEST_NAME],
        status=_STATUS.get(code, "unset") if isinstance(code, int) else "unset",
        attributes={key: value for key, value in attributes.items() if key not in _OURS},
    )


def _attributes(listed: Any) -> dict[str, Any]:
    return {_text(item.get("key", "")): _value(item.get("value"), 1) for item in _maps(listed)}


def _value(value: Any, depth: int) -> Any:
    if not isinstance(value, Mapping):
        return None
    if depth > _DEEPEST:
        raise ValueError(f"attributes nested deeper than {_DEEPEST} levels")
    for name, read in (("arrayValue", _array), ("kvlistValue", _pairs)):
        if isinstance(value.get(name), Mapping):
            return read(value[name].get("values"), depth + 1)
    if "intValue" in value:
        return _integer(value["intValue"])
    for name in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if name in value:
            return _plain(value[name])
    return None


def _array(values: Any, depth: int) -> list[Any]:
    return [_value(item, depth) for item in _list(values)]


def _pairs(values: Any, depth: int) -> dict[str, Any]:
    return {_text(item.get("key", "")): _value(item.get("value"), depth) for item in _maps(values)}


def _plain(value: Any) -> Any:
    """Numbers that JSON cannot say are written as OTLP/JSON writes them: "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bool | int | float):
        return value
    return _text(value)


def _integer(value: Any) -> int:
    """64 bits, as a number or as text."""
    text = str(value)
    if isinstance(value, bool) or len(text) > 20 or not re.fullmatch("-?[0-9]+", text, re.ASCII):
        raise ValueError("an intValue that is no integer")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an intValue of more than 64 bits")
    return number


def _nanoseconds(name: str, value: Any) -> int:
    try:
        number = _integer(value)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"{name} is no time in Unix nanoseconds")
    return number


def _hex(name: str, text: Any, length: int) -> str:
    if not isinstance(text, str) or len(text) != length or not _HEX.fullmatch(text) or not text.strip("0"):
        raise ValueError(f"{name} is not {length} hex digits, other than all zeros")
    return text.lower()


def _parent(text: Any) -> str | None:
    """None at the root, which some exporters write as zeros."""
    if not text or (isinstance(text, str) and not text.strip("0")):
        return None
    return _hex("parentSpanId", text, 16)


def _id(attributes: Mapping[str, Any], name: str) -> str | None:
    found = attributes.get(name)
    if found is None or found == "":
        return None
    if not isinstance(found, str) or len(found) > _LONGEST_ID:
        raise ValueError(f"{name} is no text of at most {_LONGEST_ID} characters")
    return found


def _text(value: Any) -> str:
    """Text that UTF-8 can hold."""
    text = value if isinstance(value, str) else "" if value is None else str(value)[:_LONGEST_NAME]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in _list(value) if isinstance(item, Mapping))
