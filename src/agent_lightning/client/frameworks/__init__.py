"""What is known about agent frameworks. None of them is imported here: only those that the agent has loaded count."""

from __future__ import annotations

import sys

from agent_lightning.client.frameworks.framework import Framework
from agent_lightning.client.frameworks.langgraph import LANGGRAPH
from agent_lightning.client.frameworks.plain import PLAIN

FRAMEWORKS: tuple[Framework, ...] = (LANGGRAPH, PLAIN)  # the first that recognises an agent has it


def current_component() -> tuple[str, ...]:
    """Names of the running parts, outermost first; empty when no loaded framework knows."""
    for framework in FRAMEWORKS:
        if framework.module in sys.modules:
            path = framework.current_component()
            if path:
                return path
    return ()


def current_parent(trace_id: str) -> str | None:
    """16 hex digits for the running sub-agent, None when the rollout itself is the parent."""
    for framework in FRAMEWORKS:
        if framework.module in sys.modules:
            parent = framework.current_parent(trace_id)
            if parent:
                return parent
    return None
