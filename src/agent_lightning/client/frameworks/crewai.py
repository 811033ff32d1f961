"""CrewAI: crews and single agents. The model is told which agent asks, and that is its component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import (
    Args,
    Door,
    Entry,
    Framework,
    Kwargs,
    Part,
    as_text,
    descends,
    own_entries,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_KICKOFFS = ("kickoff", "kickoff_async", "akickoff")
_MODELS = {
    "crewai.llm": "LLM",
    "crewai.llms.providers.openai.completion": "OpenAICompletion",
    "crewai.llms.providers.anthropic.completion": "AnthropicCompletion",
    "crewai.llms.providers.azure.completion": "AzureCompletion",
}


def _role(instance: Any, args: Args, kwargs: Kwargs) -> str | None:
    role = getattr(args[5] if len(args) > 5 else kwargs.get("from_agent"), "role", None)
    return role.strip() if isinstance(role, str) and role.strip() else None


class CrewAI(Framework):
    name = "crewai"
    module = "crewai"
    doors = (
        Door(module="crewai.crew", owner="Crew", methods=_KICKOFFS),
        Door(module="crewai.agent.core", owner="Agent", methods=_KICKOFFS),
    )
    parts = tuple(
        Part(module=module, path=f"{owner}.{method}", name=_role)
        for module, owner in _MODELS.items()
        for method in ("call", "acall")
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "crewai", "Crew", "Agent")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        keyword = "inputs" if self._is_crew(agent) else "messages"
        return own_entries(agent, _KICKOFFS, keyword)

    def copiers(self, agent: Any) -> tuple[str, ...]:
        return ("copy",)

    def components(self, agent: Any) -> frozenset[str]:
        members = agent.agents if self._is_crew(agent) else [agent]
        return frozenset(member.role.strip() for member in members)

    def agent_name(self, agent: Any) -> str | None:
        return None if self._is_crew(agent) else agent.role.strip()

    def keeps_state(self, agent: Any) -> bool:
        return True  # tasks keep their outputs

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """A crew takes a mapping of inputs; anything else is its `input`."""
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        if not self._is_crew(agent):
            return (await agent.akickoff(as_text(task_input))).raw
        inputs = task_input if isinstance(task_input, dict) else {"input": task_input}
        return (await agent.akickoff(inputs=inputs)).raw

    def _is_crew(self, agent: Any) -> bool:
        return descends(agent, "crewai", "Crew")


CREWAI = CrewAI()
