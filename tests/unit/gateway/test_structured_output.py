"""The official clients' high-level helpers against a random model: a grammar alone makes its answers what they parse."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field
from tokenizers import AddedToken

from agent_lightning.gateway.grammar import grammar_of
from agent_lightning.inference.grammar import Grammars
from agent_lightning.wire.call_shapes import SHAPES
from agent_lightning.wire.chat import parse_chat
from gateway_rig import Rig, chatml_tokenizer
from grammar_rig import random_rig

USER: Any = [{"role": "user", "content": "hello there"}]


class Point(BaseModel):
    x: int = Field(ge=-99, le=99)
    y: bool


class Pick(BaseModel):
    """Without limits: Anthropic's client moves them from the schema into its descriptions."""

    kind: Literal["short", "long"]
    on: bool
    ranks: list[Literal[1, 2]]


class Plan(BaseModel):
    title: str = Field(max_length=4)
    kind: Literal["short", "long"]
    points: list[Point] = Field(max_length=2)
    note: Literal["none"] | None


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"digit": {"enum": [1, 2, 3]}},
        },
    },
}
MUL: Any = {"type": "function", "function": {"name": "mul", "parameters": {"type": "object", "properties": {"c": {"const": 1}}, "required": ["c"], "additionalProperties": False}}}  # fmt: skip


def claude(here: Rig, key: str) -> anthropic.AsyncAnthropic:
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)  # spares reading the certificates
    return anthropic.AsyncAnthropic(base_url=here.url, api_key=key, max_retries=0, http_client=plain)


async def test_chat_parse_and_its_stream_give_the_model_that_was_asked_for():
    async with random_rig() as here:
        claim = await here.claim("live")
        async with here.client(claim) as client:
            parsed = await client.chat.completions.parse(model="m", messages=USER, response_format=Plan)
            assert isinstance(parsed.choices[0].message.parsed, Plan)
            async with client.chat.completions.stream(model="m", messages=USER, response_format=Plan) as stream:
                kinds = {event.type async for event in stream}
                final = await stream.get_final_completion()
            assert isinstance(final.choices[0].message.parsed, Plan)
            assert {"content.delta", "content.done", "chunk"} <= kinds
            raw = await client.chat.completions.with_raw_response.parse(model="m", messages=USER, response_format=Plan)
            assert isinstance(raw.parse().choices[0].message.parsed, Plan)
            plain = {"type": "json_schema", "json_schema": {"name": "ok", "strict": True, "schema": SCHEMA}}
            async with client.chat.completions.with_streaming_response.create(
                model="m", messages=USER, response_format=plain, stream=True
            ) as answer:
                lines = [json.loads(line[6:]) async for line in answer.iter_lines() if line.startswith("data: {")]
            text = "".join(line["choices"][0]["delta"].get("content") or "" for line in lines)
            assert json.loads(text) in ({"ok": True}, {"ok": False})


async def test_responses_parse_and_its_stream_give_the_model_that_was_asked_for():
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        parsed = await client.responses.parse(model="m", input="hello", text_format=Plan)
        assert isinstance(parsed.output_parsed, Plan)
        async with client.responses.stream(model="m", input="hello", text_format=Plan) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert isinstance(final.output_parsed, Plan)
        next_one = await client.responses.parse(
            model="m", input="again", text_format=Point, previous_response_id=final.id
        )
        assert isinstance(next_one.output_parsed, Point)


async def test_messages_parse_and_its_stream_give_the_model_that_was_asked_for():
    async with random_rig() as here, claude(here, (await here.claim("live")).key) as client:
        asked: Any = {"model": "m", "max_tokens": 900, "messages": USER, "output_format": Pick}
        parsed = await client.messages.parse(**asked)
        assert isinstance(parsed.parsed_output, Pick)
        async with client.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
        assert isinstance(final.parsed_output, Pick)


async def test_json_object_gives_some_object_and_a_limit_says_length():
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        asked: Any = {"model": "m", "messages": USER, "response_format": {"type": "json_object"}}
        whole = (await client.chat.completions.create(**asked, logit_bias=braces(here))).choices[0]
        assert (json.loads(whole.message.content or ""), whole.finish_reason) == ({}, "stop")
        cut = (await client.chat.completions.create(**asked, max_tokens=1)).choices[0]
        assert cut.finish_reason == "length"


@pytest.mark.parametrize("mode", ["train", "val", "live"])
async def test_the_form_holds_in_every_mode_and_with_every_filter(mode: Any):
    filters: list[Any] = [{"temperature": 0}, {"top_p": 0.3, "frequency_penalty": 2}, {"logit_bias": {"5": 100}}]
    async with random_rig() as here, here.client(await here.claim(mode)) as client:
        for asked in filters if mode == "live" else filters[:1]:
            made = await client.chat.completions.parse(model="m", messages=USER, response_format=Point, **asked)  # type: ignore[arg-type]
            assert isinstance(made.choices[0].message.parsed, Point)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "named", "allowed"])
