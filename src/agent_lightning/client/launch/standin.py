"""A stand-in for a training server: one canned answer in every dialect, and a note of all that came. For `inspect`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from agent_lightning.errors import RequestError
from agent_lightning.wire import chat_reply, protocol
from agent_lightning.wire.dialects import BY_PATH

SAID = "This is a stand-in model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One LLM call."""

    id: str
    rollout: str  # key of its rollout
    component: tuple[str, ...]
    path: str
    model: str
    refused: str | None  # why a training server would not serve it


@dataclass(slots=True, kw_only=True)
class StandIn:
    url: str = ""
    calls: list[Heard] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)  # by key of the rollout
    spans: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def live(self, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            number = len(self.inputs) + 1
            self.inputs[f"alr-{number}"] = body.get("input")
        named = {"rollout_id": body["rollout_id"], "attempt_id": f"at-{number}", "key": f"alr-{number}"}
        return {**named, "mode": "live", "deadline_seconds": None}

    def note(self, call: Heard) -> None:
        with self.lock:
            self.calls.append(call)

    def trace(self, body: dict[str, Any]) -> None:
        with self.lock:
            for resource in body.get("resourceSpans", ()):
                for scope in resource["scopeSpans"]:
                    self.spans += scope["spans"]


@contextmanager
def stand_in() -> Iterator[StandIn]:
    heard = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Told", (_Speaker,), {"heard": heard}))
    server.daemon_threads = True
    heard.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()


class _Speaker(BaseHTTPRequestHandler):
    heard: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        path = self.path.split("?")[0]
        if path in BY_PATH:
            self._answer(path, body)
        elif path == protocol.LIVE:
            self._send(200, self.heard.live(body))
        else:
            if path == protocol.TRACES:
                self.heard.trace(body)
            self._send(200, {"status": "finished", "stored": 1, "stale": 0})

    def _answer(self, path: str, body: dict[str, Any]) -> None:
        dialect, call_id = BY_PATH[path], self.headers.get(protocol.CALL_ID, "call")
        component = tuple(unquote(name) for name in self.headers.get(protocol.COMPONENT, "").split("/") if name)
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        named: dict[str, Any] = {"id": call_id, "rollout": key, "component": component, "path": path}
        named["model"] = str(body.get("model"))
        try:
            request = dialect.parse(body)
        except RequestError as error:
            self.heard.note(Heard(**named, refused=str(error)))
            self._send(
                400, {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}
            )
            return
        self.heard.note(Heard(**named, refused=None))
        answer = _canned(call_id, request.model)
        if request.stream:
            self._stream(dialect.writer(call_id, 1, request).whole(answer))
        else:
            self._send(200, dialect.body(answer, call_id, request))

    def _send(self, status: int, content: Any) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in filter(None, events):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


def _canned(call_id: str, model: str) -> dict[str, Any]:
    made = chat_reply.choice(0, chat_reply.message(SAID, ()), "stop", None)
    heading = chat_reply.Heading(call_id=call_id, created=1, model=model)
    return chat_reply.with_token_ids(chat_reply.completion(heading, [made], chat_reply.usage(1, 1, 0)), [1], [[1]])
