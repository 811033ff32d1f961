"""Templates and tokenizers without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.errors import ModelError, RequestError
from agent_lightning.models.chat_template import CHATML, SENTINEL, ChatTemplate, load_template
from agent_lightning.models.probe import probe
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from gateway_rig import NOW, chatml_tokenizer

TOKENIZER = chatml_tokenizer()
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "description": "a < b & c", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": "<é>"}'}}


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, NOW)


def test_the_shipped_template_writes_chatml():
    assert template().render([{"role": "system", "content": "be"}, USER]) == (
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_shipped_template_shows_tools_calls_and_results():
    text = template().render(
        [
            {"role": "system", "content": "be"},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3"},
        ],
        [TOOL],
    )
    assert text.startswith("<|im_start|>system\nbe\n\n")
    assert json.dumps(TOOL) in text
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": "<é>"}}\n</tool_call><|im_end|>' in text
    )
    assert "<tool_response>\n3\n</tool_response>" in text
    assert text.count("<|im_start|>system") == 1


def test_the_shipped_template_passes_its_own_probe():
    seen = probe(template(), TOKENIZER)
    assert seen.append_only
    assert seen.tools
    assert seen.end_of_turn == TOKENIZER.stop_ids[0]


def test_what_follows_a_reply_begins_with_the_end_of_the_turn():
    suffix = template().suffix_after([USER], [USER])
    assert suffix == "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template().render([USER, {"role": "assistant", "content": SENTINEL}, USER]).endswith(SENTINEL + suffix)


def test_the_date_is_frozen_and_special_tokens_are_known():
    source = "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}"
    assert (
        ChatTemplate(source, {"bos_token": "<s>"}, datetime(2030, 1, 2, tzinfo=UTC)).render([USER]) == "<s>2030-01-02"
    )


def test_a_template_that_says_no_is_a_refused_request():
    with pytest.raises(RequestError, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render([USER])


@pytest.mark.parametrize("source", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}"])
def test_a_template_is_a_prisoner_of_its_sandbox(source):
    with pytest.raises(RequestError):
        template(source).render([USER])


def test_loops_may_be_left_and_json_is_not_escaped():
    assert template("{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}").render(
        [{"role": "u", "content": "<"}, USER]
    ) == ('{"role": "u", "content": "<"}')


def test_broken_source_is_a_model_error():
    with pytest.raises(ModelError, match="compiled"):
        template("{% for %}")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (CHATML.replace("(message.content or '')", "(message.content or '').split('</think>')[-1]", 1), "thinking"),
        ("{{ messages | length }}", "earlier reply"),
        ("{{ raise_exception('no') }}", "no"),
    ],
)
def test_the_probe_says_why_a_template_is_not_append_only(source, reason):
    seen = probe(template(source), TOKENIZER)
    assert not seen.append_only
    assert reason in (seen.reason or "")


def test_the_probe_sees_that_tools_are_ignored():
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    seen = probe(template(plain), TOKENIZER)
    assert seen.append_only
    assert (seen.tools, seen.tools_reason) == (False, "the chat template ignores tools")


def test_the_chat_template_setting(tmp_path: Path):
    path = tmp_path / "mine.jinja"
    path.write_text("from a file {{ messages }}")
    assert load_template(TOKENIZER, NOW).source == CHATML
    assert load_template(TOKENIZER, NOW, str(path)).source.startswith("from a file")
    assert load_template(TOKENIZER, NOW, "{{ messages }}").source == "{{ messages }}"
    with pytest.raises(ModelError, match="chat_template"):
        load_template(TOKENIZER, NOW, "missing.jinja")


def test_the_tiny_model_speaks_through_its_own_template():
    tokenizer = ChatTokenizer.load(resolve("tiny"))
    tiny = load_template(tokenizer, NOW)
    seen = probe(tiny, tokenizer)
    assert seen.append_only
    assert seen.end_of_turn in tokenizer.stop_ids
    assert tokenizer.context_length == 1024
    assert tokenizer.decode(tokenizer.encode("12+3=15")) == "12+3=15"
    with pytest.raises(ModelError, match="im_start"):
        load_template(tokenizer, NOW, "chatml")


def test_a_folder_is_read_with_all_its_ends_of_turn(tmp_path: Path):
    TOKENIZER._tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9, "max_position_embeddings": 77}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"eos_token": {"content": "<|im_end|>"}, "chat_template": [{"name": "default", "template": "T{{ 1 }}"}]}
        )
    )
    loaded = ChatTokenizer.load(tmp_path)
    assert loaded.stop_ids == (7, 8, 9, TOKENIZER.stop_ids[0])
    assert (loaded.chat_template, loaded.context_length) == ("T{{ 1 }}", 77)
    assert loaded.special_tokens == {"eos_token": "<|im_end|>"}
    (tmp_path / "chat_template.jinja").write_text("F")
    assert ChatTokenizer.load(tmp_path).chat_template == "F"


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        ChatTokenizer.load(tmp_path)


@given(st.lists(st.integers(0, TOKENIZER.vocabulary - 1), max_size=40))
def test_pieces_spell_what_the_whole_spells(ids: list[int]):
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.close() == TOKENIZER.decode(ids)


@given(st.text(max_size=30))
def test_text_comes_back_and_no_piece_holds_half_a_character(text: str):
    ids, stream = TOKENIZER.encode(text), TOKENIZER.stream()
    pieces = [stream.push(token) for token in ids]
    assert "".join([*pieces, stream.close()]) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_encoding_is_the_callers_own():
    first = TOKENIZER.encode("hello")
    first.append(1)
    assert TOKENIZER.encode("hello") != first


def test_neither_torch_nor_transformers_is_imported():
    code = (
        "import sys, agent_lightning.models.chat_template, agent_lightning.gateway.app;"
        "assert not {'torch', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
