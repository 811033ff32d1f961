"""A gateway and a provider: real loopback servers that speak OpenAI's chat JSON and SSE and remember what came."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER_HEADERS: dict[str, str] = {}  # of every whole answer


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeServer:
    """Answers as told by `script` (status, headers, seconds to wait), then with 200."""

    name: str
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    script: list[tuple[int, dict[str, str], float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    claims: int = 0

    def on(self, suffix: str) -> list[Seen]:
        with self.lock:
            return [seen for seen in self.seen if seen.path.split("?")[0].endswith(suffix)]

    @property
    def calls(self) -> list[Seen]:
        return self.on("/chat/completions")


def claim(number: int | str = 1, **changes: Any) -> dict[str, Any]:
    return {
        "rollout_id": f"ro-{number}",
        "attempt_id": f"at-{number}",
        "run_id": "run-1",
        "number": 1,
        "mode": "train",
        "key": f"alr-{number}",
        "lease_seconds": 60,
        "deadline_seconds": 30,
        "task": {"id": f"t-{number}", "input": {"n": number}, "split": "train", "meta": {}},
        "sibling": 0,
        "group_id": "g-1",
        **changes,
    }


def chat_answer(body: dict[str, Any], who: str) -> dict[str, Any]:
    said = body["messages"][-1]["content"]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"{who}: {said}"},
                "token_ids": [1, 2],
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }


def _chunks(body: dict[str, Any], who: str) -> Iterator[bytes]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    for text in (f"{who}: ", body["messages"][-1]["content"]):
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        yield f"data: {json.dumps({**base, 'choices': [choice]})}\n\n".encode()
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield f"data: {json.dumps({**base, 'choices': [last]})}\n\ndata: [DONE]\n\n".encode()


def _speaker(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Speaker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.loads(raw) if raw else None
            path = self.path.split("?")[0]
            chat = path.endswith("/chat/completions")
            with fake.lock:
                fake.seen.append(Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                status, headers, wait = fake.script.pop(0) if chat and fake.script else (200, {}, 0.0)
                if path == "/api/v1/live":
                    fake.claims += 1
            time.sleep(wait)
            if status != 200:
                self._json(status, {"error": {"message": "told to", "type": "test", "code": "told"}}, headers)
            elif chat and body.get("stream"):
                self._stream(_chunks(body, fake.name))
            else:
                self._json(200, self._content(path, body), headers)

        def _content(self, path: str, body: Any) -> dict[str, Any]:
            if path.endswith("/chat/completions"):
                return chat_answer(body, fake.name)
            if path == "/api/v1/live":
                return claim(f"live-{fake.claims}", mode="live", rollout_id=body["rollout_id"], deadline_seconds=None)
            return {"stored": 1, "stale": 0, "status": "finished", "lease_until": 1.0}

        def _json(self, status: int, content: Any, headers: dict[str, str]) -> None:
            data = json.dumps(content).encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **ANSWER_HEADERS, **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True

        def _stream(self, chunks: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    return Speaker


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(name: str) -> Iterator[FakeServer]:
    fake = FakeServer(name=name)
    server = _Server(("127.0.0.1", 0), _speaker(fake))
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
