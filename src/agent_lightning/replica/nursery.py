"""Where children come from: a template process that loads once what all of them share, and is forked for each.

Importing torch and transformers costs a process seconds; a fork costs milliseconds and shares the base weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import agent_lightning
from agent_lightning.errors import EngineError
from agent_lightning.replica.frames import Message
from agent_lightning.replica.process import ChildProcess
from agent_lightning.replica.replica import ReplicaConfig


class Offspring:
    """A child of the template, for which only the template can wait. Implements Running."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # set when the template has told its end

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Block until it is gone. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.code is None and _exists(self.pid):
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("replica", timeout or 0.0)
            time.sleep(0.002)
        return -signal.SIGKILL if self.code is None else self.code


class Nursery:
    """Keeps one template alive; a dead one is replaced when the next children are wanted."""

    def __init__(self, config: ReplicaConfig, *, host: str, says: Callable[[str], None]) -> None:
        self._config = config
        self._host = host
        self._says = says
        self._template: ChildProcess | None = None
        self._forks: dict[int, Offspring] = {}
        self._born: asyncio.Future[int] | None = None

    @property
    def pid(self) -> int | None:
        """Of the template."""
        return self._template.pid if self._template is not None else None

    async def open(self, seconds: float) -> None:
        """Give when the template is ready. Raises what it could not do, or EngineError when it is late."""
        if self._template is not None and not self._template.ended.done():
            return
        self.close()
        template = self._template = ChildProcess("template of the replicas", says=self._says, hears=self._hear)
        await template.spawn(_popen, {"kind": "prepare", "host": self._host, "config": self._config})
        await asyncio.wait([template.ready], timeout=seconds)
        if not template.ready.done():
            late = f"{template.name} (pid {template.pid})"
            raise EngineError(f"not ready after {seconds:g} s: {late} last said: {template.said}")
        template.ready.result()

    async def fork(self, end: socket.socket, words: int) -> Offspring:
        """A child that talks over `end` and complains to `words`. Called by one task at a time."""
        template = self._template
        assert template is not None, "open was not called"
        self._born = asyncio.get_running_loop().create_future()
        template.send_files({"kind": "fork"}, [end.fileno(), words])
        await asyncio.wait([self._born, template.ended], return_when=asyncio.FIRST_COMPLETED)
        if not self._born.done():
            raise EngineError(template.ended.result())
        return self._forks[self._born.result()]

    def close(self) -> None:
        """End the template, and with it what it forked."""
        if self._template is not None:
            self._template.kill()
            self._template.reap()

    def _hear(self, message: Message) -> None:
        if message["kind"] == "forked":
            self._forks[message["pid"]] = Offspring(message["pid"])
            if self._born is not None and not self._born.done():
                self._born.set_result(message["pid"])
        elif message["kind"] == "ended":
            self._forks.pop(message["pid"]).code = message["code"]


async def _popen(end: socket.socket, words: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-P", "-m", "agent_lightning.replica.template", str(end.fileno()), str(os.getpid())],
        pass_fds=[end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=words,
        env=_environment(),
        process_group=0,  # the terminal's Ctrl-C goes to the parent alone
    )


def _environment() -> dict[str, str]:
    """One thread a child, collectives over the loopback interface, and this package wherever it was found."""
    package = str(Path(agent_lightning.__file__).parents[1])
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": package if not known else f"{package}{os.pathsep}{known}",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "PYTHONUNBUFFERED": "1",
    }


def _exists(pid: int) -> bool:
    """Whether it still runs; what only waits for somebody to read its exit code does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended just now, or this system has no /proc
        return sys.platform != "linux"
