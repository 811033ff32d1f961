"""Every field that the official clients can send: honoured, harmless, or refused by its name. None is unknown to us."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import ChatRequest, parse_chat
from agent_lightning.wire.completions import parse_completions
from agent_lightning.wire.messages import parse_messages
from agent_lightning.wire.responses import parse_responses

SCHEMA = {"type": "object"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "f", "parameters": SCHEMA}
THEIRS = {"name": "f", "input_schema": SCHEMA}
USER = [{"role": "user", "content": "other"}]
JSON_SCHEMA = {"type": "json_schema", "name": "n", "schema": SCHEMA}

# A value of a field that is honoured gives another request; with a list, fields that it needs beside it come second.
CHAT_HONOURED: dict[str, Any] = {
    "messages": USER, "model": "other", "frequency_penalty": 1, "presence_penalty": 1, "logit_bias": {"1": 1},
    "logprobs": True, "max_completion_tokens": 3, "max_tokens": 3, "n": 2, "response_format": {"type": "json_object"},
    "seed": 1, "stop": "x", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.1,
    "top_logprobs": (2, {"logprobs": True}), "top_p": 0.5, "tools": [FUNCTION],
    "tool_choice": ("required", {"tools": [FUNCTION]}), "parallel_tool_calls": (False, {"tools": [FUNCTION]}),
}  # fmt: skip
CHAT_HARMLESS: dict[str, Any] = {
    "metadata": {"a": "b"}, "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k",
    "prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h", "reasoning_effort": "low",
    "safety_identifier": "u", "service_tier": "flex", "store": True, "user": "u", "verbosity": "low",
}  # fmt: skip
CHAT_REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"}, "functions": [{"name": "f"}], "function_call": {"name": "f"},
    "modalities": ["text", "audio"], "moderation": {"model": "m"}, "web_search_options": {},
}  # fmt: skip

TEXT_HONOURED: dict[str, Any] = {
    "prompt": "other", "model": "other", "frequency_penalty": 1, "presence_penalty": 1, "logit_bias": {"1": 1},
    "logprobs": 2, "max_tokens": 3, "n": 2, "seed": 1, "stop": ["x"], "stream": True,
    "stream_options": {"include_usage": True}, "temperature": 0.1, "top_p": 0.5,
}  # fmt: skip
TEXT_HARMLESS: dict[str, Any] = {"user": "u"}
TEXT_REFUSED: dict[str, Any] = {"best_of": 3, "echo": True, "suffix": "x"}

RESPONSES_HONOURED: dict[str, Any] = {
    "input": "other", "model": "other", "include": ["message.output_text.logprobs"], "instructions": "x",
    "max_output_tokens": 3, "previous_response_id": "resp_c", "stream": True, "temperature": 0.1, "top_p": 0.5,
    "text": {"format": JSON_SCHEMA}, "top_logprobs": 2, "tools": [FLAT], "tool_choice": ("required", {"tools": [FLAT]}),
    "parallel_tool_calls": (False, {"tools": [FLAT]}),
}  # fmt: skip
RESPONSES_HARMLESS: dict[str, Any] = {
    "access_programs": {"cyber": "standard"}, "background_options": {}, "image": {"context_compression": "auto"},
    "max_tool_calls": 3,  # of tools that the provider runs itself
    "metadata": {"a": "b"}, "prompt_cache_key": "k", "prompt_cache_options": {"ttl": "30m"},
    "prompt_cache_retention": "24h", "reasoning": {"effort": "low"}, "safety_identifier": "u", "service_tier": "flex",
    "store": False, "stream_options": {"include_obfuscation": False}, "user": "u",
    "truncation": "auto",  # what does not fit is refused either way
}  # fmt: skip
RESPONSES_REFUSED: dict[str, Any] = {
    "background": True, "context_management": [{"type": "compaction"}], "conversation": "conv_1",
    "moderation": {"model": "m"}, "prompt": {"id": "p"},
}  # fmt: skip

MESSAGES_HONOURED: dict[str, Any] = {
    "messages": USER, "model": "other", "max_tokens": 3, "stop_sequences": ["x"], "stream": True, "system": "x",
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "tools": [THEIRS],
    "tool_choice": ({"type": "any"}, {"tools": [THEIRS]}),
}  # fmt: skip
MESSAGES_HARMLESS: dict[str, Any] = {
    "betas": ["x"], "billing_policy": {}, "cache_control": {"type": "ephemeral"}, "diagnostics": {}, "inference_geo": "eu",
    "fallback_credit_token": "t", "fallbacks": [],  # a policy declines nothing
    "metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "fast", "user_profile_id": "u", "workspace_id": "w",
    "thinking": {"type": "enabled", "budget_tokens": 1024},  # a policy thinks as its template lets it
}  # fmt: skip
MESSAGES_REFUSED: dict[str, Any] = {
    "compaction": {"type": "x"}, "container": "c", "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}], "thread": {"type": "create"},
}  # fmt: skip

DIALECTS: dict[str, Any] = {
    "chat": (parse_chat, {"messages": [{"role": "user", "content": "hi"}]}, CHAT_HONOURED, CHAT_HARMLESS, CHAT_REFUSED),
    "completions": (parse_completions, {"prompt": "hi"}, TEXT_HONOURED, TEXT_HARMLESS, TEXT_REFUSED),
    "responses": (parse_responses, {"input": "hi"}, RESPONSES_HONOURED, RESPONSES_HARMLESS, RESPONSES_REFUSED),
    "messages": (
        parse_messages, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99},
        MESSAGES_HONOURED, MESSAGES_HARMLESS, MESSAGES_REFUSED,
    ),
}  # fmt: skip
SENT = [
    ("chat", chat_create_params.CompletionCreateParamsStreaming),
    ("completions", completion_create_params.CompletionCreateParamsStreaming),
    ("responses", response_create_params.ResponseCreateParamsStreaming),
    ("messages", message_create_params.MessageCreateParamsStreaming),
    ("messages", beta_message_create_params.MessageCreateParamsStreaming),
    ("messages", message_count_tokens_params.MessageCountTokensParams),
]


@pytest.mark.parametrize(("dialect", "params"), SENT)
def test_every_field_of_the_clients_has_its_place_in_the_table(dialect: str, params: Any):
    *_, honoured, harmless, refused = DIALECTS[dialect]
    table = [*honoured, *harmless, *refused]
    assert len(table) == len(set(table))
    assert set(typing.get_type_hints(params)) <= set(table)


def test_the_table_has_no_field_that_no_client_sends():
    for dialect, (*_, honoured, harmless, refused) in DIALECTS.items():
        sent = {name for kind, params in SENT if kind == dialect for name in typing.get_type_hints(params)}
        assert sent == {*honoured, *harmless, *refused}


def rows(kind: int) -> list[Any]:
    return [(dialect, name, value) for dialect, table in DIALECTS.items() for name, value in table[kind].items()]


def parsed(dialect: str, **fields: Any) -> ChatRequest:
    parse, base, *_ = DIALECTS[dialect]
    return dataclasses.replace(parse({"model": "m", **base, **fields}), requested={})


@pytest.mark.parametrize(("dialect", "name", "value"), rows(2))
def test_what_is_honoured_changes_the_request(dialect: str, name: str, value: Any):
    value, beside = value if isinstance(value, tuple) else (value, {})
    assert parsed(dialect, **beside, **{name: value}) != parsed(dialect, **beside)


@pytest.mark.parametrize(("dialect", "name", "value"), rows(3))
def test_what_is_harmless_changes_nothing(dialect: str, name: str, value: Any):
    assert parsed(dialect, **{name: value}) == parsed(dialect)


@pytest.mark.parametrize(("dialect", "name", "value"), rows(4))
def test_what_cannot_be_honoured_is_refused_by_its_name(dialect: str, name: str, value: Any):
    with pytest.raises(RequestError, match=name) as caught:
        parsed(dialect, **{name: value})
    assert caught.value.field == name
    assert parsed(dialect, **{name: None}) == parsed(dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_field_that_nobody_knows_passes(dialect: str):
    assert parsed(dialect, surprise={"x": [1]}) == parsed(dialect)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("chat", {"modalities": ["text"], "functions": [], "function_call": "none"}),
        ("completions", {"echo": False, "suffix": "", "best_of": 1}),
        ("responses", {"background": False, "context_management": []}),
        ("messages", {"context_management": {"edits": []}, "mcp_servers": []}),
    ],
)
def test_a_value_that_asks_for_nothing_is_not_refused(dialect: str, fields: Any):
    assert parsed(dialect, **fields) == parsed(dialect)
