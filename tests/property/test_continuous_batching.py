"""Whatever joins and leaves, each sequence gets what it would have got alone, under its own version's weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inference_cases as cases
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.adapter import Adapter

LLAMA = cases.tiny_llama()
GPT2 = cases.tiny_gpt2()
SLIDING = cases.tiny_sliding_mistral()
ADAPTERS = {version: cases.adapter(LLAMA, version=version) for version in (0, 1, 2)}

# Few first tokens and a shared stem make shared prefixes, twins and later turns likely.
PROMPTS = st.one_of(
    st.lists(st.integers(0, 63), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda tail: [*range(20), *tail]),
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 6),  # steps before it comes
        PROMPTS,
        st.sampled_from([0, 1, 2]),  # version
        st.integers(1, 6),  # new tokens
        st.one_of(st.none(), st.integers(1, 4)),  # aborted after so many tokens
    ),
    min_size=1,
    max_size=10,
)


@cache
def reference(version: int) -> Any:
    return cases.merged(LLAMA, ADAPTERS[version])


def play(core: TorchCore, mix: list[Any]) -> dict[str, Any]:
    """Submit each request at its step, abort where it says so; gives the pieces by request."""
    got: dict[str, Any] = {}
    step = 0
    while step <= max(m[0] for m in mix) or not core.idle:
        for i, (start, prompt, version, new, _) in enumerate(mix):
            if start == step:
                core.submit(cases.request(str(i), prompt, version=version, max_new_tokens=new))
        for name, piece in core.step():
            got.setdefault(name, []).append(piece)
        for i, (*_, cut) in enumerate(mix):
            if cut is not None and len(got.get(str(i), ())) == cut:
                core.abort(str(i))
        step += 1
    return got


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mix=REQUESTS, rows=st.integers(1, 4), retained=st.integers(0, 3))
def test_fast_path_equals_the_merged_model_one_at_a_time(mix: list[Any], rows: int, retained: int) -> None:
    core = TorchCore(LLAMA, max_sequences=rows, context_length=64, retained=retained)
    assert core.forward.name == "llama"
    for published in ADAPTERS.values():
        core.publish(published)
    for i, pieces in play(core, mix).items():
        _, prompt, version, new, cut = mix[int(i)]
        ids, logprobs = cases.answer(pieces)
        assert pieces[-1].finish_reason == ("length" if cut is None or cut >= new else "aborted")
        assert {piece.version for piece in pieces if piece.ids} <= {version}
        expected = cases.reference_logprobs(reference(version), prompt, ids, 1.0)
        assert logprobs == pytest.approx(expected, abs=1e-4)
    assert core.load().running == 0


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mix=REQUESTS, rows=st.integers(1, 3))
@pytest.mark.parametrize("model", [GPT2, SLIDING], ids=["gpt2", "sliding"])
def test_general_path_equals_the_model_one_at_a_time(model: Any, mix: list[Any], rows: int) -> None:
    core = TorchCore(model, max_sequences=rows, context_length=64, retained=2)
    assert core.forward.name == "general"
    for version in (0, 1, 2):
        core.publish(Adapter(policy="default", version=version, rank=4, alpha=8.0, matrices={}))
    for i, pieces in play(core, mix).items():
        ids, logprobs = cases.answer(pieces)
        assert logprobs == pytest.approx(cases.reference_logprobs(model, mix[int(i)][1], ids, 1.0), abs=1e-4)
