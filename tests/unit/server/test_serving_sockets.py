"""The port: taken ones are named with the remedy; answers do not wait for acknowledgements."""

from __future__ import annotations

import asyncio
import socket

import pytest

from agent_lightning.errors import RunInUse
from agent_lightning.server.serving import address, bind


def test_a_port_that_is_in_use_is_named_with_what_helps_for_every_command():
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    try:
        with pytest.raises(RunInUse, match=rf"127\.0\.0\.1:{port} cannot be used .*setting `port`.*--set port=N"):
            bind("127.0.0.1", port)
    finally:
        listener.close()
    again = bind("127.0.0.1", port)
    assert address(again) == f"http://127.0.0.1:{port}"
    again.close()


async def test_what_is_accepted_sends_each_write_at_once():
    listener = bind("127.0.0.1", 0)
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = writer.get_extra_info("socket")
        accepted.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(look, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted
        writer.close()
