"""`agent-lightning show ROLLOUT`: one rollout, step by step, with credit and with the reason for what is not trained."""

from __future__ import annotations

from rich.console import Console

from agent_lightning.cli.words import block, inert, number, pairs, plain, shown, table, tail
from agent_lightning.records import Reward
from agent_lightning.store.view import StoreView
from agent_lightning.trainer.config import TrainConfig
from agent_lightning.trainer.detail import RolloutDetail, StepDetail, detail, drop_reason
from agent_lightning.trainer.overview import REASONS
from agent_lightning.trainer.wording import Wording

PROMPT_TAIL = 600  # characters of a prompt's new part
LONGEST = 2_000  # characters of an answer or a result


def show_rollout(
    out: Console, view: StoreView, config: TrainConfig, rollout_id: str, wording: Wording, *, full: bool
) -> None:
    """Raises NotFound for an id that the store does not hold. `full` leaves nothing out of the texts."""
    found = detail(view, config, rollout_id, wording)
    limit = 10**9 if full else LONGEST
    block(out, pairs(_head(found), limit=limit))
    if len(found.attempts) > 1 or any(attempt.detail for attempt in found.attempts):
        _attempts(out, found)
    _rewards(out, found, config)
    if found.rollout.mode == "train":
        _siblings(out, found)
    for place, step in enumerate(found.steps, start=1):
        _step(out, place, len(found.steps), step, full=full)
    if not found.steps:
        out.print(plain("the newest attempt made no call"))


def _head(found: RolloutDetail) -> list[tuple[str, object]]:
    rollout, task = found.rollout, found.rollout.task
    outcome = str(rollout.outcome or rollout.status)
    why = REASONS.get(outcome, "")
    rows: list[tuple[str, object]] = [
        ("rollout", rollout.id),
        ("mode", f"{rollout.mode}, queued by step {rollout.step}, sibling {rollout.sibling}"),
        ("task", f"{task.id} ({task.split})"),
        ("input", task.input),
    ]
    if task.meta:
        rows.append(("meta", dict(task.meta)))
    rows.append(("outcome", f"{outcome}: {why}" if why and outcome != "ok" else outcome))
    if rollout.detail:
        rows.append(("detail", rollout.detail))
    if rollout.result is not None:
        rows.append(("result", rollout.result))
    rows.append(("attempts", f"{rollout.attempts} (max_attempts {rollout.max_attempts})"))
    reason = drop_reason(found)
    if reason is not None:
        rows.append(("dropped", plain(f"{reason}: {REASONS.get(reason, reason)}", "bold")))
    elif rollout.mode != "train":
        rows.append(("trained", f"no: a rollout of mode {rollout.mode} is not trained"))
    if found.trajectory.cut:
        rows.append(("cut", f"the {found.trajectory.cut} oldest steps: see max_trajectory_length"))
    return rows


def _attempts(out: Console, found: RolloutDetail) -> None:
    attempts = table("attempts", "number", "worker", "outcome", "seconds", "detail", right=("number", "seconds"))
    for attempt in found.attempts:
        seconds = None if attempt.ended_at is None else attempt.ended_at - attempt.started_at
        attempts.add_row(
            str(attempt.number),
            plain(inert(attempt.worker)),
            str(attempt.outcome or attempt.status),
            number(seconds, "{:.1f}"),
            plain(shown(attempt.detail or "")),
        )
    block(out, attempts)


def _rewards(out: Console, found: RolloutDetail, config: TrainConfig) -> None:
    parts = found.trajectory.parts
    if not parts:
        block(out, plain("no reward was recorded"))
        return
    total = "unknown" if found.credited.reward is None else f"{found.credited.reward:g}"
    rewards = table(f"reward R = {total}", "part", "value", "weight", "of", "given by", right=("value", "weight"))
    for part in parts:
        weight = config.loop.reward_weights.get(part.name, 1.0)
        rewards.add_row(plain(inert(part.name)), f"{part.value:g}", f"{weight:g}", plain(_target(part)), part.source)
    block(out, rewards)


def _target(part: Reward) -> str:
    return "the rollout" if part.target == "rollout" else inert(f"{part.target} {part.target_id}")


def _siblings(out: Console, found: RolloutDetail) -> None:
    credited = found.credited
    rewards = "  ".join(
        f"[{number(reward, '{:g}')}]" if rollout_id == found.rollout.id else number(reward, "{:g}")
        for rollout_id, reward in found.siblings.items()
    )
    rows: list[tuple[str, object]] = [
        ("siblings' rewards", rewards),
        ("baseline (mean)", number(credited.baseline)),
        ("advantage A", number(credited.advantage, "{:+.4f}")),
    ]
    if found.open_siblings:
        rows.append(("not final", f"{found.open_siblings} siblings have not finished"))
    block(out, pairs(rows))


def _step(out: Console, place: int, count: int, step: StepDetail, *, full: bool) -> None:
    call = step.call
    name = inert(call.component) or "unnamed component"
    out.rule(plain(f"step {place} of {count}: {name}", "bold"), align="left", characters="-")
    rows: list[tuple[str, object]] = [
        (
            "call",
            f"{call.id}, index {call.index}" + (f", continues {call.parent_call_id}" if call.parent_call_id else ""),
        ),
        ("tokens", _tokens(step)),
        ("versions", _versions(step)),
    ]
    if step.credited is not None:
        got = step.credited
        rows.append(
            (
                "credit",
                f"weight s {got.weight:.3f}  multiplier m {got.multiplier:.3f}  credit c {number(got.credit)}  "
                f"advantage {number(got.advantage, '{:+.4f}')}"
                + (f"  own reward {got.reward:g}" if got.reward else ""),
            )
        )
    if step.why is not None:
        rows.append(("not trained", plain(inert(step.why), "bold")))
    out.print(pairs(rows, limit=10**9))
    out.print(plain("prompt, new part" if call.parent_call_id else "prompt", "dim"))
    out.print(plain(inert(step.asked) if full else tail(step.asked, PROMPT_TAIL)))
    out.print(plain("written", "dim"))
    block(out, plain(shown(step.written, limit=10**9 if full else LONGEST), "green"))


def _tokens(step: StepDetail) -> str:
    call = step.call
    total = "" if step.prompt_tokens is None else f" of a prompt of {step.prompt_tokens:,}"
    finish = f", finish reason {call.finish_reason}" if call.finish_reason else f", {call.status}"
    return f"{len(call.suffix_ids):,} new{total}, {len(call.sampled_ids):,} written{finish}"


def _versions(step: StepDetail) -> str:
    call = step.call
    span = str(call.version_from) if call.version_from == call.version_to else f"{call.version_from}-{call.version_to}"
    temperature = call.used_sampling.get("temperature")
    took = "" if call.finished_at is None else f", took {call.finished_at - call.admitted_at:.2f} s"
    return f"policy {call.policy} {span}, temperature {temperature}{took}"
