"""The port: taken ones are named with the remedy."""

from __future__ import annotations

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
