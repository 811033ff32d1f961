"""The dialects that are spoken, by path and by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_lightning.records import Dialect as Name
from agent_lightning.wire import protocol
from agent_lightning.wire.chat import ChatRequest, parse_chat
from agent_lightning.wire.chat_reply import ChunkWriter, Heading
from agent_lightning.wire.completions import parse_completions
from agent_lightning.wire.completions_reply import TextWriter, completion_body
from agent_lightning.wire.dialect import Dialect
from agent_lightning.wire.errors import ErrorAnswer
from agent_lightning.wire.messages import parse_messages
from agent_lightning.wire.messages_reply import EventWriter, error_in_their_shape, message_body
from agent_lightning.wire.responses import parse_responses
from agent_lightning.wire.responses_reply import NumberedWriter, error_event, response_body
from agent_lightning.wire.sse import event, named_event


class _OpenAI:
    """How OpenAI tells of errors."""

    def error(self, answer: ErrorAnswer) -> ErrorAnswer:
        return answer

    def error_event(self, answer: ErrorAnswer) -> bytes:
        return event(answer.body)


class ChatDialect(_OpenAI):
    """OpenAI chat completions: the neutral form itself."""

    name: Name = "chat"

    def parse(self, body: Any) -> ChatRequest:
        return parse_chat(body)

    def body(self, answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> Mapping[str, Any]:
        return answer

    def writer(self, call_id: str, created: int, request: ChatRequest) -> ChunkWriter:
        heading = Heading(call_id=call_id, created=created, model=request.model)
        return ChunkWriter(heading=heading, include_usage=request.include_usage)


class MessagesDialect:
    """Anthropic messages."""

    name: Name = "messages"

    def parse(self, body: Any) -> ChatRequest:
        return parse_messages(body)

    def body(self, answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> Mapping[str, Any]:
        return message_body(answer, call_id, request)

    def writer(self, call_id: str, created: int, request: ChatRequest) -> EventWriter:
        return EventWriter(call_id=call_id, request=request)

    def error(self, answer: ErrorAnswer) -> ErrorAnswer:
        return error_in_their_shape(answer)

    def error_event(self, answer: ErrorAnswer) -> bytes:
        return named_event("error", error_in_their_shape(answer).body)


class ResponsesDialect(_OpenAI):
    """OpenAI responses."""

    name: Name = "responses"

    def parse(self, body: Any) -> ChatRequest:
        return parse_responses(body)

    def body(self, answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> Mapping[str, Any]:
        return response_body(answer, call_id, request)

    def writer(self, call_id: str, created: int, request: ChatRequest) -> NumberedWriter:
        return NumberedWriter(call_id=call_id, created=created, request=request)

    def error_event(self, answer: ErrorAnswer) -> bytes:
        return error_event(answer)


class CompletionsDialect(_OpenAI):
    """OpenAI completions."""

    name: Name = "completions"

    def parse(self, body: Any) -> ChatRequest:
        return parse_completions(body)

    def body(self, answer: Mapping[str, Any], call_id: str, request: ChatRequest) -> Mapping[str, Any]:
        return completion_body(answer, call_id)

    def writer(self, call_id: str, created: int, request: ChatRequest) -> TextWriter:
        return TextWriter(call_id=call_id, created=created, model=request.model, include_usage=request.include_usage)


CHAT, MESSAGES, RESPONSES = ChatDialect(), MessagesDialect(), ResponsesDialect()
BY_PATH: Mapping[str, Dialect] = {
    protocol.CHAT: CHAT,
    protocol.COMPLETIONS: CompletionsDialect(),
    protocol.RESPONSES: RESPONSES,
    protocol.MESSAGES: MESSAGES,
}
BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in BY_PATH.values()}
