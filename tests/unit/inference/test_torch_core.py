from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import inference_cases as cases
from agent_lightning.errors import EngineError, PromptTooLong, RequestError
from agent_lightning.inference.llama_forward import LlamaForward
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.models.adapter import Adapter

STEM = list(range(1, 31))


def core_of(model: Any, *, rows: int = 4, versions: tuple[int, ...] = (0,), **settings: Any) -> TorchCore:
    core = TorchCore(model, max_sequences=rows, **{"context_length": 128, **settings})
    for version in versions:
        core.publish(cases.adapter(model, version=version))
    return core


@pytest.fixture(scope="module")
def llama() -> Any:
    return cases.tiny_llama()


def cached(pieces: dict[str, list[Any]]) -> dict[str, int]:
    return {name: got[0].prompt_tokens_cached for name, got in pieces.items()}


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}},
        {
            "rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32, "rope_theta": 1e4,
            }
        },
    ],
)  # fmt: skip
def test_every_shape_of_llama_takes_the_fast_path_and_agrees_with_its_own_forward(config: dict[str, Any]) -> None:
    model = cases.tiny_llama(**config)
    for parameter in model.parameters():
        parameter.add_(0.05)  # biases and norms that start at 0 and 1 would hide a mistake
    core = core_of(model)
    assert core.forward.name == "llama", core.forward_reason
    core.submit(cases.request("a", STEM, max_new_tokens=20, temperature=0.7))
    core.submit(cases.request("b", [5], max_new_tokens=3))
    got = cases.drain(core)
    for name, prompt, temperature in (("a", STEM, 0.7), ("b", [5], 1.0)):
        ids, logprobs = cases.answer(got[name])
        assert logprobs == pytest.approx(cases.reference_logprobs(model, prompt, ids, temperature), abs=1e-4)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (cases.tiny_gpt2, "no fast path"),
        (lambda: cases.tiny_llama(hidden_act="gelu"), "gelu"),
        (
            lambda: cases.tiny_llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "dynamic",
        ),
    ],
)
def test_a_model_that_the_fast_path_cannot_take_gets_the_general_one_and_the_reason(model: Any, why: str) -> None:
    core = TorchCore(model(), max_sequences=2, context_length=64)
    assert core.forward.name == "general"
    assert why in core.forward_reason


def test_a_llama_that_computes_something_else_is_found_out_at_load() -> None:
    model = cases.tiny_llama()
    model.model.layers[1].self_attn.scaling *= 1.5
    core = TorchCore(model, max_sequences=2, context_length=64)
    assert core.forward.name == "general"
    assert "differs" in core.forward_reason


def test_the_fast_path_keeps_no_second_copy_of_the_weights_and_leaves_the_model_working() -> None:
    model = cases.tiny_llama()
    ids = torch.tensor([STEM])
    before = model(input_ids=ids).logits
    core = core_of(model)
    assert isinstance(core.forward, LlamaForward)
    attention = model.model.layers[0].self_attn
    fused = core.forward.blocks[0].qkv.weight
    parts = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
    assert {part.untyped_storage().data_ptr() for part in parts} == {fused.untyped_storage().data_ptr()}
    assert torch.equal(model(input_ids=ids).logits, before)


def test_bfloat16_agrees_with_the_models_own_forward_as_far_as_bfloat16_goes() -> None:
    model = cases.tiny_llama().to(torch.bfloat16)
    core = core_of(model, versions=(0, 1))
    assert core.forward.name == "llama", core.forward_reason
    core.submit(cases.request("a", STEM, version=0, max_new_tokens=12))
    ids, logprobs = cases.answer(cases.drain(core)["a"])
    expected = cases.reference_logprobs(model, STEM, ids, 1.0)
    assert np.mean(np.abs(np.array(logprobs) - expected)) < 0.1
    core.submit(cases.request("b", STEM, version=1, max_new_tokens=12))
    assert cases.answer(cases.drain(core)["b"])[0] != ids


