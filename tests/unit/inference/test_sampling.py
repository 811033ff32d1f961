from __future__ import annotations

import math
import subprocess
import sys
from array import array
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import inference_cases as cases
from agent_lightning.errors import EngineError
from agent_lightning.inference.engine import Sampling
from agent_lightning.inference.sampling import Draw, draw, uniform
from agent_lightning.inference.torch_core import TorchCore


def one(logits: list[float], sampled: tuple[int, ...] = (), key: str = "k", **settings: Any) -> Any:
    row = Draw(sampling=Sampling(**settings), noise_key=key, sampled=array("i", sampled))
    return draw(torch.tensor([logits]), [row])[0]


def shares(logits: list[float], count: int = 4000, **settings: Any) -> list[float]:
    rows = [Draw(sampling=Sampling(**settings), noise_key=str(i), sampled=array("i")) for i in range(count)]
    drawn = draw(torch.tensor([logits]).repeat(count, 1), rows)
    return [sum(d.token == t for d in drawn) / count for t in range(len(logits))]


def test_noise_is_a_fixed_function_of_key_and_index() -> None:
    assert uniform("7/task/3/0/0", 5) == uniform("7/task/3/0/0", 5)
    values = [uniform("k", i) for i in range(2000)]
    assert all(0.0 <= value < 1.0 for value in values) and len(set(values)) == 2000
    assert sum(values) / 2000 == pytest.approx(0.5, abs=0.03)
    assert uniform("1/23", 4) != uniform("1/2", 34)


def test_a_draw_depends_on_nothing_else_in_the_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 1000)
    rows = [Draw(sampling=Sampling(), noise_key=str(i), sampled=array("i")) for i in range(6)]
    together = draw(logits.clone(), rows)
    assert [draw(logits[i : i + 1].clone(), [rows[i]])[0].token for i in range(6)] == [d.token for d in together]


def test_batch_mates_do_not_change_what_a_call_samples() -> None:
    model = cases.tiny_llama()
    answers = []
    for mates in (0, 5):
        core = TorchCore(model, max_sequences=8, context_length=64)
        core.publish(cases.adapter(model, version=0))
        for n in range(mates):
            core.submit(cases.request(f"mate{n}", [n + 1, 5], temperature=1.0))
        core.submit(cases.request("me", [1, 2, 3], temperature=1.0, max_new_tokens=12))
        answers.append(cases.answer(cases.drain(core)["me"])[0])
    assert answers[0] == answers[1]


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(0, 5), min_size=2, max_size=700).filter(lambda w: sum(w) > 0),
    key=st.text(max_size=5),
)
def test_inverse_transform_finds_the_token_whose_share_of_the_mass_holds_the_noise(
    weights: list[int], key: str
) -> None:
    logits = [math.log(w) if w else -math.inf for w in weights]
    token = one(logits, key=key).token
    target = uniform(key, 0) * sum(weights)
    assert weights[token] > 0
    assert sum(weights[:token]) <= target * (1 + 1e-5) + 1e-5
    assert target * (1 - 1e-5) - 1e-5 <= sum(weights[: token + 1])


def test_shares_follow_the_temperature() -> None:
    logits = [0.0, 1.0, 2.0]
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(torch.tensor(logits) / temperature, 0).tolist()
        assert shares(logits, temperature=temperature) == pytest.approx(expected, abs=0.03)


def test_logprobs_are_those_of_the_temperature_before_any_filter() -> None:
    logits = [0.0, 1.0, 2.0, 3.0]
    for settings_ in ({"temperature": 0.5}, {"top_k": 1}, {"top_p": 0.1}, {"logit_bias": {0: 50.0}}):
        drawn = one(logits, **settings_)
        scaled = torch.log_softmax(torch.tensor(logits) / settings_.get("temperature", 1.0), 0)
        assert drawn.logprob == pytest.approx(float(scaled[drawn.token]), abs=1e-6)
    greedy = one(logits, temperature=0.0)
    assert (greedy.token, greedy.logprob) == (3, pytest.approx(float(torch.log_softmax(torch.tensor(logits), 0)[3])))


def test_top_k_and_top_p_keep_what_they_say() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert shares(logits, top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(logits, top_p=0.7) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert shares(logits, top_p=0.0) == [1.0, 0, 0, 0]


def test_penalties_and_bias_move_the_choice() -> None:
    logits = [2.0, 1.5, 0.0]
    assert one(logits, temperature=0.0).token == 0
    assert one(logits, (0,), temperature=0.0, presence_penalty=1.0).token == 1
    assert one(logits, (0,), temperature=0.0, frequency_penalty=0.3).token == 0
    assert one(logits, (0, 0), temperature=0.0, frequency_penalty=0.3).token == 1
    assert one(logits, temperature=0.0, logit_bias={2: 5.0}).token == 2
    # A penalty is in units of logits, whatever the temperature.
    assert shares(logits, temperature=0.5, logit_bias={0: -0.5, 2: -90.0})[0] == pytest.approx(0.5, abs=0.03)


def test_a_grammar_leaves_the_legal_tokens_their_shares_of_each_other():
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    legal = torch.tensor([False, True, False, True])
    rows = [Draw(sampling=Sampling(), noise_key=str(i), sampled=array("i"), legal=legal) for i in range(4000)]
    drawn = draw(torch.tensor([logits]).repeat(4000, 1), rows)
    assert sum(d.token == 1 for d in drawn) / 4000 == pytest.approx(6 / 7, abs=0.03)
    assert {d.token for d in drawn} == {1, 3}
    assert all(d.legal_mass == pytest.approx(0.35) for d in drawn)
    for d in drawn[:50]:  # as the learner computes it, which knows no grammar
        assert d.logprob == pytest.approx(logits[d.token], abs=1e-6)


def test_a_grammar_is_never_left_whatever_else_shapes_the_draw():
    legal = torch.tensor([False, True, True, False])
    logits = [300.0, -300.0, -302.0, 0.0]  # what is legal has no weight beside the rest
    for settings_ in (
        {},
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_p": 0.01},
        {"logit_bias": {0: 100.0}},
        {"temperature": 9.0},
    ):
        row = Draw(sampling=Sampling(**settings_), noise_key="k", sampled=array("i"), legal=legal)
        assert draw(torch.tensor([logits]), [row])[0].token in (1, 2)
    only = Draw(sampling=Sampling(), noise_key="k", sampled=array("i"), legal=torch.tensor([False, True, False, False]))
    free = Draw(sampling=Sampling(), noise_key="k", sampled=array("i"))
    forced, unbound = draw(torch.zeros(2, 4), [only, free])
    assert (forced.token, forced.legal_mass, unbound.legal_mass) == (1, 0.0, 1.0)


def test_alternatives_come_best_first_with_their_nats() -> None:
    top = one([0.0, 3.0, 1.0], temperature=0.0, top_logprobs=2).top
    expected = torch.log_softmax(torch.tensor([0.0, 3.0, 1.0]), 0)
    assert [token for token, _ in top] == [1, 2]
    assert [nats for _, nats in top] == pytest.approx([float(expected[1]), float(expected[2])], abs=1e-6)


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(EngineError, match="not finite"):
        one([0.0, math.nan])


def test_contract_and_script_import_no_torch() -> None:
    code = "import sys, agent_lightning.inference.engine, agent_lightning.inference.scripted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
