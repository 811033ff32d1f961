"""Calls and rewards -> trajectories. Pure: no clock, no store, no torch.

A call's prompt is stored as its parent's prompt + its parent's sampled ids + a suffix. Following the parents spells
the exact ids that the model saw; nothing is ever tokenised again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from agent_lightning.records import Call, CallStatus, Reward, Rollout, Trajectory, Transition


def latest_parts(rewards: Iterable[Reward]) -> tuple[Reward, ...]:
    """The newest value of each part (name, target, target_id), given oldest first; stale ones are left out."""
    newest: dict[tuple[str, str, str], Reward] = {}
    for reward in rewards:
        if not reward.stale:
            newest[reward.name, reward.target, reward.target_id] = reward
    return tuple(newest.values())


def rollout_reward(parts: Iterable[Reward], weights: Mapping[str, float]) -> float | None:
    """R = sum of weight x value over rollout-target parts (weight 1 where none is given); None without any."""
    values = [weights.get(part.name, 1.0) * part.value for part in parts if part.target == "rollout"]
    return sum(values) if values else None


def prompts(calls: Sequence[Call]) -> dict[str, array[int]]:
    """The full prompt ids of each call by its id. Parents are among `calls`, in any order."""
    by_id = {call.id: call for call in calls}
    known: dict[str, array[int]] = {}
    for call in calls:
        chain = [call]
        while (parent := chain[-1].parent_call_id) is not None and parent not in known:
            chain.append(by_id[parent])
        for link in reversed(chain):
            head = array("i")
            if link.parent_call_id is not None:
                head = known[link.parent_call_id] + by_id[link.parent_call_id].sampled_ids
                assert len(head) == link.prompt_offset, f"call {link.id} does not continue {link.parent_call_id}"
            known[link.id] = head + link.suffix_ids
    return known


def component_matches(component: str, wanted: Sequence[str]) -> bool:
    """Whether any element of the path, or the whole path, matches any of the names or globs; no names: all."""
    elements = [*component.split("/"), component]
    return not wanted or any(fnmatchcase(element, pattern) for element in elements for pattern in wanted)


def trained_calls(calls: Iterable[Call], policy: str, wanted: Sequence[str] = ()) -> list[Call]:
    """The completed, trainable calls of one policy that sampled something, by (index, order)."""
    chosen = [
        call
        for call in calls
        if call.status is CallStatus.COMPLETED
        and call.trainable
        and call.policy == policy
        and len(call.sampled_ids) > 0
        and component_matches(call.component, wanted)
    ]
    return sorted(chosen, key=lambda call: (call.index, call.order))


def build(
    rollout: Rollout,
    calls: Sequence[Call],
    rewards: Iterable[Reward],
    *,
    policy: str,
    weights: Mapping[str, float] | None = None,
    wanted: Sequence[str] = (),
    max_length: int | None = None,
) -> Trajectory:
    """The trajectory of one policy in one rollout; the newest `max_length` steps are kept, `cut` counts the rest."""
    complete = [call for call in calls if call.status is CallStatus.COMPLETED]
    prompt_of = prompts(complete)
    chosen = trained_calls(complete, policy, wanted)
    cut = max(0, len(chosen) - max_length) if max_length is not None else 0
    kept = chosen[cut:]
    parts = latest_parts(rewards)
    step_reward = _own_rewards(parts, kept, weights or {})
    steps = []
    for position, call in enumerate(kept):
        follower = kept[position + 1] if position + 1 < len(kept) else None
        steps.append(
            Transition(
                call_id=call.id,
                component=call.component,
                order=call.order,
                index=call.index,
                parent_call_id=call.parent_call_id,
                state=prompt_of[call.id],
                action=call.sampled_ids,
                logprobs=call.logprobs,
                legal_mass=call.legal_mass,
                reward=step_reward(call),
                next_state=prompt_of[follower.id] if follower else None,
                version_from=call.version_from,
                version_to=call.version_to,
                temperature=float(call.used_sampling.get("temperature", 1.0)),
            )
        )
    return Trajectory(
        rollout=rollout,
        policy=policy,
        reward=rollout_reward(parts, weights or {}),
        parts=parts,
        steps=tuple(steps),
        cut=cut,
    )


def _own_rewards(
    parts: Sequence[Reward], calls: Sequence[Call], weights: Mapping[str, float]
) -> Callable[[Call], float]:
    """A step's own reward: its step parts, and at a component's last step the parts of that component."""
    last_of: dict[str, str] = {}
    for part in parts:
        if part.target == "component":
            for call in calls:
                if component_matches(call.component, [part.target_id]):
                    last_of[part.target_id] = call.id

    def own(call: Call) -> float:
        total = 0.0
        for part in parts:
            weighted = weights.get(part.name, 1.0) * part.value
            if (part.target == "step" and part.target_id == call.id) or (
                part.target == "component" and last_of.get(part.target_id) == call.id
            ):
                total += weighted
        return total

    return own
