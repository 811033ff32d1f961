"""What the agent's own code may say: a reward, and which rollout it runs for."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_lightning.client.scope import Scope, current
from agent_lightning.errors import RewardError

_log = logging.getLogger("agent_lightning")
_warned = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRollout:
    """The rollout that the caller runs for."""

    id: str
    attempt_id: str
    mode: str  # train, val, test or live
    task: Mapping[str, Any]  # id, input, split; the rest is the judge's. Empty for a live rollout
    seconds_left: float | None  # until the attempt's deadline; None when it has none


def current_rollout() -> CurrentRollout | None:
    """The recorded rollout of the calling code, None outside of one."""
    scope = current()
    if scope is None or not scope.routed:
        return None
    return CurrentRollout(
        id=scope.rollout_id,
        attempt_id=scope.attempt_id,
        mode=scope.mode,
        task=scope.task,
        seconds_left=scope.seconds_left(),
    )


def emit_reward(value: float, name: str = "reward", *, step: str | None = None, component: str | None = None) -> bool:
    """Give the current rollout, one of its steps or one of its components a reward.

    step: a call id, or "last" for the newest call. It is sent in the background and, if the server has not acknowledged
    it by then, again with the end of the attempt. True when it was taken, False outside of a recorded rollout.
    Raises RewardError when the value is not a finite number, or when the target makes no sense.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RewardError(
            f"emit_reward({value!r}, name={name!r}): a finite number is wanted; for 'unknown' emit nothing"
        )
    if not isinstance(name, str) or not name:
        raise RewardError(f"emit_reward(name={name!r}): the name of the reward part is wanted, such as 'correctness'")
    if step is not None and component is not None:
        raise RewardError("emit_reward: give step or component, not both; a reward has one target")
    scope = current()
    if scope is None:
        _warn_once(name)
        return False
    if not scope.routed:
        return False
    _queue(scope, _reward(scope, float(value), name, step, component))
    return True


def _reward(scope: Scope, value: float, name: str, step: str | None, component: str | None) -> dict[str, Any]:
    target, target_id = "rollout", ""
    if step is not None:
        target, target_id = "step", _call_id(scope, step)
    elif component is not None:
        target, target_id = "component", component
    return {
        "id": f"rew-{uuid.uuid4().hex}",
        "name": name,
        "value": value,
        "target": target,
        "target_id": target_id,
        "source": "agent",
        "created_at": time.time(),
    }


def _call_id(scope: Scope, step: str) -> str:
    if step != "last":
        return step
    if scope.record.last_call_id is None:
        raise RewardError("emit_reward(step='last'): this rollout has made no LLM call of a trained component yet")
    return scope.record.last_call_id


def _queue(scope: Scope, reward: dict[str, Any]) -> None:
    from agent_lightning.client.outbox import OUTBOX, Message

    def send(link: Any) -> None:
        link.rewards(scope.rollout_id, [reward], key=scope.key)
        scope.record.acknowledge([reward["id"]])

    scope.record.add_reward(reward)
    OUTBOX.put_message(Message(kind="reward", endpoint=scope.config.endpoint, api_key=scope.config.api_key, send=send))


def _warn_once(name: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        _log.warning(
            "emit_reward(name=%r) was called outside of any rollout and has no effect here; call it while the injected "
            "agent runs (said once)",
            name,
        )