async def test_a_forced_choice_is_a_call_whose_arguments_fit(choice: str, stream: bool):
    wanted: Any = {
        "required": "required",
        "named": {"type": "function", "function": {"name": "add"}},
        "allowed": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ADD]}},
    }[choice]
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        asked: Any = {"model": "m", "messages": USER, "tools": [MUL, ADD], "tool_choice": wanted}
        asked["parallel_tool_calls"] = False
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                made = (await events.get_final_completion()).choices[0]
        else:
            made = (await client.chat.completions.create(**asked)).choices[0]
        assert (made.finish_reason, made.message.content) == ("tool_calls", None)
        (call,) = made.message.tool_calls or ()
        assert call.type == "function"
        check_call(call.function.name, json.loads(call.function.arguments))
        assert choice == "required" or call.function.name == "add"


def check_call(name: str, arguments: Any) -> None:
    if name == "mul":
        assert arguments == {"c": 1}
    else:
        assert name == "add" and set(arguments) == {"a", "b"}
        assert arguments["a"] in (1, 2, 3) and arguments["b"] in range(10)


async def test_responses_and_messages_force_calls_as_well():
    flat = [{"type": "function", **tool["function"]} for tool in (ADD, MUL)]
    theirs = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in (ADD, MUL)]
    async with random_rig() as here:
        claim = await here.claim("live")
        async with here.client(claim) as client:
            for choice in ("required", {"type": "function", "name": "add"}):
                asked: Any = {"model": "m", "input": "x", "tools": flat, "tool_choice": choice}
                made = await client.responses.create(**asked, parallel_tool_calls=False)
                (item,) = made.output
                assert item.type == "function_call"
                check_call(item.name, json.loads(item.arguments))
                assert made.parallel_tool_calls is False
        async with claude(here, claim.key) as client:
            for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}):
                asked = {"model": "m", "max_tokens": 900, "messages": USER, "tools": theirs, "tool_choice": choice}
                answer = await client.messages.create(**asked)
                (block,) = answer.content
                assert block.type == "tool_use" and answer.stop_reason == "tool_use"
                check_call(block.name, block.input)


async def test_a_tool_loop_ends_in_the_asked_form():
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        asked: Any = {"model": "m", "tools": [ADD], "response_format": Point}
        first = await client.chat.completions.parse(
            messages=USER, tool_choice="required", parallel_tool_calls=False, **asked
        )
        reply = first.choices[0].message
        (call,) = reply.tool_calls or ()
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        last: Any = await client.chat.completions.parse(
            messages=[*USER, reply.model_dump(exclude_none=True), result], **asked, logit_bias=opening(here, "{")
        )
        assert isinstance(last.choices[0].message.parsed, Point)
        both: Any = await client.chat.completions.parse(messages=USER, **asked, logit_bias=opening(here, "<"))
        assert both.choices[0].message.tool_calls


def braces(here: Rig) -> dict[str, int]:
    """A liking for objects that are empty."""
    return {str(token): 100 for token in map(here.tokenizer.token_id, "{}") if token is not None}


def opening(here: Rig, mark: str) -> dict[str, int]:
    ids = range(here.tokenizer.vocabulary)
    return {str(token): 60 for token in ids if here.tokenizer.token_text(token).startswith(mark)}


async def test_a_bound_call_says_so_and_keeps_what_its_tokens_were_free_to_be(tmp_path: Any):
    async with random_rig(str(tmp_path / "calls.db")) as here:
        claim = await here.claim("train")
        async with here.client(claim) as client:
            await client.chat.completions.create(model="m", messages=USER, max_tokens=9)
            await client.chat.completions.parse(model="m", messages=USER, response_format=Point)
        free, bound = await here.store.calls(claim.rollout.id)
        assert len(free.legal_mass) == 0 and "bound_to" not in free.used_sampling
        assert bound.used_sampling["bound_to"] == "json"
        assert len(bound.legal_mass) == len(bound.sampled_ids)
        assert bound.legal_mass[-1] == 0.0  # behind the last brace there was nothing to choose but the end
        assert any(0.0 < mass < 1.0 for mass in bound.legal_mass)
        assert bound.meta == {"choice": 0}


