"""The loop of a host: one thread that takes messages, decodes while anything runs, and answers."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agent_lightning.errors import EngineError, LearnerError, LightningError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport
from agent_lightning.replica.frames import Message

BEAT_SECONDS = 1.0

Send = Callable[[Message], None]
Receive = Callable[[float], Sequence[Message] | None]


class Host(Protocol):
    """Engine and learner on the same weights. Called from one thread, never concurrently.

    A host's class has besides `prepare(config, tell) -> shared`, which runs once a machine before replicas are forked.
    """

    @property
    def idle(self) -> bool: ...

    def submit(self, request: GenerateRequest) -> None:
        """Admit a request. Raises EngineError or RequestError for what cannot be honoured."""
        ...

    def abort(self, request_id: str) -> None: ...

    def step(self) -> Sequence[tuple[str, Piece | LightningError]]:
        """One decode step: what it added to which request."""
        ...

    def load(self) -> EngineLoad: ...

    def publish(self, adapter: Adapter) -> None: ...

    def update(self, share: Batch, *, rate: float, version: int) -> tuple[UpdateReport, str]:
        """Learner.update, and a fingerprint of the weights afterwards: equal on all ranks, or they have parted."""
        ...

    def serve(self) -> int: ...

    def save(self, folder: Path) -> None: ...

    def restore(self, folder: Path) -> int:
        """Learner.restore, then serve it."""
        ...


def work(host: Host, receive: Receive, send: Send) -> None:
    """Serve `host` until `stop` or the end of the line.

    Takes what `receive(seconds)` gives (it waits at most so long; None is the end of the line), gives pieces batched by
    decode step, one answer or refusal a question, and a beat with the load about every second. An exception of one
    message is sent back; one of a decode step ends the loop, because no sequence can be trusted after it.
    """
    beaten_at = 0.0
    while True:
        messages = receive(BEAT_SECONDS if host.idle else 0.0)
        if messages is None:
            return
        for message in messages:
            if message["kind"] == "stop":
                return
            _act(host, message, send)
        if not host.idle:
            _send_pieces(host.step(), send)
        if time.monotonic() - beaten_at >= BEAT_SECONDS:
            beaten_at = time.monotonic()
            send({"kind": "beat", "load": host.load()})


def _send_pieces(arrivals: Sequence[tuple[str, Piece | LightningError]], send: Send) -> None:
    pieces = [(request_id, arrival) for request_id, arrival in arrivals if isinstance(arrival, Piece)]
    if pieces:
        send({"kind": "pieces", "pieces": pieces})
    for request_id, arrival in arrivals:
        if not isinstance(arrival, Piece):
            send({"kind": "fault", "id": request_id, "error": arrival})


def _act(host: Host, message: Message, send: Send) -> None:
    kind = message["kind"]
    if kind == "abort":
        host.abort(message["id"])
    elif kind == "generate":
        try:
            host.submit(message["request"])
        except Exception as error:
            send({"kind": "fault", "id": message["request"].id, "error": _known(error, EngineError)})
    else:
        _answer(host, message, send)


def _answer(host: Host, message: Message, send: Send) -> None:
    number, kind = message["number"], message["kind"]
    family = EngineError if kind in ("publish", "load") else LearnerError
    try:
        send({"kind": "answer", "number": number, "value": _do(host, kind, message)})
    except Exception as error:
        send({"kind": "refusal", "number": number, "error": _known(error, family)})


def _do(host: Host, kind: str, message: Message) -> Any:
    if kind == "update":
        return host.update(message["batch"], rate=message["rate"], version=message["version"])
    if kind == "serve":
        return host.serve()
    if kind == "save":
        return host.save(Path(message["folder"]))
    if kind == "restore":
        return host.restore(Path(message["folder"]))
    if kind == "publish":
        return host.publish(message["adapter"])
    assert kind == "load", f"a host knows no {kind!r}"
    return host.load()


def _known(error: Exception, family: type[LightningError]) -> LightningError:
    """The error as one of ours; a stranger's is told in full on stderr and by its name in the message."""
    if isinstance(error, LightningError):
        return error
    traceback.print_exception(error, file=sys.stderr)
    return family(f"{type(error).__name__}: {error}")