def test_siblings_share_one_prefill_and_differ_by_their_noise(llama: Any) -> None:
    core = core_of(llama)
    for n in range(4):
        core.submit(cases.request(f"s{n}", STEM, temperature=1.0))
    got = cases.drain(core)
    assert cached(got) == {"s0": 0, "s1": 30, "s2": 30, "s3": 30}
    assert len({tuple(cases.answer(pieces)[0]) for pieces in got.values()}) > 1


def test_prompts_with_a_long_common_stem_compute_it_once(llama: Any) -> None:
    core = core_of(llama)
    for n in range(3):
        core.submit(cases.request(f"p{n}", [*STEM, 40 + n]))
    assert cached(cases.drain(core)) == {"p0": 0, "p1": 30, "p2": 30}


def test_the_next_turn_starts_from_the_cache_of_the_one_before(llama: Any) -> None:
    core = core_of(llama, rows=2, retained=2)
    core.submit(cases.request("t1", STEM))
    first, _ = cases.answer(cases.drain(core)["t1"])
    for n in range(3):  # strangers in between push the resting sequence onto the shelf
        core.submit(cases.request(f"x{n}", [50 + n, 3, 4]))
    cases.drain(core)
    turn = [*STEM, *first, 9, 9]
    core.submit(cases.request("t2", turn))
    got = cases.drain(core)
    assert cached(got)["t2"] == 30 + len(first) - 1  # the last sampled token was never fed
    ids, logprobs = cases.answer(got["t2"])
    assert logprobs == pytest.approx(cases.reference_logprobs(llama, turn, ids, 1.0), abs=1e-4)


def test_the_least_recently_used_sequence_is_forgotten_first(llama: Any) -> None:
    core = core_of(llama, rows=1, retained=1)
    prompts = {name: [token] * 8 for name, token in (("a", 1), ("b", 2), ("c", 3))}
    for name, prompt in prompts.items():
        core.submit(cases.request(name, prompt, max_new_tokens=1))
        cases.drain(core)
    for name, held in (("b", 7), ("a", 0)):
        core.submit(cases.request(name + "2", prompts[name], max_new_tokens=1))
        assert cached(cases.drain(core)) == {name + "2": held}


def test_the_cache_is_never_reused_across_versions_or_policies(llama: Any) -> None:
    core = core_of(llama, versions=(0, 1))
    core.publish(cases.adapter(llama, version=1, policy="other"))
    for name, chosen in (("v0", {"version": 0}), ("v1", {"version": 1}), ("other", {"policy": "other"})):
        core.submit(cases.request(name, STEM, **chosen))
        assert cached(cases.drain(core)) == {name: 0}
    core.submit(cases.request("again", STEM, version=0))
    assert cached(cases.drain(core)) == {"again": 29}


def test_a_number_published_twice_serves_the_second_matrices_from_a_fresh_cache(llama: Any) -> None:
    core = core_of(llama, versions=(1,))
    core.submit(cases.request("a", STEM))
    cases.drain(core)
    second = cases.adapter(llama, version=1, seed=77)
    core.publish(second)
    core.submit(cases.request("b", STEM))
    got = cases.drain(core)
    ids, logprobs = cases.answer(got["b"])
    assert cached(got) == {"b": 0}
    assert logprobs == pytest.approx(cases.reference_logprobs(cases.merged(llama, second), STEM, ids, 1.0), abs=1e-4)


def test_an_adapter_on_some_layers_only_changes_those(llama: Any) -> None:
    whole = cases.adapter(llama, version=1)
    part = {path: pair for path, pair in whole.matrices.items() if path.endswith(("k_proj", "down_proj"))}
    published = Adapter(policy="default", version=1, rank=4, alpha=8.0, matrices=part)
    core = TorchCore(llama, max_sequences=2, context_length=64)
    core.publish(published)
    core.submit(cases.request("a", STEM))
    ids, logprobs = cases.answer(cases.drain(core)["a"])
    expected = cases.reference_logprobs(cases.merged(llama, published), STEM, ids, 1.0)
    assert logprobs == pytest.approx(expected, abs=1e-4)