REFUSED: list[tuple[Any, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
        "response_format.json_schema.schema",
    ),
    (
        {"tools": [{**MUL, "function": {"name": "m", "strict": True, "parameters": {"type": "bogus"}}}]},
        "tools[0].function.parameters",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [MUL], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
    ({"tools": [MUL], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
]


async def test_a_form_that_cannot_be_enforced_is_refused_by_its_name():
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        for fields, param in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="m", messages=USER, extra_body=fields)
            assert caught.value.param == param


async def test_a_schema_too_large_or_too_deep_is_refused():
    deep: Any = {"type": "integer"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    large = {"enum": ["x" * 1000 + str(i) for i in range(110)]}
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        for schema in (large, deep):
            with pytest.raises(openai.BadRequestError, match="too large"):
                await client.chat.completions.create(
                    model="m", messages=USER,
                    response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
                )  # fmt: skip


async def test_a_tool_without_strict_is_bound_to_what_can_be_enforced():
    odd: Any = {
        "type": "function",
        "function": {"name": "odd", "parameters": {"type": "object", "not": {"required": ["a"]}}},
    }
    async with random_rig() as here, here.client(await here.claim("live")) as client:
        made = await client.chat.completions.create(
            model="m", messages=USER, tools=[odd], tool_choice="required", parallel_tool_calls=False,
            logit_bias=braces(here),
        )  # fmt: skip
        (call,) = made.choices[0].message.tool_calls or ()
        assert isinstance(json.loads(call.function.arguments), dict)  # type: ignore[union-attr]


def bound(tokenizer: Any = None, family: str = "hermes", thinks: Any = "never", **fields: Any) -> Any:
    """What the engine says to a text, token by token: (is it legal so far, may it end)."""
    tokenizer = tokenizer or chatml_tokenizer()
    grammar = grammar_of(
        parse_chat({"model": "m", "messages": USER, **fields}), tokenizer, family=family, thinks=thinks
    )
    assert grammar is not None
    grammars = Grammars(tokenizer, tokenizer.vocabulary)

    def read(text: str) -> tuple[bool, bool]:
        matcher = grammars.start(grammar, tokenizer.stop_ids)
        for token in tokenizer.encode(text):
            if not matcher.legal()[token]:
                return False, False
            matcher.take(token)
        return True, bool(matcher.legal()[tokenizer.stop_ids[0]])

    return read


GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
BAD = GOOD.replace("1", "7")


def test_a_strict_tool_binds_its_calls_and_leaves_the_text_free():
    read = bound(tools=[ADD, MUL])
    assert read("just words <tool") == (True, True)
    assert read(f"Let me see.\n{GOOD}") == read(f"{GOOD}\n{GOOD}") == (True, True)
    assert read(GOOD[:-3]) == (True, False)
    assert read(f"Let me see.\n{BAD}") == read(f"{GOOD}\n{BAD}") == (False, False)


def test_one_call_is_one_call():
    read = bound(tools=[MUL, ADD], parallel_tool_calls=False)
    assert read("words") == read(f"words {GOOD}") == (True, True)
    assert read(f"{GOOD}\n") == (False, False)
    several = bound(tools=[MUL, ADD], tool_choice="required")
    assert several(GOOD) == several(f"{GOOD}\n{GOOD}") == (True, True)
    assert several("words") == (False, False) and several("") == (True, False)


def test_formats_that_say_how_a_text_is_read_do_not_bind_it():
    class Where(BaseModel):
        path: Path
        format: Literal["a"]
        day: date

    schema = Where.model_json_schema()
    read = bound(response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": schema}})
    assert read('{"path":"x/y","format":"a","day":"2026-11-30"}') == (True, True)
    assert read('{"path":"x/y","format":"a","day":"today') == (False, False)


def test_a_free_request_has_no_grammar():
    for fields in ({}, {"tools": [MUL]}, {"tools": [ADD], "tool_choice": "none"}, {"parallel_tool_calls": False}):
        assert grammar_of(parse_chat({"model": "m", "messages": USER, **fields}), chatml_tokenizer()) is None


ARGUMENTS = '{"a": 1, "b": 2}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "add", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": %s}]',
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", WRITTEN)
def test_each_family_is_bound_to_its_own_way_to_write_calls(family: str, special: bool):
    tokenizer = chatml_tokenizer()
    marks = [AddedToken(SHAPES[family].mark, special=special, normalized=False)]
    tokenizer._tokenizer.add_tokens(marks)
    good, bad = WRITTEN[family] % ARGUMENTS, WRITTEN[family] % '{"a": 7, "b": 2}'
    free = bound(tokenizer, family, tools=[ADD])
    assert free("words, only words") == free(good) == free(f"words {good}") == (True, True)
    assert free(bad) == free(f"words {bad}") == (False, False)
    forced = bound(tokenizer, family, tools=[ADD, MUL], tool_choice="required")
    bare = good.removeprefix(SHAPES[family].mark) if SHAPES[family].bare else good
    assert forced(bare) == (True, True)
    assert forced("words") == (False, False) and not forced("")[1]
    if family == "llama3":
        assert free(bare) == (True, True) and free(" " + bad.removeprefix(SHAPES[family].mark)) == (False, False)
        assert forced(f"{bare}; {bare}") == (True, True)
    if family == "mistral":
        assert forced(f"{good[:-1]}, {good[len('[TOOL_CALLS][') :]}") == (True, True)


def test_reasoning_comes_before_the_form():
    fields: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "ok", "schema": SCHEMA}}}
    may = bound(thinks="may", **fields)
    assert may('<think>hm {</think>\n\n{"ok":true}') == may('{"ok":true}') == (True, True)
    assert may("<think>hm")[1] is False and may("hm") == (False, False)
    inside = bound(thinks="inside", **fields)
    assert inside('hm</think>\n{"ok":true}') == (True, True)
    assert inside('{"ok":true}') == (True, False)
    calls = bound(thinks="may", tools=[ADD], tool_choice="required")
    assert calls(f"<think>a</think>\n{GOOD}") == calls(GOOD) == (True, True)
