"""One LLM call on its way out: recognise it, decide where it goes, and name it.

What is decided here: POST, a known path suffix, a JSON body with "model". Only URL, Host, keys and our own headers are
changed; the body is never touched. Knows nothing of any HTTP library but the shape of its request.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from agent_lightning.client import frameworks
from agent_lightning.client.scope import Scope, current
from agent_lightning.wire import protocol

_SUFFIXES = ("/chat/completions", "/responses", "/completions", "/messages")
_CONTENT = ("messages", "input", "prompt")
# What belongs to the provider and must not reach the gateway.
PROVIDER_HEADERS = (
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "openai-organization",
    "openai-project",
    "cookie",
    "proxy-authorization",
)
# The last routed call of this context: (attempt, body hash, call id, whether its time ran out). An SDK sends its
# retries from the context of the call, so a repeated body under a retry count is the same call.
_LAST: ContextVar[tuple[str, str, str, bool] | None] = ContextVar("agent_lightning_last_call", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call that goes to the training server."""

    scope: Scope
    call_id: str
    url: str
    headers: dict[str, str]  # added after the provider's were dropped
    component: tuple[str, ...]
    model: str
    body_hash: str
    repeated: bool  # the SDK's own retry of a call that we have sent before
    expired: bool  # ... whose time ran out: it is not sent again
    messages: Any = None  # of the body, under debug_trace


def suffix_of(method: str, path: str) -> str | None:
    if method != "POST":
        return None
    path = path.rstrip("/")
    return next((suffix for suffix in _SUFFIXES if path.endswith(suffix)), None)


def plan(method: str, path: str, headers: Any, content: bytes) -> PlannedCall | None:
    """The routed call that this request becomes, None when it goes where it was going."""
    scope = current()
    if scope is None or not scope.routed:
        return None
    suffix = suffix_of(method, path)
    if suffix is None or protocol.CALL_ID in headers:  # the second: a layer above has routed it
        return None
    body = _body(suffix, headers, content)
    if body is None:
        return None
    scope.record.count("calls_seen")
    component = path_here(scope)
    if not scope.choice.matches(component):
        scope.record.count("calls_passed")
        return None
    return _routed(scope, component, suffix=suffix, body=body, headers=headers, content=content)


def path_here(scope: Scope) -> tuple[str, ...]:
    """Names from the outermost agent to the innermost part that is running now."""
    inner = frameworks.current_component()
    head = scope.component
    if not head and scope.choice.label is not None:
        head = (scope.choice.label,)
    return (*head, *inner[1:]) if head and inner and head[-1] == inner[0] else (*head, *inner)


def expire(call: PlannedCall) -> None:
    """Remember that this call's time ran out, so that the SDK's retries of it end at once."""
    _LAST.set((call.scope.attempt_id, call.body_hash, call.call_id, True))


def _body(suffix: str, headers: Any, content: bytes) -> dict[str, Any] | None:
    """The parsed body, None when this is no LLM call."""
    if suffix == "/messages" and "anthropic-version" not in headers:
        return None
    if content.lstrip()[:1] != b"{":
        return None
    try:
        body = json.loads(content)
    except ValueError:
        return None
    if not isinstance(body.get("model"), str) or not any(name in body for name in _CONTENT):
        return None
    return body


def _routed(
    scope: Scope, component: tuple[str, ...], *, suffix: str, body: dict[str, Any], headers: Any, content: bytes
) -> PlannedCall:
    body_hash = hashlib.sha256(content).hexdigest()
    last = _LAST.get()
    repeated = _retry_count(headers) > 0 and last is not None and last[:2] == (scope.attempt_id, body_hash)
    call_id = last[2] if repeated and last is not None else f"call-{uuid.uuid4().hex}"
    if repeated:
        scope.record.count("retries")
    else:
        scope.record.begin_call(call_id)
        _LAST.set((scope.attempt_id, body_hash, call_id, False))
    added = {
        "Authorization": f"Bearer {scope.key}",
        protocol.CALL_ID: call_id,
        protocol.PARENT_SPAN: frameworks.current_parent(scope.trace_id) or scope.span_id,
    }
    if component:
        added[protocol.COMPONENT] = "/".join(quote(name, safe="") for name in component)
    return PlannedCall(
        scope=scope,
        call_id=call_id,
        url=f"{scope.config.endpoint}/v1{suffix}",
        headers=added,
        component=component,
        model=body["model"],
        body_hash=body_hash,
        repeated=repeated,
        expired=repeated and last is not None and last[3],
        messages=body.get("messages") if scope.config.debug_trace else None,
    )


def _retry_count(headers: Any) -> int:
    value = headers.get(protocol.RETRY_COUNT, "0")
    return int(value) if value.isdigit() else 0
