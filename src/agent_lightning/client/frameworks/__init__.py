"""What is known about agent frameworks. None of them is imported here: only those that the agent has loaded count."""

from __future__ import annotations

import sys

from agent_lightning.client.frameworks.agent_framework import AGENT_FRAMEWORK
from agent_lightning.client.frameworks.autogen import AUTOGEN
from agent_lightning.client.frameworks.crewai import CREWAI
from agent_lightning.client.frameworks.dspy import DSPY
from agent_lightning.client.frameworks.framework import Framework
from agent_lightning.client.frameworks.google_adk import GOOGLE_ADK
from agent_lightning.client.frameworks.langgraph import LANGGRAPH
from agent_lightning.client.frameworks.llama_index import LLAMA_INDEX
from agent_lightning.client.frameworks.openai_agents import OPENAI_AGENTS
from agent_lightning.client.frameworks.plain import PLAIN
from agent_lightning.client.frameworks.pydantic_ai import PYDANTIC_AI
from agent_lightning.client.frameworks.smolagents import SMOLAGENTS

# The first that recognises an agent has it.
FRAMEWORKS: tuple[Framework, ...] = (
    LANGGRAPH,
    OPENAI_AGENTS,
    PYDANTIC_AI,
    AUTOGEN,
    SMOLAGENTS,
    AGENT_FRAMEWORK,
    LLAMA_INDEX,
    CREWAI,
    DSPY,
    GOOGLE_ADK,
    PLAIN,
)
_SAYING: tuple[Framework, ...] = (LANGGRAPH, PYDANTIC_AI)  # those that can be asked what runs


def current_component() -> tuple[str, ...]:
    """Names of the running parts, outermost first; empty when no loaded framework knows."""
    for framework in _SAYING:
        if framework.module in sys.modules:
            path = framework.current_component()
            if path:
                return path
    return ()


def current_parent(trace_id: str) -> str | None:
    """16 hex digits for the running sub-agent, None when the rollout itself is the parent."""
    for framework in _SAYING:
        if framework.module in sys.modules:
            parent = framework.current_parent(trace_id)
            if parent:
                return parent
    return None
