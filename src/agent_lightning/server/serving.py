"""uvicorn in the loop that is already running, on a socket that was bound before anything else began."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial

import uvicorn

from agent_lightning.errors import RunInUse
from agent_lightning.server.connection import Connection
from agent_lightning.server.front import App
from agent_lightning.server.limits import Limits

LOOK_SECONDS = 0.5  # at whoever holds the port that we want
STOP_SECONDS = 5  # that open requests get when the server ends


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises RunInUse when somebody listens there already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's algorithm off for such sockets alone, and an answer in two writes
    # would wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RunInUse(
            f"{host}:{port} cannot be used ({error.strerror}): {_who_is_at(host, port)} Stop it, or choose "
            "another one with the setting `port` (--set port=N; `agent-lightning serve --port N`)"
        ) from error
    listener.listen(2048)
    return listener


def _who_is_at(host: str, port: int) -> str:
    """Whoever listens there, by its run if it is one of ours."""
    connection = http.client.HTTPConnection(host, port, timeout=LOOK_SECONDS)
    try:
        connection.request("GET", "/healthz")
        told = json.loads(connection.getresponse().read(4096))
        return f"the server of run {str(told['run'])[:200]!r} is running there."
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return "is another server running there?"
    finally:
        connection.close()


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Signals belong to whoever runs the loop; `ready` is set once requests are taken."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: App, listener: socket.socket, limits: Limits = Limits()) -> AsyncIterator[str]:
    """Serve `app` while the block runs; gives the address."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=75,
        ws="none",
        http=partial(Connection, limits=limits),  # type: ignore[arg-type]  # called like the class
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
    try:
        ready = asyncio.ensure_future(server.ready.wait())
        await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            await task
        yield address(listener)
    finally:
        server.should_exit = True
        await task
