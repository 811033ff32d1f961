"""The engine follows a grammar: what a random model writes is always a text of it, token by token."""

from __future__ import annotations

import json
from typing import Any, Literal, Optional

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, create_model
from tokenizers import AddedToken

import inference_cases as cases
from agent_lightning.errors import EngineError, RequestError
from agent_lightning.inference.grammar import Grammars
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.source import resolve
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.wire.form import Form
from gateway_rig import chatml_tokenizer
from grammar_rig import random_core

TOKENIZER = chatml_tokenizer()
CORE = random_core(TOKENIZER)
END = TOKENIZER.stop_ids[0]


def json_grammar(schema: dict[str, Any]) -> str:
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": {"whitespace_flexible": False}}}]})


def spoken(core: TorchCore, grammar: str, count: int = 1, **sampling: Any) -> list[Any]:
    """Each sequence's pieces."""
    asked = {"temperature": 1.0, "stop_ids": TOKENIZER.stop_ids, "max_new_tokens": 600, **sampling}
    for number in range(count):
        core.submit(cases.request(f"{number}", [1, 2, 3], grammar=grammar, **asked))
    return list(cases.drain(core).values())


LEAVES = st.sampled_from(
    [
        bool, type(None), Literal["a", 'q"uo\\te', "é🎉", 7], Literal["x"], float, int,
    ]
)  # fmt: skip
BOUNDED = st.builds(lambda low, more: ("int", low, low + more), st.integers(-40, 40), st.integers(0, 90))
TEXTS = st.builds(lambda low, more: ("text", low, low + more), st.integers(0, 3), st.integers(0, 6))


def annotated(kind: Any) -> Any:
    """The Python type, and the field that bounds it."""
    if isinstance(kind, tuple) and kind[0] == "int":
        return int, Field(ge=kind[1], le=kind[2])
    if isinstance(kind, tuple) and kind[0] == "text":
        return str, Field(min_length=kind[1], max_length=kind[2])
    if isinstance(kind, tuple) and kind[0] == "list":
        return list[model({"of": kind[1]})], Field(max_length=kind[2])
    if isinstance(kind, tuple) and kind[0] == "maybe":
        return Optional[annotated(kind[1])[0]], Field()  # noqa: UP045 - made at run time
    return (model(kind) if isinstance(kind, dict) else kind), Field()


def model(fields: dict[str, Any]) -> Any:
    made: dict[str, Any] = {name: annotated(kind) for name, kind in fields.items()}
    return create_model("Made", __config__={"extra": "forbid"}, **made)


KINDS = st.recursive(
    LEAVES | BOUNDED | TEXTS,
    lambda inner: (
        st.dictionaries(st.sampled_from(["k", "other", "é"]), inner, min_size=1, max_size=3)
        | st.tuples(st.just("list"), inner, st.integers(0, 3))
        | st.tuples(st.just("maybe"), LEAVES)
    ),
    max_leaves=6,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields=st.dictionaries(st.sampled_from(["a", "b", "c d"]), KINDS, min_size=1, max_size=3))
def test_whatever_a_random_model_writes_is_read_by_the_schemas_own_model(fields: dict[str, Any]) -> None:
    made = model(fields)
    for pieces in spoken(CORE, json_grammar(made.model_json_schema()), count=2, max_new_tokens=200):
        ids, _ = cases.answer(pieces)
        assert pieces[-1].finish_reason in ("stop", "length")
        assert (ids[-1] == END) == (pieces[-1].finish_reason == "stop")
        if ids[-1] == END:
            made.model_validate_json(TOKENIZER.decode(ids))


SMALL = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"], "additionalProperties": False}  # fmt: skip


def test_log_probabilities_are_those_of_the_model_that_knows_no_grammar() -> None:
    for temperature in (1.0, 0.7):
        (pieces,) = spoken(CORE, json_grammar(SMALL), temperature=temperature)
        ids, logprobs = cases.answer(pieces)
        expected = cases.reference_logprobs(CORE.model, [1, 2, 3], ids, temperature)
        assert logprobs == pytest.approx(expected, abs=1e-4)


def test_the_legal_mass_is_the_models_own_probability_of_what_may_come() -> None:
    (pieces,) = spoken(CORE, json_grammar(SMALL))
    ids, _ = cases.answer(pieces)
    masses = [mass for piece in pieces for mass in piece.legal_mass]
    matcher = Grammars(TOKENIZER, CORE.forward.vocabulary).start(json_grammar(SMALL), TOKENIZER.stop_ids)
    logits = CORE.model(input_ids=torch.tensor([[1, 2, 3, *ids]])).logits[0, 2:-1].float()
    for token, mass, row in zip(ids, masses, torch.softmax(logits, -1), strict=True):
        legal = matcher.legal()
        assert legal[token]
        expected = float(row[torch.from_numpy(legal)].sum()) if legal.sum() > 1 else 0.0
        assert mass == pytest.approx(expected, abs=1e-5)
        if token != END:
            matcher.take(token)
    assert masses[-1] == 0.0  # nothing but the end could come


