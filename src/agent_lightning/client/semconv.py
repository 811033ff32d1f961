"""OpenTelemetry names in one place: GenAI conventions v0.1.0 (all still "Development") and our own, as OTLP/JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_lightning.client.scope import Scope

if TYPE_CHECKING:
    from agent_lightning.client.calls import SeenCall

OPERATION, AGENT, MODEL = "gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.request.model"
ROLLOUT, ATTEMPT = "agent_lightning.rollout_id", "agent_lightning.attempt_id"
CALL, COMPONENT, KIND = "agent_lightning.call_id", "agent_lightning.component", "agent_lightning.kind"
ADDRESS = "server.address"  # of the provider that the agent meant, with its port
INPUT = "gen_ai.input.messages"
MODE = "agent_lightning.mode"
_BORN = os.urandom(8).hex()
LOST = "agent_lightning.lost"  # resource attribute prefix: records this process could not deliver, by kind


class Status(IntEnum):
    """How a span ended, as OTLP numbers it."""

    OK = 1
    ERROR = 2


def call_attributes(call: SeenCall, body: Mapping[str, Any], call_id: str | None) -> dict[str, Any]:
    """A call without an id went to its own provider."""
    found = {OPERATION: "chat", MODEL: _text(body.get("model")), COMPONENT: "/".join(call.component)}
    found[ADDRESS] = urlsplit(str(call.url)).netloc.rpartition("@")[2]
    if call_id is not None:
        found[CALL] = call_id
    messages = body.get("messages") if call.scope.config.debug_trace else None
    if isinstance(messages, list):
        found[INPUT] = json.dumps([_message(message) for message in messages if isinstance(message, dict)])
    return found


def rollout_attributes(scope: Scope, name: str) -> dict[str, Any]:
    return {OPERATION: "invoke_agent", AGENT: name, MODE: scope.mode}


def span(
    scope: Scope,
    *,
    name: str,
    kind: str,
    span_id: str,
    parent_span_id: str | None,
    times_ns: tuple[int, int],
    status: Status,
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """One OTLP/JSON span of `scope`'s trace."""
    ours = {KIND: kind, ROLLOUT: scope.rollout_id, ATTEMPT: scope.attempt_id}
    redacted = scope.config.redacted
    values = {k: redacted(v) if isinstance(v, str) and k not in _IDS else v for k, v in {**attributes, **ours}.items()}
    return {
        "traceId": scope.trace_id,
        "spanId": span_id,
        **({"parentSpanId": parent_span_id} if parent_span_id else {}),
        "name": redacted(name),
        "kind": 3 if kind == "call" else 1,  # client, internal
        "startTimeUnixNano": str(times_ns[0]),
        "endTimeUnixNano": str(times_ns[1]),
        "attributes": _attributes(values),
        "status": {"code": int(status)},
    }


def _process() -> dict[str, str]:
    """This process among all; one that was forked has a name of its own."""
    return {"service.name": "agent-lightning-client", "service.instance.id": f"{_BORN}-{os.getpid()}"}


def export(spans: Sequence[Mapping[str, Any]], lost: Mapping[str, int]) -> dict[str, Any]:
    """The body of one OTLP/JSON export."""
    resource = {**_process(), **{f"{LOST}.{kind}": n for kind, n in lost.items()}}
    scope_spans = [{"scope": {"name": "agent_lightning"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": scope_spans}]}


_IDS = frozenset({ROLLOUT, ATTEMPT, CALL, KIND, MODE, OPERATION})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message as the conventions write it: a role and typed parts."""
    content = message.get("content")
    parts: list[dict[str, Any]] = [{"type": "text", "content": content}] if isinstance(content, str) else []
    if isinstance(content, list):
        parts += [part for part in content if isinstance(part, dict)]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts.append({"type": "tool_call", "id": call.get("id"), **function})
    return {"role": message.get("role"), "parts": parts}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
