"""What every Engine must do, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import inference_cases as cases
from agent_lightning.errors import EngineError, LightningError, PromptTooLong, RequestError
from agent_lightning.inference.engine import Engine, GenerateRequest, Piece, Sampling
from agent_lightning.inference.scripted import ScriptedEngine
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.inference.torch_engine import TorchEngine
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import token_ids

CONTEXT = 96


def _torch(model: object) -> Engine:
    return TorchEngine(TorchCore(model, max_sequences=3, context_length=CONTEXT))


def _scripted() -> Engine:
    return ScriptedEngine(
        lambda prompt, _: [(prompt[-1] + i) % cases.VOCABULARY for i in range(200)],
        token_seconds=0.001, capacity=3, context_length=CONTEXT,
    )  # fmt: skip


MAKERS = {
    "scripted": _scripted,
    "llama": lambda: _torch(cases.tiny_llama()),
    "gpt2": lambda: _torch(cases.tiny_gpt2()),
    "sliding": lambda: _torch(cases.tiny_sliding_mistral()),
}


@pytest.fixture(params=MAKERS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    made = MAKERS[request.param]()
    await made.publish(_version(0))
    yield made
    await made.close()


def _version(number: int, policy: str = "default") -> Adapter:
    return Adapter(policy=policy, version=number, rank=4, alpha=8.0, matrices={})


async def _read(engine: Engine, request: GenerateRequest) -> list[Piece]:
    return [piece async for piece in engine.generate(request)]


async def test_a_request_gets_ids_with_a_logprob_each_and_one_finish_reason_at_the_end(engine: Engine) -> None:
    pieces = await _read(engine, cases.request("a", [1, 2, 3], max_new_tokens=5))
    assert sum(len(piece.ids) for piece in pieces) == 5
    assert all(len(piece.ids) == len(piece.logprobs) for piece in pieces)
    assert all(value <= 0.0 for piece in pieces for value in piece.logprobs)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


async def test_a_stop_id_ends_the_sequence_and_is_kept(engine: Engine) -> None:
    ids, _ = cases.answer(await _read(engine, cases.request("a", [1, 2, 3], max_new_tokens=8)))
    cut = ids.index(ids[3])
    pieces = await _read(engine, cases.request("b", [1, 2, 3], max_new_tokens=8, stop_ids=(ids[3],)))
    assert cases.answer(pieces)[0] == ids[: cut + 1]
    assert pieces[-1].finish_reason == "stop"


async def test_a_full_context_ends_with_length(engine: Engine) -> None:
    pieces = await _read(engine, cases.request("a", [7] * (CONTEXT - 4), max_new_tokens=500))
    assert len(cases.answer(pieces)[0]) == 4
    assert pieces[-1].finish_reason == "length"


async def test_a_prompt_that_fills_the_context_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptTooLong, match="96"):
        await _read(engine, cases.request("a", [7] * CONTEXT))
    with pytest.raises(RequestError, match="at least one"):
        await _read(engine, cases.request("b", []))


async def test_more_requests_than_rows_are_all_answered_as_if_alone(engine: Engine) -> None:
    prompts = {str(n): [n + 1, n + 2, n + 3] for n in range(8)}
    alone = {name: cases.answer(await _read(engine, cases.request(name, ids)))[0] for name, ids in prompts.items()}
    crowd = await asyncio.gather(*(_read(engine, cases.request(name, ids)) for name, ids in prompts.items()))
    assert [cases.answer(pieces)[0] for pieces in crowd] == list(alone.values())


async def test_abort_gives_a_last_piece_and_unknown_ids_are_ignored(engine: Engine) -> None:
    await engine.abort("nobody")
    pieces = []
    async for piece in engine.generate(cases.request("a", [1, 2], max_new_tokens=90)):
        pieces.append(piece)
        if len(pieces) == 3:
            await engine.abort("a")
    assert pieces[-1].finish_reason == "aborted"
    assert len(pieces) < 90
    assert (await engine.load()).running == 0


async def test_closing_the_iterator_frees_the_row(engine: Engine) -> None:
    stream = engine.generate(cases.request("a", [1, 2], max_new_tokens=90))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await engine.load()).running == 0
    assert len(await _read(engine, cases.request("a", [1, 2]))) == 6


async def test_a_sequence_keeps_its_version_while_a_newer_one_is_published(engine: Engine) -> None:
    first = []
    async for piece in engine.generate(cases.request("old", [1, 2], max_new_tokens=20)):
        first.append(piece)
        if len(first) == 2:
            await engine.publish(_version(1))
            assert {p.version for p in await _read(engine, cases.request("new", [1, 2]))} == {1}
    assert {piece.version for piece in first} == {0}
    assert {p.version for p in await _read(engine, cases.request("asked", [1, 2], version=0))} == {0}


async def test_an_unknown_policy_or_version_is_an_error_that_names_what_there_is(engine: Engine) -> None:
    with pytest.raises(EngineError, match="default"):
        await _read(engine, cases.request("a", [1], policy="nobody"))
    with pytest.raises(EngineError, match="7"):
        await _read(engine, cases.request("b", [1], version=7))


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on(engine: Engine) -> None:
    stream = engine.generate(cases.request("a", [1, 2], max_new_tokens=6))
    got = [await anext(stream)]
    with pytest.raises(LightningError, match="running"):
        await _read(engine, cases.request("a", [3]))
    got += [piece async for piece in stream]
    assert len(cases.answer(got)[0]) == 6


async def test_alternatives_are_reported_when_asked_for(engine: Engine) -> None:
    pieces = await _read(engine, cases.request("a", [1, 2], max_new_tokens=2, top_logprobs=1))
    ids, logprobs = cases.answer(pieces)
    best = [alternatives[0] for piece in pieces for alternatives in piece.top]
    assert [token for token, _ in best] == ids
    assert [nats for _, nats in best] == pytest.approx(logprobs, abs=1e-5)


async def test_the_load_counts_tokens_and_capacity(engine: Engine) -> None:
    await _read(engine, cases.request("a", [1, 2], max_new_tokens=4))
    load = await engine.load()
    assert (load.tokens, load.capacity, load.context_length, load.running, load.waiting) == (4, 3, CONTEXT, 0, 0)


async def test_a_closed_engine_refuses_and_ends_what_runs() -> None:
    for make in MAKERS.values():
        engine = make()
        await engine.publish(_version(0))
        stream = engine.generate(cases.request("a", [1, 2], max_new_tokens=90))
        await anext(stream)
        await engine.close()
        try:
            rest = [piece async for piece in stream]
        except EngineError:
            rest = []
        assert not rest or rest[-1].finish_reason == "aborted"
        with pytest.raises(EngineError, match="closed"):
            await _read(engine, cases.request("b", [1]))


async def test_a_list_of_answers_is_given_in_order_and_its_end_is_an_error() -> None:
    engine = ScriptedEngine([[5, 6], [7]], policies=["default"])
    assert cases.answer(await _read(engine, cases.request("a", [1]))) == ([5, 6], [-0.5, -0.5])
    assert cases.answer(await _read(engine, cases.request("b", [1])))[0] == [7]
    with pytest.raises(EngineError, match="2 answers"):
        await _read(engine, cases.request("c", [1]))


async def test_a_failing_step_ends_its_requests_and_the_engine_lives_on() -> None:
    model = cases.tiny_llama()
    engine = TorchEngine(TorchCore(model, max_sequences=2, context_length=CONTEXT))
    await engine.publish(_version(0))
    healthy = model.model.norm.weight.clone()
    await engine.between_steps(lambda: model.model.norm.weight.fill_(float("nan")))
    with pytest.raises(EngineError, match="not finite"):
        await _read(engine, cases.request("a", [1, 2]))
    await engine.between_steps(lambda: model.model.norm.weight.copy_(healthy))
    assert len(await _read(engine, cases.request("a", [1, 2]))) == 6
    await engine.close()


def test_a_wrong_sampling_value_is_refused_when_it_is_made() -> None:
    with pytest.raises(LightningError, match="temperature"):
        Sampling(temperature=-1.0)
    assert token_ids([1]).typecode == "i"
