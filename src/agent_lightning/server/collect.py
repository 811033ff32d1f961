"""/v1/traces: OTLP/HTTP spans of agents. Spans are for display; what is trained comes from the gateway's calls.

JSON and protobuf, plain, gzip or deflate. The answer speaks as it was asked, and counts what was not taken, with reasons.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response

from agent_lightning.errors import AccessDenied, LightningError, RequestError
from agent_lightning.records import Span
from agent_lightning.server.described import ERRORS, TRACES_BODY
from agent_lightning.server.limits import MIB
from agent_lightning.server.rollouts import key_of, state_of
from agent_lightning.server.state import ServerState
from agent_lightning.store.store import Access
from agent_lightning.wire import otlp_protobuf
from agent_lightning.wire.errors import error_answer
from agent_lightning.wire.otlp import losses_of, spans_of

_UNSUPPORTED = "unsupported_media_type"
SMALL_BODY = 64 * 1024  # bytes that are read at once; larger ones are read in a thread
JSON = "application/json"
_WINDOW = {"gzip": 31, "deflate": 15}  # zlib's word for what wraps the data
_RPC_CODES = {401: 16, 404: 5, 429: 8, 503: 14}  # google.rpc.Code; else INVALID_ARGUMENT or INTERNAL
router = APIRouter(responses=ERRORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    spans: Sequence[Span]
    refused: Counter[str]  # spans that could not be read, by reason
    lost: Mapping[tuple[str, str], int]


@router.post("/v1/traces", response_class=Response, openapi_extra=TRACES_BODY)
async def traces(request: Request) -> Response:
    """Store the spans that can be read and are the key's own; the answer counts the others (partial success)."""
    state = state_of(request)
    form = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    try:
        with state.gates.spans.passing():
            own = await _who(state, key_of(request))
            _check_form(form)
            refused = await _take(state, request, form, own)
    except LightningError as error:
        return _refusal(error, form)
    reason = "; ".join(f"{count} {why}" for why, count in refused.most_common(10))
    if form == otlp_protobuf.CONTENT_TYPE:
        return Response(otlp_protobuf.answer(refused.total(), reason), media_type=form)
    told = {"partialSuccess": {"rejectedSpans": str(refused.total()), "errorMessage": reason}} if refused else {}
    return Response(json.dumps(told), media_type=JSON)


async def _take(state: ServerState, request: Request, form: str, own: Access | None) -> Counter[str]:
    """Spans that were not stored, by reason."""
    raw = await request.body()
    encoding, most = request.headers.get("content-encoding", "").strip().lower(), state.limits.body_bytes
    if len(raw) <= SMALL_BODY and encoding in ("", "identity"):
        export = _read(raw, encoding, form, most)
    else:
        export = await asyncio.to_thread(_read, raw, encoding, form, most)
    state.lost.hear(export.lost)
    spans, refused = _owned(export.spans, own)
    kept = await state.store.add_spans(spans)
    if kept < len(spans):
        refused["have the ids of another rollout's spans"] += len(spans) - kept
    return refused + export.refused


async def _who(state: ServerState, key: str | None) -> Access | None:
    """What a rollout's key opens, None for a worker. Raises AccessDenied."""
    access = await state.store.access(key) if key else None
    if access is not None:
        return access
    try:
        state.keys.work(key)
    except AccessDenied as error:
        raise AccessDenied("spans need a rollout's key or the worker key") from error
    return None


def _owned(spans: Sequence[Span], own: Access | None) -> tuple[list[Span], Counter[str]]:
    """Those that may be stored under this key. A rollout's key names rollout and attempt where a span does not."""
    kept: list[Span] = []
    refused: Counter[str] = Counter()
    for span in spans:
        if own is None:
            if span.rollout_id is None:
                refused["name no rollout: set agent_lightning.rollout_id, or send them with the rollout's key"] += 1
            else:
                kept.append(span)
        elif span.rollout_id not in (None, own.rollout.id) or span.attempt_id not in (None, own.attempt_id):
            refused["are of another rollout or attempt than the key"] += 1
        else:
            kept.append(replace(span, rollout_id=own.rollout.id, attempt_id=own.attempt_id))
    return kept, refused


def _read(raw: bytes, encoding: str, form: str, most: int) -> Export:
    raw = _unpacked(raw, encoding, most)
    body = otlp_protobuf.json_form(raw) if form == otlp_protobuf.CONTENT_TYPE else _parsed(raw)
    spans, refused = spans_of(body)
    return Export(spans=spans, refused=refused, lost=losses_of(body))


def _check_form(form: str) -> None:
    if form not in (JSON, otlp_protobuf.CONTENT_TYPE):
        wanted = f"{JSON} or {otlp_protobuf.CONTENT_TYPE} is wanted"
        raise RequestError(f"the spans came as {form!r}: OTLP as {wanted}", field="content-type", code=_UNSUPPORTED)


def _unpacked(raw: bytes, encoding: str, most: int) -> bytes:
    """Never more than `most` bytes, whatever they were packed into. Raises RequestError."""
    if encoding in ("", "identity"):
        return raw
    if encoding not in _WINDOW:
        wanted = "gzip, deflate or none is wanted"
        raise RequestError(f"the encoding is {encoding!r}: {wanted}", field="content-encoding", code=_UNSUPPORTED)
    parts, size = [], 0
    while raw:
        unpack = zlib.decompressobj(wbits=_WINDOW[encoding])
        try:
            parts.append(unpack.decompress(raw, most - size + 1))
        except zlib.error as error:
            raise RequestError(f"the body is not {encoding}: {error}", field="content-encoding") from error
        size += len(parts[-1])
        if size > most:
            raise RequestError(f"the body unpacks to more than {most // MIB} MiB", code="body_too_large")
        if not unpack.eof:
            raise RequestError(f"the body is {encoding} that ends too early", field="content-encoding")
        raw = unpack.unused_data  # gzip may hold several members
    return b"".join(parts)


def _parsed(raw: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body is no JSON object: an ExportTraceServiceRequest is wanted")
    return body


def _refusal(error: LightningError, form: str) -> Response:
    """A google.rpc.Status, as OTLP wants it; in JSON with the form of all our errors beside it."""
    answer = error_answer(error)
    code = _RPC_CODES.get(answer.status, 3 if answer.status < 500 else 13)
    if form == otlp_protobuf.CONTENT_TYPE:
        content = otlp_protobuf.refusal(code, str(error))
    else:
        form, content = JSON, json.dumps({"code": code, "message": str(error), **answer.body}).encode()
    return Response(content, status_code=answer.status, media_type=form, headers=dict(answer.headers))
