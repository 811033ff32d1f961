"""A process of ours seen from the main process: its line, its last words, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any, Protocol

from agent_lightning.errors import EngineError, LightningError
from agent_lightning.replica.frames import HEAD, Message, decode, encode
from agent_lightning.replica.line import Line

LAST_WORDS = 60  # lines of stderr that are kept
REAP_SECONDS = 5.0


class Running(Protocol):
    """A process that was started; subprocess.Popen is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None."""
        ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Begin = Callable[[socket.socket, int], Awaitable[Running]]  # the far end of the line, where stderr goes


class ChildProcess:
    """Call `spawn`, then wait for `ready`. `ended` is set with the reason when the process is gone, however it went.

    `ending` is called at the first sign of its end, before anything that waits for it hears of it; `hears` gets every
    message.
    """

    def __init__(
        self,
        name: str,
        *,
        says: Callable[[str], None],
        ending: Callable[[], None] = lambda: None,
        hears: Callable[[Message], None] = lambda _: None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.line = Line(self._send)
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.said = "nothing yet"
        self._says = says
        self._ending = ending
        self._hears = hears
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._process: Running | None = None
        self._socket: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stderr: asyncio.BaseTransport | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def spawned(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "spawn was not called"
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return "\n".join(self._words)

    async def spawn(self, begin: Begin, first: Message) -> None:
        """Start the process and send it its first message. A cancelled spawn leaves no process behind."""
        near, far = socket.socketpair()
        near.setblocking(False)
        words_end, words = os.pipe()
        spoken = os.fdopen(words_end, "rb")
        try:
            try:
                self._process = await begin(far, words)
            finally:
                far.close()
                os.close(words)
            self._socket = near.dup()
            reader, self._writer = await asyncio.open_unix_connection(sock=near)
            stderr, self._stderr = await _stream(spoken)
        except BaseException:
            near.close()
            spoken.close()
            self.kill()
            self.reap()
            raise
        listening = asyncio.create_task(self._listen(reader), name=f"listen to {self.name}")
        reading = asyncio.create_task(self._read_words(stderr), name=f"stderr of {self.name}")
        self._tasks = [listening, reading, asyncio.create_task(self._witness(listening, reading))]
        self._send(first)

    def send_files(self, message: Message, files: Sequence[int]) -> None:
        """A short message with open files. Only for a process to which nothing else is being sent."""
        assert self._socket is not None, "spawn was not called"
        frame = encode(message)
        sent = socket.send_fds(self._socket, [frame], list(files))
        assert sent == len(frame), "a short message fits into the socket's buffer"

    def stop(self) -> None:
        """Ask the process to end."""
        self._send({"kind": "stop"})

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def reap(self) -> None:
        """Wait, blocking, for a process that was killed, and give back what it held here."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        if self._stderr is not None:
            self._stderr.close()
        if self._socket is not None:
            self._socket.close()

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hand on what the child sends; ends with the child."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = HEAD.unpack(await reader.readexactly(HEAD.size))[0]
                self._hear(decode(await reader.readexactly(size)))

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "says":
            self.said = message["text"]
            self._says(f"{self.name}: {self.said}")
        elif kind == "ready":
            self._set_ready(None)
        elif kind == "unable":
            self._set_ready(message["error"])
        self._hears(message)
        self.line.hear(message)

    def _set_ready(self, error: LightningError | None) -> None:
        if self.ready.done():
            return
        if error is None:
            self.ready.set_result(None)
        else:
            self.ready.set_exception(error)

    async def _read_words(self, words: asyncio.StreamReader) -> None:
        while line := await _one_line(words):
            self._words.append(line.decode(errors="replace").rstrip())

    async def _witness(self, listening: asyncio.Task[None], reading: asyncio.Task[None]) -> None:
        """Requests fail as soon as the line is closed; the reason is told once the exit is known."""
        await asyncio.wait([listening])
        self._ending()
        self.line.cut(f"{self.name} ended")
        code = await self._exit_code()
        await asyncio.wait([reading], timeout=1.0)
        reason = f"{self.name} (pid {self.pid}) {_how(code)}"
        if not listening.cancelled() and (fault := listening.exception()) is not None:
            reason += f" after a message that could not be read ({fault})"
        if self._words:
            reason += f"; its last words:\n{self.last_words}"
        if not self.ready.done():
            self._set_ready(EngineError(f"{reason}\nwhile it was starting; it last said: {self.said}"))
        if not self.ended.done():
            self.ended.set_result(reason)

    async def _exit_code(self) -> int:
        """The socket closes an instant before the process can be waited for."""
        assert self._process is not None
        for _ in range(100):
            if (code := self._process.poll()) is not None:
                return code
            await asyncio.sleep(0.01)
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


async def _stream(file: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    reader = asyncio.StreamReader()
    protocol: Any = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    return reader, transport


async def _one_line(words: asyncio.StreamReader) -> bytes:
    """The next line; what is too long for one comes as its pieces."""
    try:
        return await words.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as overrun:
        return await words.readexactly(overrun.consumed)
