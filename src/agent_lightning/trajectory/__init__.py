"""Calls and rewards -> branches, transitions, trajectories. trajectory.py is read first."""

from agent_lightning.trajectory.branches import Branch, branches, samples
from agent_lightning.trajectory.export import write_jsonl
from agent_lightning.trajectory.trajectory import build, component_matches, latest_parts, prompts, rollout_reward

__all__ = [
    "Branch",
    "branches",
    "build",
    "component_matches",
    "latest_parts",
    "prompts",
    "rollout_reward",
    "samples",
    "write_jsonl",
]
