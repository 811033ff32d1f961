"""Our errors as HTTP answers in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_lightning.errors import (
    AccessDenied,
    Conflict,
    EngineBusy,
    EngineError,
    Fenced,
    LightningError,
    NotFound,
    RequestError,
    ServerBusy,
    SettingError,
)
from agent_lightning.wire.protocol import SHOULD_RETRY

RETRY_AFTER_SECONDS = 1
_NO_RETRY = {SHOULD_RETRY: "false"}
_STATUS = {"body_too_large": 413, "unsupported_media_type": 415, "request_timeout": 408}  # by code; else 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def error_answer(error: BaseException) -> ErrorAnswer:
    """How a caller is told. What is not one of ours becomes a 500 that does not show its inside."""
    match error:
        case RequestError():
            return _answer(_STATUS.get(error.code, 400), error, "invalid_request_error", error.code)
        case SettingError():
            return _answer(400, error, "invalid_request_error", "invalid_value")
        case AccessDenied():
            return _answer(401, error, "authentication_error", "invalid_api_key")
        case NotFound():
            return _answer(404, error, "invalid_request_error", "not_found")
        case Conflict():
            return _answer(409, error, "invalid_request_error", "conflict")
        case Fenced():
            return _answer(410, error, "invalid_request_error", "attempt_ended")
        case EngineBusy():
            return _answer(503, error, "server_error", "engine_busy", {"retry-after": str(RETRY_AFTER_SECONDS)})
        case ServerBusy():
            return _answer(429, error, "rate_limit_error", "server_busy", {"retry-after": str(RETRY_AFTER_SECONDS)})
        case RecursionError():
            shown = LightningError("the body is nested too deeply to be read")
            return _answer(400, shown, "invalid_request_error", "nested_too_deeply")
        case TimeoutError():
            return _answer(504, error, "timeout_error", "step_timeout")
        case EngineError():
            return _answer(500, error, "server_error", "engine_error", {})
        case LightningError():
            return _answer(500, error, "server_error", "server_error", {})
        case _:
            shown = LightningError(f"the server failed ({type(error).__name__}); its log has the details")
            return _answer(500, shown, "server_error", "internal_error", {})


def _answer(
    status: int, error: BaseException, kind: str, code: str, headers: Mapping[str, str] = _NO_RETRY
) -> ErrorAnswer:
    param = error.field if isinstance(error, RequestError) else None
    body = {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
    return ErrorAnswer(status=status, body=body, headers=headers)
