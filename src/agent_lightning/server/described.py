"""OpenAPI: what the routes answer beside their own, the gateway's paths, examples and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from agent_lightning.server.answers import ErrorAnswer
from agent_lightning.wire import protocol

_REASONS = {
    400: "the request cannot be honoured; `param` names the field",
    401: "the key is missing, unknown, or opens another door",
    404: "no such record",
    408: "the body did not come in time",
    409: "the state of the record does not allow this, or it belongs to another run",
    410: "the attempt or the run is over; `x-should-retry: false`",
    413: "the body is too large",
    415: "the body came in another form than the route reads",
    429: "the server has as much to do as it takes; come again after Retry-After",
    503: "not now: weights change, or the server ends; come again after Retry-After",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": reason} for status, reason in _REASONS.items()
}
_ATTRIBUTE = {"key": "agent_lightning.rollout_id", "value": {"stringValue": "run-1.train.sum"}}
_SPAN = {
    "traceId": "5b8aa5a2d2c872e8321cf37308d69df2",
    "spanId": "051581bf3cb55c13",
    "name": "search",
    "startTimeUnixNano": "1764500000000000000",
    "endTimeUnixNano": "1764500000100000000",
    "attributes": [_ATTRIBUTE],
}
TRACES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"resourceSpans": {"type": "array"}}},
                "example": {"resourceSpans": [{"scopeSpans": [{"spans": [_SPAN]}]}]},
            },
            "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        "200": {
            "description": "an ExportTraceServiceResponse; `partialSuccess` counts the spans that were not taken",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
}
_MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "string"}},
}
_FIELDS: Mapping[str, Any] = {  # what the gateway reads of them all; the rest is the providers' own documentation
    "model": {"type": "string"},
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "prompt": {"type": "string"},
    "input": {"type": "string"},
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
}
_GATEWAY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    protocol.CHAT: ("OpenAI chat completions", {"model": "default", "messages": _MESSAGES}),
    protocol.COMPLETIONS: ("OpenAI completions", {"model": "default", "prompt": "2 + 3 ="}),
    protocol.RESPONSES: ("OpenAI responses", {"model": "default", "input": "What is 2 + 3?"}),
    protocol.MESSAGES: ("Anthropic messages", {"model": "default", "max_tokens": 64, "messages": _MESSAGES}),
    protocol.COUNT_TOKENS: ("Tokens of the prompt; nothing is recorded", {"model": "default", "messages": _MESSAGES}),
}
GATEWAY_ROUTES = (
    *(("POST", path) for path in _GATEWAY),
    ("GET", f"{protocol.RESPONSES}/{{response_id}}"),
    ("GET", protocol.MODELS),
)


def describe(api: FastAPI) -> None:
    """Let the app's OpenAPI hold the gateway's paths too, and say which keys there are."""
    own = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = own()
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # what is not valid is told with 400
            for unused in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(unused, None)
            schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"key": []}, {}]
            schema["paths"] |= _gateway_paths()
            api.openapi_schema = schema
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _gateway_paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, (summary, example) in _GATEWAY.items():
        shown = {name: _FIELDS[name] for name in (*example, "stream", "temperature")}
        schema = {"type": "object", "required": list(example), "properties": shown}
        content = {"application/json": {"schema": schema, "example": dict(example)}}
        body = {"requestBody": {"required": True, "content": content}}
        paths[path] = {"post": {"summary": summary, **body, "responses": _answers(path, stream=True)}}
    one = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    again = {"summary": "An answer again", "parameters": [one], "responses": _answers(protocol.RESPONSES)}
    paths[f"{protocol.RESPONSES}/{{response_id}}"] = {"get": again}
    paths[protocol.MODELS] = {"get": {"summary": "The policy, for any key", "responses": _answers(protocol.MODELS)}}
    return paths


def _answers(path: str, *, stream: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    errors: dict[str, Any] = {
        str(status): {"description": reason, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, reason in {**_REASONS, 504: "max_step_timeout ran out"}.items()
    }
    if not path.startswith(protocol.MESSAGES):  # Anthropic's have a shape of their own
        for told in errors.values():
            told["content"]["application/json"]["schema"] = {"$ref": "#/components/schemas/ErrorAnswer"}
    if stream:
        content["text/event-stream"] = {}
    return {"200": {"description": "in the provider's own form", "content": content}, **errors}
