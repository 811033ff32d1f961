"""A replica's life in its own process. It has one thread and talks to the main process over one socket."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from agent_lightning.errors import EngineError, LightningError
from agent_lightning.replica.frames import Frames, Message, encode
from agent_lightning.replica.work import BEAT_SECONDS, work

_RECEIVE_BYTES = 1 << 20
_RECEIVE_FILES = 64


class Link:
    """The far end of the main process's line."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._frames = Frames()
        self._sent_at = 0.0
        self.files: deque[int] = deque()  # open files that came with messages, in order

    def receive(self, seconds: float) -> Sequence[Message] | None:
        """Messages that came, waiting at most `seconds` for the first; None when the other end is closed."""
        messages: list[Message] = []
        while select.select([self._socket], [], [], 0.0 if messages else seconds)[0]:
            data, files, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, _RECEIVE_FILES)
            if not data:
                return None
            self.files += files
            messages += self._frames.feed(data)
            seconds = 0.0
        return messages

    def send(self, message: Message) -> None:
        self._sent_at = time.monotonic()
        self._socket.sendall(encode(message))

    def beat(self) -> None:
        """Say that work goes on; cheap enough to be called often."""
        if time.monotonic() - self._sent_at >= BEAT_SECONDS:
            self.send({"kind": "beat"})

    def first(self) -> Message | None:
        """The message that a new process waits for."""
        while True:
            messages = self.receive(60.0)
            if messages is None:
                return None
            if messages:
                assert len(messages) == 1, "the main process speaks again only after it was answered"
                return messages[0]


def live(end: socket.socket, host: Any, shared: Any) -> int:
    """Make the host, serve it until the line ends; gives the exit code."""
    link = Link(end)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the main process is gone: so are we
        begin = link.first()
        if begin is None:
            return 0
        made = _make(link, host, shared, begin)
        if made is None:
            return 1
        link.send({"kind": "ready"})
        work(made, link.receive, link.send)
    return 0


def _make(link: Link, host: Any, shared: Any, begin: Message) -> Any:
    """The host, or None when it could not be made and the main process was told why."""
    try:
        return host(
            begin["config"],
            shared,
            rank=begin["rank"],
            count=begin["count"],
            meeting=begin["meeting"],
            tell=link.send,
            beat=link.beat,
        )
    except Exception as error:
        traceback.print_exc()
        known = error if isinstance(error, LightningError) else EngineError(f"{type(error).__name__}: {error}")
        link.send({"kind": "unable", "error": known})
        return None
