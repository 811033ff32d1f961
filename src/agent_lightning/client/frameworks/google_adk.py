"""Google ADK: agents that a runner runs; inject either. An agent is named while it runs, also below another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
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
    own_name,
)

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_MODULE, _USER = "google.adk", "agent-lightning"


def _agent_of(instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return instance.agent


def _message(args: Args, kwargs: Kwargs) -> Any:
    parts = getattr(kwargs.get("new_message"), "parts", None) or ()
    return "".join(part.text for part in parts if part.text)


class GoogleADK(Framework):
    name = "google-adk"
    module = _MODULE
    doors = (Door(module="google.adk.runners", owner="Runner", methods=("run_async",)),)
    parts = (Part(module="google.adk.agents.base_agent", path="BaseAgent.run_async", name=own_name),)

    def recognises(self, agent: Any) -> bool:
        return descends(agent, _MODULE, "BaseAgent", "Runner")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        if self._is_runner(agent):
            return (Entry(owner=type(agent), method="run_async", asked=_message),)
        runner = import_module("google.adk.runners").Runner
        return (Entry(owner=runner, method="run_async", agent=_agent_of, asked=_message),)

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(_names(agent.agent if self._is_runner(agent) else agent))

    def agent_name(self, agent: Any) -> str | None:
        return super().agent_name(agent.agent if self._is_runner(agent) else agent)

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        return self._call(agent, task_input, scope)

    async def _call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """One session a rollout; the text of the final answer."""
        runner, types = agent, sys.modules["google.genai.types"]
        if not self._is_runner(agent):
            runner = import_module("google.adk.runners").InMemoryRunner(agent=agent, app_name=_USER)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id=_USER)
        message = types.Content(role="user", parts=[types.Part(text=as_text(task_input))])
        answer = ""
        async for event in runner.run_async(user_id=_USER, session_id=session.id, new_message=message):
            if event.is_final_response() and event.content and event.content.parts:
                answer = "".join(part.text or "" for part in event.content.parts)
        return answer

    def _is_runner(self, agent: Any) -> bool:
        return descends(agent, _MODULE, "Runner")


def _names(agent: Any) -> Iterator[str]:
    yield agent.name
    for below in agent.sub_agents:
        yield from _names(below)


GOOGLE_ADK = GoogleADK()
