"""Chat completions <-> what the gateway works with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.errors import (
    AccessDenied,
    Conflict,
    EngineBusy,
    EngineError,
    Fenced,
    NotFound,
    RequestError,
    SettingError,
    StoreError,
)
from agent_lightning.wire.chat import body_hash, flat_text, parse_chat, readable
from agent_lightning.wire.errors import error_answer
from agent_lightning.wire.sse import dumps, event
from agent_lightning.wire.tool_calls import ToolCallFilter, split_tool_calls
from agent_lightning.wire.tool_families import HERMES

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ADD = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_full_request_is_understood():
    asked = parse_chat(
        {
            **BODY, "temperature": 0.5, "stop": "END", "max_completion_tokens": 7, "max_tokens": 9, "n": 2, "seed": 3,
            "logprobs": True, "top_logprobs": 4, "stream": True, "stream_options": {"include_usage": True},
            "logit_bias": {"5": -1}, "tools": [ADD], "tool_choice": "auto", "response_format": {"type": "text"},
            "unknown": {"x": 1},
        }
    )  # fmt: skip
    assert (asked.temperature, asked.stop, asked.max_tokens, asked.n, asked.seed) == (0.5, ("END",), 7, 2, 3)
    assert (asked.logprobs, asked.top_logprobs, asked.stream, asked.include_usage) == (True, 4, True, True)
    assert asked.logit_bias == {5: -1.0}
    assert asked.tools == (ADD,)
    assert asked.requested["temperature"] == 0.5
    assert "unknown" not in asked.requested


def test_what_the_client_leaves_open_is_unknown_and_not_zero():
    asked = parse_chat({**BODY, "temperature": None, "max_tokens": None})
    assert (asked.temperature, asked.top_p, asked.max_tokens, asked.seed) == (None, None, None, None)


def test_tool_choice_none_hides_the_tools():
    assert parse_chat({**BODY, "tools": [ADD], "tool_choice": "none"}).tools == ()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"n": 1.5}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].function"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_refusal_names_the_field(fields, field):
    with pytest.raises(RequestError) as caught:
        parse_chat({**BODY, **fields})
    assert caught.value.field == field
    assert field.split("[")[0].split(".")[0] in str(caught.value)


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(RequestError):
        parse_chat([1])


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4))
def test_a_body_has_one_hash_whatever_the_order_of_its_keys(body):
    assert body_hash(body) == body_hash(dict(reversed(body.items())))
    assert body_hash(body) != body_hash({**body, "one more": 1})


def test_content_is_flattened_and_unreadable_parts_are_named():
    assert flat_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert flat_text(None) == ""
    plain = readable([{"role": "developer", "content": [{"type": "text", "text": "a"}]}])
    assert plain == [{"role": "system", "content": "a"}]
    with pytest.raises(RequestError) as caught:
        readable([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}])
    assert caught.value.field == "messages[0].content[1]"


def test_tool_calls_are_split_from_the_text_and_keep_their_ids():
    text, calls = split_tool_calls(f"First.\n{CALL}\n{CALL}", "c1", HERMES)
    assert text == "First."
    assert [call["function"] for call in calls] == [{"name": "add", "arguments": '{"a": 1}'}] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert split_tool_calls(f"First.\n{CALL}\n{CALL}", "c1", HERMES)[1] == calls
    assert split_tool_calls(CALL, "c2", HERMES)[1][0]["id"] != calls[0]["id"]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "<tool_call>",
        "<tool_call>nonsense</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        f"{CALL}<tool_call>{{",
    ],
)
def test_text_that_holds_no_whole_call_stays_as_it_is(text):
    assert split_tool_calls(text, "c1", HERMES) == (text, [])


@given(
    st.lists(
        st.sampled_from(["a", " ", "\n", "<", "<tool", "_call>", "</tool_call>", CALL, "<tool_call>"]), max_size=8
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
)
def test_a_stream_shows_a_beginning_of_the_final_text_and_never_a_call(parts, cuts):
    text, filter_, at, shown = "".join(parts), ToolCallFilter(HERMES), 0, ""
    while at < len(text):
        for cut in cuts:
            shown += filter_.push(text[at : at + cut])
            at += cut
    final, _ = split_tool_calls(text, "c1", HERMES)
    assert final.startswith(shown)
    assert "<tool_call>" not in shown
    if "<" not in text:
        assert shown == text.rstrip()


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (RequestError("x", field="n"), 400, "invalid_request", "false"),
        (SettingError("x"), 400, "invalid_value", "false"),
        (AccessDenied("x"), 401, "invalid_api_key", "false"),
        (NotFound("x"), 404, "not_found", "false"),
        (Conflict("x"), 409, "conflict", "false"),
        (Fenced("x"), 410, "attempt_ended", "false"),
        (EngineBusy("x"), 503, "engine_busy", None),
        (TimeoutError("x"), 504, "step_timeout", "false"),
        (EngineError("x"), 500, "engine_error", None),
        (StoreError("x"), 500, "server_error", None),
        (KeyError("secret"), 500, "internal_error", None),
    ],
)
def test_each_error_has_its_status_code_and_shape(error, status, code, retry):
    answer = error_answer(error)
    assert (answer.status, answer.body["error"]["code"], answer.headers.get("x-should-retry")) == (status, code, retry)
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in answer.body["error"]["message"]


@given(st.text(st.characters(), max_size=20))
def test_any_text_survives_an_event(text):
    line = event({"text": text})
    assert line.startswith(b"data: ")
    assert line.endswith(b"\n\n")
    assert json.loads(line[6:])["text"] == text
    assert json.loads(dumps(text)) == text
    assert line.count(b"\n") == 2
