"""/v1/traces: OTLP/HTTP spans of agents. Spans are for display; what is trained comes from the gateway's calls."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from agent_lightning.errors import AccessDenied, RequestError
from agent_lightning.server.rollouts import key_of, state_of
from agent_lightning.server.state import ServerState
from agent_lightning.wire.otlp import losses_of, spans_of

LARGEST_BODY = 32 * 1024 * 1024  # bytes, unpacked
router = APIRouter()


@router.post("/v1/traces")
async def traces(request: Request) -> Mapping[str, Any]:
    """Store the spans that can be read; the answer counts the others (OTLP partial success)."""
    state = state_of(request)
    own = await _who(state, key_of(request))
    if "json" not in request.headers.get("content-type", "json"):
        raise RequestError("the spans came in another form: OTLP as application/json is wanted", field="content-type")
    body = _body(await request.body(), request.headers.get("content-encoding", ""))
    spans, refused = spans_of(body)
    state.lost.hear(losses_of(body))
    if own is not None:
        refused += sum(span.rollout_id != own for span in spans)
        spans = [span for span in spans if span.rollout_id == own]
    await state.store.add_spans(spans)
    if not refused:
        return {}
    return {"partialSuccess": {"rejectedSpans": refused, "errorMessage": "not readable, or of another rollout"}}


async def _who(state: ServerState, key: str | None) -> str | None:
    """The rollout that a rollout's key is bound to, None for a worker. Raises AccessDenied."""
    access = await state.store.access(key) if key else None
    if access is not None:
        return access.rollout.id
    try:
        state.keys.work(key)
    except AccessDenied as error:
        raise AccessDenied("spans need a rollout's key or the worker key") from error
    return None


def _body(raw: bytes, encoding: str) -> Mapping[str, Any]:
    if encoding == "gzip":
        unpack = zlib.decompressobj(wbits=31)
        try:
            raw = unpack.decompress(raw, LARGEST_BODY)
        except zlib.error as error:
            raise RequestError(f"the body is not gzip: {error}", field="content-encoding") from error
        if unpack.unconsumed_tail:
            raise RequestError(f"the body unpacks to more than {LARGEST_BODY} bytes", code="body_too_large")
    if len(raw) > LARGEST_BODY:
        raise RequestError(f"the body has more than {LARGEST_BODY} bytes", code="body_too_large")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body is no JSON object: an ExportTraceServiceRequest is wanted")
    return body
