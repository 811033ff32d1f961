"""Trajectories as JSON lines: one rollout a line, exact token ids included."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_lightning.records import Trajectory


def as_json(trajectory: Trajectory) -> dict[str, Any]:
    rollout = trajectory.rollout
    return {
        "rollout_id": rollout.id,
        "task": {"id": rollout.task.id, "input": rollout.task.input, "split": rollout.task.split},
        "mode": rollout.mode,
        "policy": trajectory.policy,
        "reward": trajectory.reward,
        "parts": [asdict(part) for part in trajectory.parts],
        "cut": trajectory.cut,
        "transitions": [
            {
                "call_id": step.call_id,
                "component": step.component,
                "index": step.index,
                "state": step.state.tolist(),
                "action": step.action.tolist(),
                "logprobs": [round(value, 6) for value in step.logprobs],
                "legal_mass": [round(value, 6) for value in step.legal_mass] or None,
                "reward": step.reward,
                "next_state": step.next_state.tolist() if step.next_state is not None else None,
                "versions": [step.version_from, step.version_to],
                "temperature": step.temperature,
            }
            for step in trajectory.steps
        ],
    }


def write_jsonl(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write one line a trajectory; gives how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(as_json(trajectory), ensure_ascii=False, default=str) + "\n")
            count += 1
    return count
