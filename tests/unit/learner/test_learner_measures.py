"""What is measured before the weights move: old and reference log-probabilities, values, what pairs still teach."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

from agent_lightning.errors import CheckpointError, LearnerError
from agent_lightning.learner.algorithms import algorithm_of
from agent_lightning.learner.before import rounds
from agent_lightning.learner.entries import Entries, entries_of
from agent_lightning.learner.learner import LearnerConfig, settled
from agent_lightning.learner.update import TorchLearner
from agent_lightning.records import Pair, Sample
from learner_cases import apart, batch, gradient, learner, random_samples, sample, shaken, tiny_model

TWO_STEPS = [0, 0, 1, 1, 0, 1]  # of tokens; two steps of two and of one


def two_steps(**given) -> Sample:
    told = {"step_ends": array("i", [4, 6]), "step_rewards": array("f", [1.0, 2.0])}
    return sample([2, 5, 6, 7, 3, 9], TWO_STEPS, call_ids=("a", "b"), **{**told, **given})


def with_value(made: TorchLearner, value: float) -> TorchLearner:
    """A critic that says `value` of every state."""
    assert made._critic is not None
    made._critic.weights._views["bias"].fill_(value)
    return made


def measured(made: TorchLearner, *samples: Sample) -> Entries:
    return made._lesson(batch(samples), 1).entries


def test_each_call_is_an_episode_paid_at_its_last_token():
    """V = 0.5, lambda 0.5: step a has d = 0, 0.5 and A = 0.25, 0.5; step b has A = 1.5."""
    made = with_value(learner(algorithm="ppo", gae_lambda=0.5, whiten_advantages=False), 0.5)
    entries = measured(made, two_steps())
    assert entries.advantage_N.tolist() == pytest.approx([0.25, 0.5, 1.5])
    assert entries.return_N is not None
    assert entries.return_N.tolist() == pytest.approx([0.75, 1.0, 2.0])


def test_over_a_trajectory_values_look_across_calls_and_samples_in_the_order_of_steps():
    """d = 0, 1, 1.5: A_3 = 1.5, A_2 = 1 + 0.5 x 1.5, A_1 = 0 + 0.5 x 1.75, however the samples are listed."""
    made = learner(algorithm="ppo", gae_lambda=0.5, gae_over="trajectory", whiten_advantages=False)
    with_value(made, 0.5)
    one = measured(made, two_steps())
    assert one.advantage_N.tolist() == pytest.approx([0.875, 1.75, 1.5])
    later = replace(
        two_steps(), trained=array("b", [0, 0, 0, 0, 0, 1]), call_ids=("b",), step_ends=array("i", [6]),
        step_rewards=array("f", [2.0]), step_places=array("i", [1]),
    )  # fmt: skip
    earlier = replace(
        two_steps(), trained=array("b", [0, 0, 1, 1, 0, 0]), call_ids=("a",), step_ends=array("i", [4]),
        step_rewards=array("f", [1.0]), step_places=array("i", [0]),
    )  # fmt: skip
    assert measured(made, later, earlier).advantage_N.tolist() == pytest.approx([1.5, 0.875, 1.75])


@pytest.mark.parametrize("name", ["ppo", "reinforce++", "rloo"])
def test_a_kl_term_in_the_reward_is_paid_token_by_token(name):
    """A_t = worth - kl_coef x the divergence from this token to the end of its step."""
    given = {"whiten_advantages": False} if name != "rloo" else {"kl_in": "reward"}
    given |= {"gae_lambda": 1.0} if name == "ppo" else {}
    made = shaken(learner(algorithm=name, kl_coef=0.5, **given))
    one = two_steps(advantages=array("f", [0, 0, 1.0, 1.0, 0, 2.0]))
    entries = measured(made, one)
    ids = torch.tensor([one.tokens.tolist()])
    with torch.no_grad():
        own = made._model(input_ids=ids).logits[0].log_softmax(-1)
        base = tiny_model()(input_ids=ids).logits[0].log_softmax(-1)
    k = [float((own - base)[at - 1, one.tokens[at]]) for at in (2, 3, 5)]
    assert max(abs(x) for x in k) > 1e-3
    wanted = [1.0 - 0.5 * (k[0] + k[1]), 1.0 - 0.5 * k[1], 2.0 - 0.5 * k[2]]
    assert entries.advantage_N.tolist() == pytest.approx(wanted, abs=1e-5)


def test_the_batch_is_the_baseline_of_reinforce_plus_plus():
    entries = measured(learner(algorithm="reinforce++"), *random_samples(1))
    plain = measured(learner(algorithm="reinforce++", whiten_advantages=False), *random_samples(1)).advantage_N
    assert entries.advantage_N == pytest.approx((plain - plain.mean()) / plain.std(), abs=1e-5)
    flat = [sample([2, 5, 3, 9], [0, 0, 0, 1], 1.0), sample([2, 5, 3, 8], [0, 0, 0, 1], 0.0)]
    assert learner(algorithm="reinforce++").update(batch(flat), rate=1e-3, version=1).applied
    same = [sample([2, 5, 3, 9], [0, 0, 0, 1], 1.0)] * 3
    assert learner(algorithm="reinforce++").update(batch(same), rate=1e-3, version=1).reason == "no samples"


@pytest.mark.parametrize(
    ("scale", "wanted"), [("rollout", [1 / 8, 1 / 20]), ("token", [1 / 3] * 2), ("constant", [1 / 40] * 2)]
)
def test_what_a_tokens_loss_is_divided_by(scale, wanted):
    """Four rollouts; the first has 2 trained tokens, the second 5 of which one is here; the constant is 10."""
    first = sample([2, 5, 3, 9], [0, 0, 1, 1])
    second = sample([2, 5, 3, 8], [0, 0, 0, 1], rollout_tokens=5)
    given = {"loss_tokens": 10} if scale == "constant" else {}
    config = settled(LearnerConfig(loss_scale=scale, **given), algorithm_of("grpo"))
    entries = entries_of(batch([first, second], 4), config)
    assert entries.weight_N.tolist() == pytest.approx([wanted[0], wanted[0], wanted[1]])


def test_several_steps_share_the_log_probabilities_of_the_start():
    made = shaken(learner(minibatches=2, epochs=2))
    lesson = made._lesson(batch(random_samples(0)), 1)
    start = lesson.entries.old_N
    assert start is not None
    report = made.update(batch(random_samples(0)), rate=5e-2, version=1)
    assert report.version == 1 and report.figures["learner.clip_fraction"] > 0
    assert not np.allclose(made._measure(lesson.entries, range(12))[0], start, atol=1e-3)
    assert learner()._lesson(batch(random_samples(0)), 1).entries.old_N is None  # one step: the pass itself tells


def test_rounds_show_every_group_once_an_epoch_in_parts_of_like_size():
    config = LearnerConfig(minibatches=3, epochs=2)
    groups = [str(number) for number in range(8)]
    parts = list(rounds(groups, config, 5))
    assert [len(part) for part in parts] == [3, 3, 2] * 2
    assert sorted(name for part in parts[:3] for name in part) == sorted(name for part in parts[3:] for name in part)
    assert parts == list(rounds(groups, config, 5)) and parts != list(rounds(groups, config, 6))


def test_one_poisoned_minibatch_skips_its_step_alone():
    made = learner(minibatches=3)
    samples = random_samples(0)
    samples[0].advantages[list(samples[0].trained).index(1)] = float("nan")
    report = made.update(batch(samples), rate=1e-3, version=1)
    assert report.applied and report.figures["learner.skipped"] == 1.0
    assert float(made._weights.moments()["step"]) == 2


def test_the_gradient_of_dpo_is_that_of_the_papers_formula_written_with_autograd():
    """Two siblings, one of them in two samples; full weights, beta 0.3."""
    chosen = [
        sample([2, 5, 6, 7], [0, 0, 1, 0], rollout_id="c"),
        sample([2, 5, 6, 7, 3], [0, 0, 0, 1, 1], rollout_id="c"),
    ]
    rejected = sample([2, 5, 8, 9], [0, 0, 1, 1], rollout_id="r")
    made = shaken(learner(algorithm="dpo", dpo_beta=0.3, lora_rank=0))
    model = tiny_model().requires_grad_(True)
    model.load_state_dict(made._model.state_dict())
    base = tiny_model()

    def ratio(ids: list[int], places: list[int]) -> torch.Tensor:
        own, ref = (m(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1) for m in (model, base))
        return sum(((own - ref.detach())[at - 1, ids[at]] for at in places), torch.zeros(()))

    margin = 0.3 * (ratio([2, 5, 6, 7, 3], [2, 3, 4]) - ratio([2, 5, 8, 9], [2, 3]))
    loss = -torch.nn.functional.logsigmoid(margin)
    loss.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    pairs = (Pair(chosen="c", rejected="r"),)
    assert apart(gradient(made, [*chosen, rejected], pairs=pairs), theirs) < 1e-5
    report = made.update(replace(batch([*chosen, rejected]), pairs=pairs), rate=1e-4, version=1)
    assert report.figures["learner.loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert report.figures["learner.pair_margin"] == pytest.approx(margin.item(), abs=1e-4)
    assert report.figures["learner.pair_accuracy"] == float(margin.item() > 0)


def test_a_pair_of_steps_moves_nothing_but_these_steps():
    good, bad = two_steps(rollout_id="c"), replace(two_steps(rollout_id="r"), tokens=array("i", [2, 5, 8, 9, 3, 9]))
    made = learner(algorithm="dpo")
    pairs = (Pair(chosen="c", rejected="r", chosen_call="a", rejected_call="a"),)
    lesson = made._lesson(replace(batch([good, bad]), pairs=pairs), 1)
    made._sum(lesson, frozenset("g"))
    assert np.sign(lesson.entries.advantage_N).tolist() == [1, 1, 0, -1, -1, 0]


def test_a_pair_that_lost_a_side_is_an_error():
    with pytest.raises(LearnerError, match="groups must stay together"):
        made = learner(algorithm="dpo")
        made.update(replace(batch([two_steps()]), pairs=(Pair(chosen="r", rejected="x"),)), rate=1e-3, version=1)


def test_the_critic_warms_up_before_the_policy_moves():
    made = learner(algorithm="ppo", critic_warmup=2, value_learning_rate=1e-2)
    start = made._weights.flat.detach().clone()
    reports = [made.update(batch([two_steps()]), rate=1e-3, version=version) for version in (1, 2)]
    assert torch.equal(made._weights.flat, start) and all(report.applied for report in reports)
    assert reports[1].figures["learner.value_loss"] < reports[0].figures["learner.value_loss"]
    assert reports[0].figures["learner.explained_variance"] == pytest.approx(0.0, abs=1e-5)  # V is 0 everywhere
    made.update(batch([two_steps()]), rate=1e-3, version=3)
    assert not torch.equal(made._weights.flat, start)


def test_explained_variance_is_one_for_a_critic_that_knows_and_is_absent_where_nothing_varies():
    same = two_steps(step_rewards=array("f", [0.5, 0.5]))
    figures = with_value(learner(algorithm="ppo"), 0.5).update(batch([same]), rate=1e-3, version=1).figures
    assert "learner.explained_variance" not in figures
    assert figures["learner.value_loss"] == pytest.approx(0.0)


def test_a_checkpoint_without_a_critic_is_refused_and_changes_nothing(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    shaken(learner()).save(folder)
    made = learner(algorithm="ppo")
    before = made._weights.flat.detach().clone()
    with pytest.raises(CheckpointError, match="no critic"):
        made.restore(folder)
    assert torch.equal(made._weights.flat, before)


@pytest.mark.parametrize("name", ["ppo", "dpo"])
def test_a_restored_learner_continues_bit_for_bit(tmp_path, name):
    folder, pairs = tmp_path / "one", (Pair(chosen="c", rejected="r"),) if name == "dpo" else ()
    other = replace(two_steps(rollout_id="r"), tokens=array("i", [2, 5, 8, 9, 3, 9]))
    whole = replace(batch([two_steps(rollout_id="c"), other]), pairs=pairs)
    undisturbed, resumed = learner(algorithm=name, epochs=2), shaken(learner(algorithm=name, epochs=2))
    undisturbed.update(whole, rate=1e-3, version=1)
    folder.mkdir()
    undisturbed.save(folder)
    assert resumed.restore(folder) == 1
    reports = [made.update(whole, rate=1e-3, version=2) for made in (undisturbed, resumed)]
    shown = [{k: v for k, v in report.figures.items() if k != "learner.seconds"} for report in reports]
    assert shown[0] == shown[1]
    assert torch.equal(undisturbed._weights.flat, resumed._weights.flat)
    if undisturbed._critic is not None and resumed._critic is not None:
        assert torch.equal(undisturbed._critic.weights.flat, resumed._critic.weights.flat)