def test_the_general_path_applies_adapters_beside_the_base_too() -> None:
    model = cases.tiny_sliding_mistral()
    published = cases.adapter(model, version=1)
    core = core_of(model, versions=(0, 1), context_length=64)
    for version in (0, 1):
        core.submit(cases.request(f"v{version}", STEM, version=version))
    got = cases.drain(core)
    for version, judge in ((0, model), (1, cases.merged(model, published))):
        ids, logprobs = cases.answer(got[f"v{version}"])
        assert logprobs == pytest.approx(cases.reference_logprobs(judge, STEM, ids, 1.0), abs=1e-4)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_adapter_that_does_not_fit_is_refused_and_the_old_one_stays(llama: Any) -> None:
    core = core_of(llama)
    wrong = np.ones((4, 5), np.float32)
    for path in ("model.layers.0.mlp.down_proj", "lm_head"):
        with pytest.raises(EngineError, match=path):
            core.publish(Adapter(policy="default", version=1, rank=4, alpha=8.0, matrices={path: (wrong, wrong)}))
    core.submit(cases.request("a", [1, 2]))
    assert {piece.version for piece in cases.drain(core)["a"]} == {0}


def test_full_weights_wait_until_what_runs_has_ended_and_then_replace() -> None:
    model, other = cases.tiny_llama(), cases.tiny_llama(seed=9)
    core = core_of(model)
    weights = {name: parameter.numpy() for name, parameter in other.named_parameters()}
    core.submit(cases.request("old", STEM, max_new_tokens=5))
    got: dict[str, list[Any]] = {}
    for name, piece in core.step():
        got.setdefault(name, []).append(piece)
    core.publish(Adapter(policy="default", version=1, rank=0, alpha=1.0, matrices={}, weights=weights))
    core.submit(cases.request("new", STEM, max_new_tokens=5))
    reference = cases.tiny_llama()
    cases.drain(core, got)
    for name, version, judge in (("old", 0, reference), ("new", 1, other)):
        ids, logprobs = cases.answer(got[name])
        assert {piece.version for piece in got[name]} == {version}
        assert logprobs == pytest.approx(cases.reference_logprobs(judge, STEM, ids, 1.0), abs=1e-4)
    assert cached(got) == {"old": 0, "new": 0}


def test_who_joins_shares_the_pass_of_those_who_run(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(llama)
    passes: list[list[int]] = []
    extend = core.forward.extend
    monkeypatch.setattr(
        core.forward, "extend", lambda rows: passes.append(sorted(len(row.tokens) for row in rows)) or extend(rows)
    )
    core.submit(cases.request("a", [1, 2, 3], max_new_tokens=9))
    core.submit(cases.request("b", [4, 5], max_new_tokens=9))
    got = {name: [piece] for name, piece in core.step()}
    for name, prompt in (("c", [9, 8, 7, 6]), ("d", [5] * 7)):
        core.submit(cases.request(name, prompt, max_new_tokens=3))
    for name, piece in core.step():
        got.setdefault(name, []).append(piece)
    assert passes == [[2, 3], [1, 1, 4, 7]]
    cases.drain(core, got)
    for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5]), ("c", [9, 8, 7, 6]), ("d", [5] * 7)):
        ids, logprobs = cases.answer(got[name])
        assert logprobs == pytest.approx(cases.reference_logprobs(llama, prompt, ids, 1.0), abs=1e-4)


