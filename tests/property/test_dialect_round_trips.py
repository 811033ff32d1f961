"""What the policy said, sent in a dialect, read by its official client and sent back, is what the policy said.

The clients read bytes of ours through a transport that answers by itself; streams come in arbitrary pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_lightning.gateway.stitch import message_key
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.chat_reply import Heading, choice, completion, message, usage, with_token_ids
from agent_lightning.wire.dialects import BY_NAME
from agent_lightning.wire.sse import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(st.sampled_from(["add", "look_up"]), st.dictionaries(TEXT, VALUE, max_size=3)), max_size=3)
REPLY = st.fixed_dictionaries(
    {
        "pieces": st.lists(TEXT.filter(bool), max_size=4),
        "calls": CALLS,
        "cut": st.booleans(),
        "cached": st.integers(0, 3),
        "logprobs": st.booleans(),
        "result": TEXT,
    }
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "look_up")
]
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def neutral(reply: dict[str, Any], *, calls: bool = True) -> dict[str, Any]:
    """The answer as the gateway keeps it, with token ids; one id a piece of text."""
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(reply["calls"] if calls else ())
    ]
    text = "".join(reply["pieces"])
    reason = "tool_calls" if made else "length" if reply["cut"] else "stop"
    logprobs = entries(reply["pieces"]) if reply["logprobs"] else None
    said = choice(0, message(text, made), reason, logprobs)
    count = len(reply["pieces"])
    heading = Heading(call_id="c1", created=1_800_000_000, model="m")
    return with_token_ids(completion(heading, [said], usage(5, count, reply["cached"])), range(5), [range(count)])


def entries(pieces: list[str]) -> list[dict[str, Any]]:
    return [{"token": piece, "logprob": -0.5, "bytes": list(piece.encode()), "top_logprobs": []} for piece in pieces]


def streamed(dialect: str, answer: dict[str, Any], reply: dict[str, Any], request: ChatRequest) -> bytes:
    """The same answer as the gateway streams it."""
    writer = BY_NAME[dialect].writer("c1", 1_800_000_000, request)
    said = answer["choices"][0]["message"]
    sent = writer.opening(0, range(5))
    for position, piece in enumerate(reply["pieces"]):
        logprobs = entries([piece]) if reply["logprobs"] else None
        sent += writer.text(0, piece, [position], logprobs)
    if said.get("tool_calls"):
        sent += writer.calls(0, said["tool_calls"])
    return sent + b"".join(writer.ending(answer))


def plain(dialect: str, answer: dict[str, Any], request: ChatRequest) -> bytes:
    return dumps(BY_NAME[dialect].body(answer, "c1", request))


class Answers(httpx2.BaseTransport):
    """Says the bytes that it is given next, and keeps the body that it was asked with."""

    def __init__(self) -> None:
        self.next = b""
        self.asked: Any = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked = json.loads(request.read())
        kind = "text/event-stream" if self.asked.get("stream") else "application/json"
        return httpx2.Response(200, content=self.next, headers={"content-type": kind})


ANSWERS = Answers()
OPENAI = openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=httpx2.Client(transport=ANSWERS, verify=False))
CLAUDE = anthropic.Anthropic(base_url="http://x", api_key="k", http_client=httpx2.Client(transport=ANSWERS, verify=False))  # fmt: skip
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS},
    "responses": {"model": "m", "input": "hi", "tools": [{"type": "function", **tool["function"]} for tool in TOOLS]},
    "messages": {
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": tool["function"]["name"], "input_schema": {"type": "object"}} for tool in TOOLS],
    },
    "completions": {"model": "m", "prompt": "hi"},
}  # fmt: skip


def ask(dialect: str, asked: dict[str, Any]) -> Any:
    """The client's plain answer."""
    if dialect == "chat":
        return OPENAI.chat.completions.create(**asked)
    if dialect == "responses":
        return OPENAI.responses.create(**asked)
    if dialect == "completions":
        return OPENAI.completions.create(**asked)
    return CLAUDE.messages.create(**asked)


def ask_streaming(dialect: str) -> Any:
    """What the client's own accumulation makes of a stream."""
    asked = ASKED[dialect]
    if dialect == "chat":
        with OPENAI.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            return stream.get_final_completion()
    if dialect == "responses":
        with OPENAI.responses.stream(**asked) as stream:
            return stream.get_final_response()
    with CLAUDE.messages.stream(**asked) as stream:
        return stream.get_final_message()


def last_response() -> Any:
    """Of a stream that may have been cut: the helpers of OpenAI's client raise then."""
    *_, last = OPENAI.responses.create(**ASKED["responses"], stream=True)
    return last.response


