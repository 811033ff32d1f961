"""A gateway and a provider that speak chat, responses and messages, whole and streamed, and remember what came.

Their answers are spelled by this project's own dialects. What a server says is told by `script`, in order, then it
repeats the last thing it was asked, behind its own name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from agent_lightning.wire import chat_reply, protocol
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.dialects import BY_PATH


@dataclass(frozen=True)
class Tool:
    """An answer that calls a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass
class Asked:
    path: str
    key: str  # what came as the bearer, or as Anthropic's key
    component: str | None
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Server:
    name: str
    url: str = ""
    calls: list[Asked] = field(default_factory=list)
    others: list[tuple[str, Any]] = field(default_factory=list)
    script: list[str | Tool] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    rollouts: int = 0

    @property
    def components(self) -> list[str | None]:
        return [call.component for call in self.calls]

    @property
    def keys(self) -> list[str]:
        return [call.key for call in self.calls]

    def on(self, suffix: str) -> list[Any]:
        return [body for path, body in self.others if path.endswith(suffix)]


def _completion(server: Server, request: ChatRequest, number: int) -> dict[str, Any]:
    with server.lock:
        said = server.script.pop(0) if server.script else f"{server.name}: {_last_text(request)}"
    calls = []
    if isinstance(said, Tool):
        function = {"name": said.name, "arguments": json.dumps(said.arguments)}
        calls, said = [{"id": f"call_{number}", "type": "function", "function": function}], ""
    made = chat_reply.choice(0, chat_reply.message(said, calls), "tool_calls" if calls else "stop", None)
    heading = chat_reply.Heading(call_id=str(number), created=1, model=request.model)
    answer = chat_reply.completion(heading, [made], chat_reply.usage(3, 2, 0))
    return chat_reply.with_token_ids(answer, [1, 2, 3], [[4, 5]])


def _last_text(request: ChatRequest) -> str:
    content = request.messages[-1].get("content")
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content)
    return content or ""


def _speaker(server: Server) -> type[BaseHTTPRequestHandler]:
    class Speaker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            body, path = (json.loads(raw) if raw else {}), self.path.split("?")[0]
            dialect = BY_PATH.get(path)
            if dialect is None:
                self._whole(self._other(path, body))
                return
            number = self._note(path, body)
            request = dialect.parse(body)
            answer = _completion(server, request, number)
            if body.get("stream"):
                self._stream(dialect.writer(str(number), 1, request).whole(answer))
            else:
                self._whole(dialect.body(answer, str(number), request))

        def _note(self, path: str, body: dict[str, Any]) -> int:
            headers = {name.lower(): value for name, value in self.headers.items()}
            key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
            component = headers.get(protocol.COMPONENT)
            with server.lock:
                named = None if component is None else unquote(component)
                server.calls.append(Asked(path=path, key=key, component=named, headers=headers, body=body))
                return len(server.calls)

        def _other(self, path: str, body: Any) -> dict[str, Any]:
            with server.lock:
                server.others.append((path, body))
                if path != protocol.LIVE:
                    return {"status": "finished", "stored": 1, "stale": 0}
                server.rollouts += 1
                number = server.rollouts
            return {
                "rollout_id": body["rollout_id"],
                "attempt_id": f"at-live-{number}",
                "key": f"alr-live-{number}",
                "mode": "live",
                "deadline_seconds": None,
            }

        def _whole(self, content: Any) -> None:
            raw = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _stream(self, events: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                if event:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.write(b"0\r\n\r\n")

    return Speaker


class _Threaded(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(name: str) -> Iterator[Server]:
    server = Server(name=name)
    listener = _Threaded(("127.0.0.1", 0), _speaker(server))
    server.url = f"http://127.0.0.1:{listener.server_address[1]}"
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    listener.shutdown()
    listener.server_close()
