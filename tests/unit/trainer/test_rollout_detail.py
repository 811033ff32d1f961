"""One rollout, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_lightning.errors import NotFound
from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.detail import RolloutDetail, detail, drop_reason, why_untrained
from agent_lightning.trainer.folder import RunFolder
from agent_lightning.trainer.replay import decode
from agent_lightning.trainer.wording import Wording
from showing_cases import hand_made, trained_run


def seen(folder: RunFolder, rollout_id: str) -> RolloutDetail:
    config = TrainConfig.of(folder.settings())
    with StoreView(folder.store) as view:
        return detail(view, config, rollout_id, Wording.of("tiny"))


def test_credit_is_what_the_formulas_give_by_hand(tmp_path: Path) -> None:
    found = seen(hand_made(tmp_path), "made.step-000000.digit-8.0")
    advantage = 0.8 * 0.5 / (0.5**0.5 + 1e-4)  # rewards 1 and 0: mean 0.5, standard deviation with ddof 1
    assert found.siblings == {"made.step-000000.digit-8.0": 1.0, "made.step-000000.digit-8.1": 0.0}
    assert found.credited.advantage == pytest.approx(advantage)
    first, last = (step.credited for step in found.steps)
    assert first is not None and last is not None
    # Both steps have three tokens; the one before the last has weight 1 - 0.3.
    assert (first.weight, last.weight) == (0.7, 1.0)
    assert (first.multiplier, last.multiplier) == pytest.approx((0.7 * 6 / 5.1, 6 / 5.1))
    assert (first.credit, last.credit) == pytest.approx((0.7 / 1.7, 1 / 1.7))
    assert last.advantage == pytest.approx(advantage * 6 / 5.1)
    assert all(step.why is None for step in found.steps)


def test_only_the_new_part_of_a_prompt_is_shown_with_special_tokens(tmp_path: Path) -> None:
    found = seen(hand_made(tmp_path), "made.step-000000.digit-8.0")
    assert [step.asked for step in found.steps] == ["<user>8<end><assistant>", "<user>=9<end><assistant>"]
    assert [step.written for step in found.steps] == ["c8<end>", "a9<end>"]
    assert [step.prompt_tokens for step in found.steps] == [4, 4 + 3 + 5]


def test_a_dropped_rollout_says_why_at_every_step(tmp_path: Path) -> None:
    found = seen(hand_made(tmp_path), "made.step-000000.digit-9.0")
    assert drop_reason(found) == "agent_error"
    assert {step.why for step in found.steps} == {"the rollout was dropped: agent_error"}


def test_a_quarantined_call_is_shown_with_its_reason(tmp_path: Path) -> None:
    folder = hand_made(tmp_path)
    found = seen(folder, "made.step-000000.digit-8.0")
    call = replace(found.steps[0].call, trainable=False, error="the text that was sent differs")
    why = why_untrained(call, found.credited, TrainConfig.of(folder.settings()))
    assert why == "its tokens failed a check: the text that was sent differs"


def test_a_measuring_rollout_has_no_advantage(tmp_path: Path) -> None:
    found = seen(hand_made(tmp_path), "made.before-000000.t1")
    assert drop_reason(found) is None
    assert [step.why for step in found.steps] == ["the rollout measures: greedy, never trained"]
    assert found.steps[0].credited is not None and found.steps[0].credited.advantage is None


def test_an_unknown_rollout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no rollout 'nobody'"):
        seen(hand_made(tmp_path), "nobody")


async def test_recomputed_advantages_are_those_that_were_trained() -> None:
    folder = trained_run()
    store = await SqliteStore.open(folder.store)
    records = await store.batches("trained", "default", after_version=0)
    await store.close()
    samples = [sample for record in records for sample in decode(record.payload).samples]
    assert len(samples) == 24
    for sample in samples[::5]:
        found = seen(folder, sample.rollout_id)
        told = {step.call.id: step.credited.advantage for step in found.steps if step.credited is not None}
        trained = [value for value, one in zip(sample.advantages, sample.trained, strict=True) if one]
        expected = [told[step.call.id] for step in found.steps for _ in step.call.sampled_ids]
        assert trained == pytest.approx(expected, abs=1e-6)