def next_turn(dialect: str, answer: Any, result: str) -> dict[str, Any]:
    """The agent's next request: the client's own objects sent back, results of calls, one more question."""
    asked = ASKED[dialect]
    if dialect == "chat":
        said = answer.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": result} for call in said.tool_calls or ()]
        return {**asked, "messages": [*asked["messages"], said, *results, {"role": "user", "content": "so?"}]}
    if dialect == "responses":
        calls = [item for item in answer.output if item.type == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": result} for call in calls]
        first = {"role": "user", "content": "hi"}
        return {**asked, "input": [first, *answer.output, *outputs, {"role": "user", "content": "so?"}]}
    uses = [block for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": result} for use in uses]
    said = {"role": "assistant", "content": answer.content}
    last = {"role": "user", "content": [*results, {"type": "text", "text": "so?"}]}
    return {**asked, "messages": [*asked["messages"], said, last]}


def expected(answer: dict[str, Any], result: str) -> Iterator[dict[str, Any]]:
    said = answer["choices"][0]["message"]
    yield {"role": "user", "content": "hi"}
    yield said
    for call in said.get("tool_calls") or ():
        yield {"role": "tool", "tool_call_id": call["id"], "content": result}
    yield {"role": "user", "content": "so?"}


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@QUICK
@given(reply=REPLY)
def test_what_comes_back_from_a_client_is_what_the_policy_said(dialect: str, reply: dict[str, Any]):
    answer = neutral(reply)
    spoken = BY_NAME[dialect]
    ANSWERS.next = plain(dialect, answer, spoken.parse(ASKED[dialect]))
    read = ask(dialect, ASKED[dialect])
    ask(dialect, next_turn(dialect, read, reply["result"]))
    back = spoken.parse(ANSWERS.asked)
    assert back.opaque is None
    wanted = list(expected(answer, reply["result"]))
    assert [message_key(said) for said in back.messages] == [message_key(said) for said in wanted]
    ids = [call["id"] for said in back.messages for call in said.get("tool_calls") or ()]
    assert ids == [said["tool_call_id"] for said in back.messages if said["role"] == "tool"]
    assert ids == [f"call_{i}" for i in range(len(ids))]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@QUICK
@given(reply=REPLY)
def test_a_stream_adds_up_to_the_plain_answer(dialect: str, reply: dict[str, Any]):
    answer = neutral(reply)
    request = BY_NAME[dialect].parse({**ASKED[dialect], "stream_options": {"include_usage": True}})
    ANSWERS.next = plain(dialect, answer, request)
    whole = ask(dialect, ASKED[dialect])
    for sent in (
        streamed(dialect, answer, reply, request),
        b"".join(BY_NAME[dialect].writer("c1", 1_800_000_000, request).whole(answer)),
    ):
        ANSWERS.next = sent
        if dialect == "messages" or not reply["cut"]:
            assert told(dialect, ask_streaming(dialect)) == told(dialect, whole)
        if dialect == "responses":
            assert told(dialect, last_response()) == told(dialect, whole)


def told(dialect: str, answer: Any) -> Any:
    """What a client can read of an answer; ids of tokens, which a stream spreads over its events, aside."""
    if dialect == "chat":
        (made,) = answer.choices
        calls = [(call.id, call.function.name, call.function.arguments) for call in made.message.tool_calls or ()]
        logprobs = made.logprobs and [entry.model_dump() for entry in made.logprobs.content or ()]
        return (
            answer.id, answer.model, answer.created, made.finish_reason, made.message.role, made.message.content, calls,
            logprobs or None, answer.usage.model_dump(),
        )  # fmt: skip
    if dialect == "responses":
        shown = answer.model_dump(exclude={"prompt_token_ids", "token_ids"})
        for item in shown["output"]:
            item.pop("parsed_arguments", None)
            for part in item.get("content") or ():
                part.pop("parsed", None)
        return shown
    shown = answer.model_dump(exclude={"prompt_token_ids", "token_ids"})
    for block in shown["content"]:
        block.pop("parsed_output", None)
    return shown


@QUICK
@given(reply=REPLY)
def test_a_completions_stream_adds_up_to_its_text(reply: dict[str, Any]):
    answer = neutral(reply, calls=False)
    request = BY_NAME["completions"].parse({**ASKED["completions"], "stream_options": {"include_usage": True}})
    ANSWERS.next = plain("completions", answer, request)
    whole = ask("completions", ASKED["completions"])
    ANSWERS.next = streamed("completions", answer, {**reply, "calls": []}, request)
    *chunks, last = list(OPENAI.completions.create(**ASKED["completions"], stream=True))
    made = whole.choices[0]
    assert "".join(chunk.choices[0].text for chunk in chunks) == made.text == "".join(reply["pieces"])
    assert chunks[-1].choices[0].finish_reason == made.finish_reason
    assert last.usage == whole.usage
    if reply["logprobs"]:
        offsets = [at for chunk in chunks if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
        assert offsets == made.logprobs.text_offset
