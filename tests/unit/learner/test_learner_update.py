"""One optimizer step: what moves, what does not, what is reported."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

from agent_lightning.errors import LearnerError
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.update import TorchLearner
from agent_lightning.models.load import load_model
from agent_lightning.records import Batch
from learner_cases import batch, gradient, learner, passes_of, random_samples, sample, shaken, tiny_model


def weights(made: TorchLearner) -> torch.Tensor:
    return made._weights.flat.detach().clone()


def test_the_loss_gradient_is_that_of_the_formula_written_with_autograd():
    """One sample, full weights: -w A / (rollout_tokens R) times the gradient of log_softmax(logits / T)."""
    model = tiny_model()
    tokens, marks = [2, 5, 6, 7, 3, 9, 1], [0, 0, 0, 0, 0, 1, 1]
    one = sample(
        tokens, marks, 0.8, temperature=0.7, rollout_tokens=5, logprobs=array("f", [0, 0, 0, 0, 0, -9.0, -3.1])
    )
    ours = gradient(learner(model, lora_rank=0), [one], rollouts=3)

    reference = tiny_model().requires_grad_(True)
    logp = torch.log_softmax(reference(input_ids=torch.tensor([tokens])).logits[0].float() / 0.7, -1)
    chosen = torch.stack([logp[4, 9], logp[5, 1]])
    weight = torch.exp(chosen.detach() - torch.tensor([-9.0, -3.1])).clamp(max=2.0)
    assert weight[0] == 2.0 and weight[1] < 2.0
    (-(weight * chosen * 0.8) / 15).sum().backward()
    theirs = torch.cat([p.grad.flatten() for p in reference.parameters()]).double()
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_a_step_makes_good_tokens_likelier_and_bad_ones_rarer():
    good, bad = sample([2, 5, 3, 9], [0, 0, 0, 1], 1.0), sample([2, 5, 3, 8], [0, 0, 0, 1], -1.0)
    made = learner(lora_rank=0)
    before = made._model(input_ids=torch.tensor([[2, 5, 3]])).logits[0, -1].log_softmax(-1)
    report = made.update(batch([good, bad]), rate=1e-3, version=1)
    after = made._model(input_ids=torch.tensor([[2, 5, 3]])).logits[0, -1].log_softmax(-1)
    assert report.applied and report.version == made.version == 1
    assert after[9] > before[9] and after[8] < before[8]


@pytest.mark.parametrize("rank", [0, 4])
def test_the_base_that_the_engine_shares_is_never_written(rank):
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = learner(model, lora_rank=rank)
    made.update(batch(random_samples(0)), rate=1e-2, version=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_batch_is_skipped_and_leaves_everything_as_it_was(poison):
    made = learner()
    made.update(batch(random_samples(0)), rate=1e-2, version=1)
    before, moments = weights(made), made._weights.moments()
    bad = sample([2, 5, 3, 9], [0, 0, 0, 1], poison)
    report = made.update(batch([*random_samples(1), bad]), rate=1e-2, version=2)
    assert (report.applied, report.reason, report.version, made.version) == (False, "nan", 1, 1)
    assert report.figures["learner.skipped"] == 1.0
    assert torch.equal(weights(made), before)
    assert all(torch.equal(value, moments[name]) for name, value in made._weights.moments().items())
    assert made.update(batch(random_samples(1)), rate=1e-2, version=2).applied


class Poisoned:
    """A second rank whose gradient is not a number."""

    rank, count = 0, 2

    def add(self, flat: torch.Tensor) -> None:
        flat[0] = math.nan


def test_a_nan_on_another_rank_skips_the_step_here():
    made = learner(ranks=Poisoned())
    assert made.update(batch(random_samples(0)), rate=1e-2, version=1).reason == "nan"


def test_a_flat_batch_is_skipped_unless_an_entropy_or_kl_term_teaches():
    flat = batch([sample([2, 5, 3, 9], [0, 0, 0, 1], 0.0)])
    report = learner().update(flat, rate=1e-2, version=1)
    assert (report.applied, report.reason) == (False, "no samples")
    assert learner(entropy_coef=0.1).update(flat, rate=1e-2, version=1).applied
    assert learner(kl_coef=0.1).update(flat, rate=1e-2, version=1).applied


def test_an_empty_share_is_no_error():
    assert learner().update(Batch(policy="p", samples=(), rollouts=4), rate=1e-2, version=1).reason == "no samples"


def test_the_reference_is_the_base_with_the_adapter_off():
    made = shaken(learner(kl_coef=1.0))
    (work,) = passes_of(made, [sample([2, 5, 3, 9], [0, 0, 0, 1], 0.0)])
    base = tiny_model()(input_ids=torch.tensor([[2, 5, 3]])).logits[0, -1].log_softmax(-1)[9]
    assert made._reference_logp(work).item() == pytest.approx(base.item(), abs=1e-5)
    report = made.update(batch([sample([2, 5, 3, 9], [0, 0, 0, 1], 0.0)]), rate=1e-4, version=1)
    assert report.figures["learner.kl"] > 0


def test_the_figures_say_what_was_measured():
    model = tiny_model()
    logp = model(input_ids=torch.tensor([[2, 5, 3]])).logits[0, -1].log_softmax(-1)
    one = sample([2, 5, 3, 9], [0, 0, 0, 1], 1.0, logprobs=array("f", [0, 0, 0, logp[9].item() - 0.5]))
    figures = learner(model).update(batch([one]), rate=1e-4, version=1).figures
    assert figures["learner.sampler_gap"] == pytest.approx(0.5, abs=1e-4)
    assert figures["learner.sampler_gap_p99"] == pytest.approx(0.5, rel=0.1)
    assert figures["learner.importance"] == pytest.approx(math.exp(0.5), abs=1e-3)
    assert figures["learner.entropy"] == pytest.approx(float(-(logp.exp() * logp).sum()), abs=1e-4)
    assert figures["learner.kl"] == pytest.approx(math.exp(-0.5) - 1 + 0.5, abs=1e-4)
    assert (figures["learner.tokens"], figures["learner.computed_tokens"]) == (1.0, 3.0)
    assert figures["learner.clip_fraction"] == 0.0
    assert figures["learner.rate"] == 1e-4


def test_the_gradient_is_clipped_to_the_norm_that_was_set():
    made = learner(max_grad_norm=1e-3)
    report = made.update(batch(random_samples(0)), rate=1e-3, version=1)
    assert report.figures["learner.grad_norm"] > 1e-3
    assert made._weights.norm() == pytest.approx(1e-3, rel=1e-2)


def test_the_same_batch_gives_the_same_bits():
    runs = [learner(), learner()]
    for made in runs:
        for version in (1, 2, 3):
            made.update(batch(random_samples(version)), rate=1e-3, version=version)
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_the_adapter_is_a_copy_with_the_present_version():
    made = learner()
    first = made.adapter()
    assert first.version == 0 and all(not b.any() for _, b in first.matrices.values())
    kept = {path: b.copy() for path, (_, b) in first.matrices.items()}
    made.update(batch(random_samples(0)), rate=1e-2, version=1)
    assert made.adapter().version == 1
    assert all(np.array_equal(kept[path], b) for path, (_, b) in first.matrices.items())
    assert any(b.any() for _, b in made.adapter().matrices.values())


def test_full_weights_in_bfloat16_keep_float32_masters(tmp_path):
    from learner_cases import tiny_folder

    model = load_model(tiny_folder(), "bfloat16")
    made = TorchLearner(model, LearnerConfig(lora_rank=0, dtype="bfloat16"), policy="p")
    for version in (1, 2):
        assert made.update(batch(random_samples(0)), rate=1e-6, version=version).applied
    name = "model.layers.0.mlp.up_proj.weight"
    exported = made.adapter().weights
    assert exported is not None and exported[name].dtype == np.float32
    assert not np.array_equal(exported[name], model.state_dict()[name].float().numpy())
    assert torch.equal(made._model.state_dict()[name], torch.from_numpy(exported[name]).bfloat16())


def test_a_model_of_another_dtype_is_refused():
    with pytest.raises(LearnerError, match="load it with that dtype"):
        TorchLearner(tiny_model(), LearnerConfig(dtype="bfloat16"), policy="p")


def test_a_version_that_does_not_follow_is_refused():
    with pytest.raises(LearnerError, match="restore first"):
        learner().update(batch(random_samples(0)), rate=1e-3, version=2)


def test_a_sample_whose_arrays_disagree_names_its_rollout():
    broken = replace(sample([2, 5, 3, 9], [0, 0, 0, 1]), logprobs=array("f", [0.0]), rollout_id="r17")
    with pytest.raises(LearnerError, match="r17"):
        learner().update(batch([broken]), rate=1e-3, version=1)