def test_forced_text_comes_as_the_tokens_that_the_tokenizer_writes() -> None:
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "the cat sat on the mat" /[a-z]/'}]})
    (pieces,) = spoken(CORE, grammar)
    ids, _ = cases.answer(pieces)
    forced = TOKENIZER.encode("the cat sat on the mat").tolist()[:-1]
    assert ids[: len(forced)] == forced
    assert all(piece.legal_mass[0] == 0.0 for piece in pieces[: len(forced)])


def test_a_mark_that_the_tokenizer_keeps_whole_is_text_to_the_grammar() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer._tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    matcher = Grammars(tokenizer, tokenizer.vocabulary).start(
        json.dumps({"grammars": [{"lark_grammar": 'start: "<tool_call>x"'}]}), tokenizer.stop_ids
    )
    assert matcher.legal().nonzero()[0].tolist() == tokenizer.encode("<tool_call>").tolist()


def test_an_end_is_legal_exactly_where_the_text_is_whole() -> None:
    matcher = Grammars(TOKENIZER, TOKENIZER.vocabulary).start(json_grammar({"enum": [1, 12]}), TOKENIZER.stop_ids)
    for text, may_end in (("", False), ("1", True), ("2", True)):
        for token in TOKENIZER.encode(text):
            matcher.take(token)
        assert bool(matcher.legal()[END]) == matcher.may_end == may_end
    assert matcher.legal().nonzero()[0].tolist() == [END]


def test_without_a_stop_id_a_whole_text_that_cannot_go_on_ends_the_sequence() -> None:
    (pieces,) = spoken(CORE, json_grammar({"const": True}), stop_ids=())
    ids, _ = cases.answer(pieces)
    assert (TOKENIZER.decode(ids), pieces[-1].finish_reason) == ("true", "stop")


def test_a_limit_cuts_with_length() -> None:
    (pieces,) = spoken(CORE, json_grammar(SMALL), max_new_tokens=2)
    assert pieces[-1].finish_reason == "length"


def test_the_tiny_vocabulary_spells_numbers_and_refuses_the_rest() -> None:
    tokenizer = ChatTokenizer.load(resolve("tiny"))
    core = random_core(tokenizer)
    ids, _ = cases.answer(spoken(core, json_grammar({"enum": [-5, 40]}), stop_ids=tokenizer.stop_ids)[0])
    assert tokenizer.decode(ids) in ("-5", "40")
    with pytest.raises(RequestError, match="cannot spell"):
        spoken(core, json_grammar({"type": "object"}))
    grammar = json.dumps({"grammars": [{"lark_grammar": 'start: "1" /[0-9]/ "{"'}]})
    core.submit(cases.request("dead", [1], grammar=grammar, temperature=1.0))
    core.submit(cases.request("other", [1], temperature=1.0, max_new_tokens=4))
    got = cases.drain(core)
    assert isinstance(got["dead"][-1], EngineError) and got["other"][-1].finish_reason == "length"
    assert core.idle and core.load().running == 0


def test_an_engine_without_a_tokenizer_and_a_grammar_that_is_none_are_refused() -> None:
    bare = TorchCore(CORE.model, max_sequences=2, context_length=64)
    bare.publish(cases.adapter(CORE.model, version=0))
    with pytest.raises(RequestError, match="no tokenizer"):
        spoken(bare, json_grammar(SMALL))
    with pytest.raises(RequestError, match="cannot be compiled"):
        spoken(CORE, "no grammar")


def test_batch_mates_and_retained_tokens_change_nothing_of_what_a_bound_call_samples() -> None:
    first = cases.answer(spoken(CORE, json_grammar(SMALL))[0])
    CORE.submit(cases.request("mate", [1, 2, 3, 4], temperature=1.0, max_new_tokens=30))
    assert cases.answer(spoken(CORE, json_grammar(SMALL))[-1])[0] == first[0]


def test_a_form_binds_only_where_it_forbids_something() -> None:
    tool = {"type": "function", "function": {"name": "a"}}
    strict = {"type": "function", "function": {"name": "a", "strict": True}}
    assert not Form().binds([tool]) and not Form(one_call=True).binds([])
    assert Form().binds([strict]) and Form(one_call=True).binds([tool]) and Form(schema={}).binds([])
