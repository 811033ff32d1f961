"""Each family's tool calls: what a template writes is what its parser reads, whole or in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_lightning.models.chat_template import CHATML, ChatTemplate
from agent_lightning.wire.reading import Reading
from agent_lightning.wire.tool_calls import split_tool_calls
from agent_lightning.wire.tool_families import HERMES, LLAMA3, MISTRAL, PARSERS, family_of
from chat_families import FAMILIES
from gateway_rig import NOW

TEMPLATES = {"chatml": (CHATML, HERMES)} | {
    name: (FAMILIES[name].source, parser)
    for name, parser in (("qwen", HERMES), ("llama3", LLAMA3), ("mistral", MISTRAL))
}
MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>", "{", "]", '"', ";"]
WORDS = st.text(alphabet="ab é🎉\n{}[]<>|;\"'", max_size=10) | st.sampled_from(MARKS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "look_up"]), st.dictionaries(WORDS, JSON, max_size=3)), min_size=1, max_size=3
)
PIECES = st.lists(
    st.sampled_from(
        [*MARKS, "a", " ", "\n", "<", "<tool", "_call>", "[TOOL", "_CALLS]", "<|python", "_tag|>", "<th", "ink>", "</thi", "nk>",
         FAMILIES["qwen"].says("", {"name": "add", "arguments": {"a": 1}}),
         FAMILIES["llama3"].says("", {"name": "add", "arguments": {"a": 1}}),
         FAMILIES["mistral"].says("", {"name": "add", "arguments": {"a": 1}})]
    ),
    max_size=9,
)  # fmt: skip


COMPILED = {
    name: ChatTemplate(source, {"bos_token": "", "eos_token": ""}, NOW) for name, (source, _) in TEMPLATES.items()
}


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=20, deadline=None)
@given(text=st.sampled_from(["", "First.", "a {b} <c>"]), calls=CALLS)
def test_what_the_template_writes_of_a_parsed_call_is_parsed_to_the_same(name: str, text: str, calls: list[Any]):
    parser, template = TEMPLATES[name][1], COMPILED[name]
    made = [
        {"id": f"abcdefg{i:02}", "type": "function", "function": {"name": call, "arguments": json.dumps(arguments)}}
        for i, (call, arguments) in enumerate(calls)
    ]
    user, reply = {"role": "user", "content": "q"}, {"role": "assistant", "content": text, "tool_calls": made}
    before, whole = (template.render(messages, ()) for messages in ([user], [user, reply]))
    written = whole.removeprefix(before)
    for end in ("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n"):
        written = written.removesuffix(end)
    written = written.removesuffix("\n").removesuffix("<|im_end|>").removesuffix("<|eot_id|>")
    content, found = split_tool_calls(written, "c1", parser)
    assert content.strip() == text
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found] == calls
    if parser is MISTRAL:
        assert [call["id"] for call in found] == [call["id"] for call in made]


@pytest.mark.parametrize("thoughts", [False, True])
@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=40, deadline=None)
@given(parts=PIECES, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=20), inside=st.booleans())
def test_in_whatever_pieces_a_reply_comes_it_streams_to_what_it_is(
    name: str, thoughts: bool, parts: list[str], cuts: list[int], inside: bool
):
    text = "".join(parts)
    reading = Reading(tools=PARSERS[name], thoughts=thoughts, inside=thoughts and inside)
    filters = [reading.begin(), reading.begin()]
    shown, at = [["", ""], ["", ""]], 0
    while at < len(text):
        for cut in cuts:
            for place, pieces in enumerate(([text[at : at + cut]], list(text[at : at + cut]))):
                for piece in pieces:
                    reasoning, content = filters[place].push(piece)
                    shown[place][0] += reasoning
                    shown[place][1] += content
            at += cut
    whole = reading.read(text, "c1")
    assert shown[0] == shown[1]  # nothing is shown sooner or later for the sake of a cut
    assert whole.reasoning.startswith(shown[0][0])
    assert whole.content.startswith(shown[0][1])
    if whole.calls:
        assert shown[0][1] == whole.content.rstrip() or "</tool_call>" in text
    if not any(mark in text for mark in ("<", "[", "{")):
        assert "".join(shown[0]) == (whole.reasoning + whole.content).rstrip()


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (LLAMA3, '{"name": "add"}'),
        (LLAMA3, '{"name": "Bob", "age": 3}'),
        (LLAMA3, '{"name": "add", "parameters": [1]}'),
        (LLAMA3, '{"name": "add", "parameters": {}} and more'),
        (LLAMA3, '<|python_tag|>print("x")'),
        (LLAMA3, 'First. {"name": "add", "parameters": {}}'),
        (MISTRAL, '[TOOL_CALLS]{"name": "add", "arguments": {}}'),
        (MISTRAL, "[TOOL_CALLS][]"),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {}}, 1]'),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "argu'),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {}}] done'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {}} x</tool_call>'),
        (HERMES, "<tool_call>" + "[" * 100_000),
    ],
)
def test_a_malformed_call_leaves_the_reply_as_it_was_written(parser: Any, text: str):
    assert split_tool_calls(text, "c1", parser) == (text, [])


def test_ids_are_the_familys_own_and_come_again_in_a_replay():
    written = '[TOOL_CALLS][{"name": "a", "arguments": {}, "id": "abcdefghi"}, {"name": "b", "arguments": {}, "id": "abcdefghi"}, {"name": "c"}]'
    calls = split_tool_calls(written, "c1", MISTRAL)[1]
    ids = [call["id"] for call in calls]
    assert ids[0] == "abcdefghi"  # results will name what the policy wrote
    assert len(set(ids)) == 3
    assert all(len(name) == 9 and name.isalnum() for name in ids)
    assert split_tool_calls(written, "c1", MISTRAL)[1] == calls
    (call,) = split_tool_calls('{"name": "a", "parameters": {}}', "c1", LLAMA3)[1]
    assert call["id"].startswith("call_")


def test_the_family_is_known_by_what_its_template_writes():
    assert {name: family_of(family.source).name for name, family in FAMILIES.items()} == {
        "smollm2": "hermes", "qwen": "hermes", "llama3": "llama3", "mistral": "mistral",
    }  # fmt: skip
    assert family_of(CHATML) is HERMES
    assert family_of("<|start_header_id|>{{ messages }}") is HERMES
