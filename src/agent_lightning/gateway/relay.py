"""One relayed call: admitted under its call id, asked of its provider, handed on byte by byte, and kept as it came.

The bytes that end a good answer are held until the record is committed, as for the policy's own answers. A retry of a
completed call gets the same bytes again; what the provider refused is handed on and kept as broken, so that a retry
asks anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_lightning.errors import StoreError
from agent_lightning.gateway.attempts import admitted
from agent_lightning.gateway.running import Answered, Head, Running
from agent_lightning.gateway.upstreams import Relayed, Upstream
from agent_lightning.records import Call, CallStatus, nats, token_ids
from agent_lightning.store.store import Access, Store
from agent_lightning.wire.dialect import Dialect

_ENDS = (
    b"[DONE]",
    b"message_stop",
    b"response.completed",
    b"response.incomplete",
    b'"finish_reason":"',
    b'"stop_reason":"',
)
MOST_KEPT = 4 * 1024 * 1024  # bytes of an answer; the rest is handed on and not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    store: Store
    access: Access
    upstream: Upstream
    dialect: Dialect
    path: str  # of the request
    headers: Mapping[str, str]  # of the request
    body: Mapping[str, Any]
    running: Running
    component: str
    parent_span: str | None
    deadline_seconds: float | None
    clock: Callable[[], float]

    async def work(self) -> Answered:
        """Raises what the provider could not, StoreError, and TimeoutError past the deadline."""
        call = await self._admit()
        if call.status is CallStatus.COMPLETED:
            return self._again(call)
        try:
            async with asyncio.timeout(self.deadline_seconds):
                return await self._ask(call)
        except BaseException as error:
            reason = (
                "the client left" if isinstance(error, asyncio.CancelledError) else f"{type(error).__name__}: {error}"
            )
            await self._break(call, reason)
            raise

    async def _admit(self) -> Call:
        return (await admitted(self.store, self._draft())).call

    async def _ask(self, call: Call) -> Answered:
        wanted = self.upstream.config.model
        asked = self.body if wanted is None else {**self.body, "model": wanted}
        relayed = await self.upstream.relay(
            self.dialect, self.path, self.headers, json.dumps(asked).encode(), self.access.rollout.id
        )
        head = (relayed.status, {**relayed.headers, "content-type": relayed.content_type})
        streams = relayed.content_type.startswith("text/event-stream")
        if streams:
            self.running.begin(head)
        kept, held = await self._hand_on(relayed, streams)
        if relayed.status >= 300:
            await self._break(call, f"{self.upstream.name} answered {relayed.status}: {_text(kept)[:500]}")
        else:
            self.running.committing = True
            await self.store.complete(self._completed(call, head, kept))
        if not streams:
            self.running.begin(head)
        return Answered(body={}, version=0, rest=tuple(held))

    async def _hand_on(self, relayed: Relayed, streams: bool) -> tuple[bytearray, list[bytes]]:
        """What is kept of the answer, and the chunks from the one on that begins its end; all of them of a plain one."""
        kept, held = bytearray(), list[bytes]()
        async for chunk in relayed.chunks:
            kept += chunk[: MOST_KEPT - len(kept)]
            if held or not streams or any(end in chunk for end in _ENDS):
                held.append(chunk)
            else:
                self.running.push(chunk)
        return kept, held

    async def _break(self, call: Call, reason: str) -> None:
        with contextlib.suppress(StoreError):  # sealed with its attempt
            await self.store.break_call(call.attempt_id, call.id, reason)

    def _again(self, call: Call) -> Answered:
        assert call.response is not None
        stored = call.response["relayed"]
        self.running.begin((stored["status"], stored["headers"]))
        return Answered(body={}, version=0, rest=(stored["text"].encode("utf-8", "surrogateescape"),))

    def _completed(self, call: Call, head: Head, kept: bytearray) -> Call:
        status, headers = head
        response = {"relayed": {"status": status, "headers": dict(headers), "text": _text(kept)}}
        return replace(call, status=CallStatus.COMPLETED, response=response, finished_at=self.clock())

    def _draft(self) -> Call:
        return Call(
            id=self.running.call_id,
            attempt_id=self.access.attempt_id,
            rollout_id=self.access.rollout.id,
            policy=f"upstream {self.upstream.name}",  # none that is trained
            component=self.component,
            dialect=self.dialect.name,
            order=0,  # the store counts
            index=0,
            parent_call_id=None,
            prompt_offset=0,
            suffix_ids=token_ids(),
            sampled_ids=token_ids(),
            logprobs=nats(),
            version_from=0,
            version_to=0,
            status=CallStatus.RUNNING,
            finish_reason=None,
            request=self.body,
            response=None,
            request_hash=self.running.request_hash,
            requested_sampling={},
            used_sampling={},
            parent_span=self.parent_span,
            admitted_at=self.clock(),
        )


def _text(kept: bytearray) -> str:
    """Bytes that are no UTF-8 survive as lone surrogates."""
    return kept.decode("utf-8", "surrogateescape")
