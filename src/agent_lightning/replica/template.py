"""The template process: `python -P -m agent_lightning.replica.template SOCKET_FD PARENT_PID`.

It loads what all replicas share, then forks one child a `fork` message and tells how each ended. It computes nothing and
has one thread, so that a fork is safe. It does not outlive its parent, nor its children it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any

from agent_lightning.errors import EngineError, LightningError
from agent_lightning.replica.child import Link, live

_PR_SET_PDEATHSIG = 1


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit it; the main process decides
    _die_with(int(sys.argv[2]))
    end = socket.socket(fileno=int(sys.argv[1]))
    link = Link(end)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone: so are we
        first = link.first()
        if first is None:
            return 0
        try:
            module, name = first["host"].split(":")
            host = getattr(import_module(module), name)
            shared = host.prepare(first["config"], link.send)
        except Exception as error:
            traceback.print_exc()
            known = error if isinstance(error, LightningError) else EngineError(f"{type(error).__name__}: {error}")
            link.send({"kind": "unable", "error": known})
            return 1
        gc.collect()
        gc.freeze()  # what is shared stays shared: a collection in a child need not touch it
        link.send({"kind": "ready"})
        _bear(end, link, host, shared)
    return 0


def _bear(end: socket.socket, link: Link, host: Any, shared: Any) -> None:
    """Fork on demand and tell of ends; returns when the parent's end of the line is closed."""
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring)
    while True:
        awake = select.select([end, bell], [], [])[0]
        if bell in awake:
            os.read(bell, 4096)
            _tell_ends(link)
        if end in awake:
            messages = link.receive(0.0)
            if messages is None:
                return
            for _ in messages:
                pid = os.fork()
                if pid == 0:
                    os.close(bell)
                    _be_child(end, link, host, shared)
                for file in (link.files.popleft(), link.files.popleft()):
                    os.close(file)
                link.send({"kind": "forked", "pid": pid})


def _tell_ends(link: Link) -> None:
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            link.send({"kind": "ended", "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _be_child(control: socket.socket, link: Link, host: Any, shared: Any) -> None:
    """The rest of a fork's life; never returns."""
    code = 1
    try:
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        _die_with(parent)
        end, words = link.files.popleft(), link.files.popleft()
        os.dup2(words, 2)
        os.close(words)
        code = live(socket.socket(fileno=end), host, shared)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # nothing is worth a slow teardown: what lasts was saved


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent, also in the middle of a long computation."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
