"""One LLM call on its way out: recognise it, decide where it goes, and name it.

What is decided here: POST, a known path suffix, a JSON body with "model". Only URL, Host, keys and our own headers are
changed; the body is never touched. Knows nothing of any HTTP library but the shape of its request. All of it runs in
the agent's thread at every call, so headers are read once, as bytes, and what a scope always says is made once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agent_lightning.client import frameworks, naming
from agent_lightning.client.scope import Scope
from agent_lightning.wire import protocol

_SUFFIXES = ("/chat/completions", "/responses", "/completions", "/messages")
_UNMISTAKABLE = frozenset({"/chat/completions", "/messages"})
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
_CALL_ID, _COMPONENT, _PARENT, _RETRIES, _DEADLINE = (
    name.encode("ascii")
    for name in (protocol.CALL_ID, protocol.COMPONENT, protocol.PARENT_SPAN, protocol.RETRY_COUNT, protocol.DEADLINE)
)
_DROPPED = frozenset(name.encode("ascii") for name in (*PROVIDER_HEADERS, "host"))
# The last routed call of this context: (attempt, body, call id, whether its time ran out). An SDK sends its
# retries from the context of the call, so a repeated body under a retry count is the same call.
_LAST: ContextVar[tuple[str, bytes, str, bool] | None] = ContextVar("agent_lightning_last_call", default=None)

Headers = Sequence[tuple[bytes, bytes, bytes]]  # (name as it is written, name in lower case, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """An LLM call of a recorded rollout. This one goes to its own provider; see PlannedCall."""

    scope: Scope
    component: tuple[str, ...]
    content: bytes  # the body as it was sent
    url: Any  # where it was going, as its library writes it

    def body(self) -> dict[str, Any]:
        """The parsed body; empty when it is no JSON object, which its receiver will say."""
        return _parsed(self.content) or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall(SeenCall):
    """A call that goes to the training server."""

    call_id: str
    suffix: str
    headers: list[tuple[bytes, bytes, bytes]]  # the caller's without its provider's, and ours; no Host yet
    expired: bool  # the SDK's own retry of a call whose time ran out: it is not sent again


def suffix_of(path: str) -> str | None:
    path = path.rstrip("/")
    if not path.endswith(_SUFFIXES):
        return None
    return next((suffix for suffix in _SUFFIXES if path.endswith(suffix)), None)


def plan(scope: Scope, url: Any, path: str, headers: Headers, content: bytes) -> SeenCall | None:
    """What this POST of `scope` is: a call that is routed, one that goes where it was going, None when it is no call."""
    suffix = suffix_of(path)
    if suffix is None:
        return None
    known = {name: value for _, name, value in headers}
    if _CALL_ID in known or not _is_call(suffix, known, content):  # the first: a layer above has routed it
        return None
    component = naming.path_here(scope)
    if not scope.choice.matches(component):
        scope.record.count("calls_seen")
        scope.record.count("calls_passed")
        return SeenCall(scope=scope, component=component, content=content, url=url)
    call_id, expired = _identity(scope, content, known)
    return PlannedCall(
        scope=scope,
        component=component,
        content=content,
        url=url,
        call_id=call_id,
        suffix=suffix,
        headers=_headers(scope, headers, call_id, component),
        expired=expired,
    )


def expire(call: PlannedCall) -> None:
    """Remember that this call's time ran out, so that the SDK's retries of it end at once."""
    _LAST.set((call.scope.attempt_id, call.content, call.call_id, True))


def _is_call(suffix: str, headers: dict[bytes, bytes], content: bytes) -> bool:
    """Whether this is what an LLM API takes. Parses only where the path leaves a doubt: a prompt may be long."""
    if suffix == "/messages" and b"anthropic-version" not in headers:
        return False
    if content[:1] != b"{" and content.lstrip()[:1] != b"{":
        return False
    if suffix in _UNMISTAKABLE:
        return b'"model"' in content and b'"messages"' in content
    body = _parsed(content)
    return body is not None and isinstance(body.get("model"), str) and ("input" in body or "prompt" in body)


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _identity(scope: Scope, content: bytes, headers: dict[bytes, bytes]) -> tuple[str, bool]:
    """The id of this logical call, and whether its time has run out; the SDK's own retry keeps its call's id."""
    retries = headers.get(_RETRIES, b"0")
    if retries.isdigit() and int(retries) > 0:
        last = _LAST.get()
        if last is not None and last[:2] == (scope.attempt_id, content):
            scope.record.count("calls_seen")
            scope.record.count("retries")
            return last[2:]
    call_id = f"call-{os.urandom(16).hex()}"
    scope.record.begin_call(call_id)
    _LAST.set((scope.attempt_id, content, call_id, False))
    return call_id, False


def _headers(
    scope: Scope, headers: Headers, call_id: str, component: tuple[str, ...]
) -> list[tuple[bytes, bytes, bytes]]:
    kept = [header for header in headers if header[1] not in _DROPPED]
    kept += _always(scope.key or "", scope.config.max_step_timeout)
    kept.append((_CALL_ID, _CALL_ID, call_id.encode()))
    kept.append((_PARENT, _PARENT, (frameworks.current_parent(scope.trace_id) or scope.span_id).encode()))
    if component:
        kept.append((_COMPONENT, _COMPONENT, _spelled(component)))
    return kept


@lru_cache(maxsize=64)
def _always(key: str, step_seconds: float) -> tuple[tuple[bytes, bytes, bytes], ...]:
    deadline = str(round(step_seconds * 1000)).encode()
    return ((b"Authorization", b"authorization", f"Bearer {key}".encode()), (_DEADLINE, _DEADLINE, deadline))


@lru_cache(maxsize=256)
def _spelled(component: tuple[str, ...]) -> bytes:
    return "/".join(quote(name, safe="") for name in component).encode()