def test_who_joins_does_not_build_on_a_token_that_is_computed_in_the_same_pass(llama: Any) -> None:
    """The prompt goes on exactly where a running sequence has drawn a token whose keys are not in the cache yet."""
    core = core_of(llama)
    core.submit(cases.request("a", STEM, max_new_tokens=9))
    got: dict[str, list[Any]] = {}
    for name, piece in core.step():
        got.setdefault(name, []).append(piece)
    prompt = [*STEM, *got["a"][0].ids, 3, 1]
    core.submit(cases.request("b", prompt, max_new_tokens=4))
    cases.drain(core, got)
    assert cached(got)["b"] == len(STEM)
    for name, begin in (("a", STEM), ("b", prompt)):
        ids, logprobs = cases.answer(got[name])
        assert logprobs == pytest.approx(cases.reference_logprobs(llama, begin, ids, 1.0), abs=1e-4)


def test_attempts_that_are_kept_apart_reuse_only_their_own_cache_and_repeat_bit_for_bit(llama: Any) -> None:
    def turns(core: TorchCore, name: str) -> list[tuple[int, list[float]]]:
        """Two calls of one attempt; cached tokens and log-probabilities of each."""
        found, prompt = [], STEM
        for turn in range(2):
            asked = cases.request(f"{name}/{turn}", prompt, max_new_tokens=5, temperature=0.8)
            core.submit(replace(asked, affinity=name, noise_key=f"same/{turn}"))
            pieces = cases.drain(core)[f"{name}/{turn}"]
            ids, logprobs = cases.answer(pieces)
            found.append((pieces[0].prompt_tokens_cached, logprobs))
            prompt = [*prompt, *ids, 7, 8]
        return found

    used = core_of(llama, share_prefixes=False)
    first = turns(used, "a")
    assert [count for count, _ in first] == [0, len(STEM) + 4]
    for name in "bcdefgh":
        assert turns(used, name) == first
    assert turns(core_of(llama, share_prefixes=False), "z") == first


def test_abort_frees_the_row_for_who_waits(llama: Any) -> None:
    core = core_of(llama, rows=1)
    core.submit(cases.request("a", [1, 2], max_new_tokens=100))
    core.submit(cases.request("b", [3, 4]))
    core.submit(cases.request("c", [5, 6]))
    core.step()
    core.abort("a")
    core.abort("c")
    got = cases.drain(core)
    assert [got[name][-1].finish_reason for name in "abc"] == ["aborted", "length", "aborted"]
    assert len(got["b"]) == 6 and not got["c"][0].ids


def test_a_long_prompt_is_computed_in_portions_with_the_same_result() -> None:
    model = cases.tiny_llama(max_position_embeddings=2048)
    prompt = [(7 * i + i // 13) % 64 for i in range(1200)]
    core = core_of(model, context_length=1300)
    core.submit(cases.request("a", prompt, max_new_tokens=3))
    ids, logprobs = cases.answer(cases.drain(core)["a"])
    assert logprobs == pytest.approx(cases.reference_logprobs(model, prompt, ids, 1.0), abs=1e-4)


def test_wrong_requests_are_refused_at_submit(llama: Any) -> None:
    core = core_of(llama)
    with pytest.raises(PromptTooLong, match="128"):
        core.submit(cases.request("a", [1] * 128))
    with pytest.raises(RequestError, match="63"):
        core.submit(cases.request("b", [64]))
    with pytest.raises(RequestError, match="logit_bias"):
        core.submit(cases.request("c", [1], logit_bias={99: 1.0}))
    with pytest.raises(EngineError, match="float64"):
        TorchCore(llama, dtype=torch.float64)
    assert core.idle


def test_load_measures_with_the_clock_it_was_given(llama: Any) -> None:
    ticks = iter(range(1000))
    core = core_of(llama, clock=lambda: float(next(ticks)))
    core.submit(cases.request("a", [1, 2], max_new_tokens=3))
    cases.drain(core)
    load = core.load()
    assert (load.tokens, load.busy_seconds) == (3, 3.0)
    assert load.tokens_per_second == pytest.approx(3 / 6)


def test_a_cache_of_the_library_can_still_be_cut() -> None:
    assert hasattr(DynamicCache(config=cases.tiny_llama().config).layers[0], "crop")
