"""AutoGen agentchat: agents and teams of them. A member of a team is named while it answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import (
    Door,
    Entry,
    Framework,
    Part,
    as_text,
    descends,
    own_entries,
    own_name,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_AGENTS = {
    "_assistant_agent": "AssistantAgent",
    "_code_executor_agent": "CodeExecutorAgent",
    "_society_of_mind_agent": "SocietyOfMindAgent",
    "_base_chat_agent": "BaseChatAgent",  # for members that have only on_messages of their own
}


class AutoGen(Framework):
    name = "autogen"
    module = "autogen_agentchat"
    doors = (
        Door(module="autogen_agentchat.agents._base_chat_agent", owner="BaseChatAgent", methods=("run", "run_stream")),
        Door(
            module="autogen_agentchat.teams._group_chat._base_group_chat",
            owner="BaseGroupChat",
            methods=("run", "run_stream"),
        ),
    )
    parts = tuple(
        Part(module=f"autogen_agentchat.agents.{module}", path=f"{owner}.on_messages_stream", name=own_name)
        for module, owner in _AGENTS.items()
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "autogen_agentchat", "BaseChatAgent", "BaseGroupChat")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return own_entries(agent, ("run", "run_stream"), "task")

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(_names(agent))

    def agent_name(self, agent: Any) -> str | None:
        """A team that was given no name bears that of its class, which says nothing."""
        name = super().agent_name(agent)
        return None if name == type(agent).__name__ else name

    def keeps_state(self, agent: Any) -> bool:
        return True  # the model context of each agent

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input)

    async def _call(self, agent: Any, task_input: Any) -> Any:
        result = await agent.run(task=as_text(task_input))
        return result.messages[-1].content

    def fresh(self, agent: Any) -> Any:
        return copy.deepcopy(agent)


def _names(agent: Any) -> Iterator[str]:
    members = getattr(agent, "_participants", None)
    if members is None:
        yield agent.name
    for member in members or ():
        yield from _names(member)


AUTOGEN = AutoGen()
