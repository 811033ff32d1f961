"""Google ADK through LiteLLM: an agent that hands over to a sub-agent."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("google.adk", reason="needs google-adk")
pytest.importorskip("litellm", reason="needs litellm")

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from agent_lightning.client.config import ClientConfig


def team(provider: Server) -> Any:
    model = LiteLlm("openai/gpt-x", api_base=f"{provider.url}/v1", api_key="sk-secret")
    writer = LlmAgent(name="writer", model=model, description="Writes.")
    return LlmAgent(name="boss", model=model, sub_agents=[writer])


async def ask(agent: Any, text: str) -> str:
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="u")
    said = ""
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        said = "".join(part.text or "" for part in event.content.parts) if event.content else said
    return said


async def test_each_call_bears_the_name_of_the_agent_that_made_it(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    gateway.script = [Tool("transfer_to_agent", {"agent_name": "writer"}), "done"]
    with injected(agent, gateway) as handle:
        assert handle.components == {"boss", "writer"}
        assert await ask(agent, "q") == "done"
    assert gateway.components == ["boss", "boss/writer"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


async def test_only_the_component_of_interest_is_routed(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    provider.script = [Tool("transfer_to_agent", {"agent_name": "writer"})]
    with injected(agent, gateway, component="writer"):
        assert (await ask(agent, "q")).startswith("gateway: ")
    assert gateway.components == ["boss/writer"]
    assert provider.keys == ["sk-secret"]


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(gateway: Server, provider: Server, config: ClientConfig) -> None:
    model = LiteLlm("openai/gpt-x", api_base=f"{provider.url}/v1", api_key="sk-secret")
    agent = LlmAgent(name="solo", model=model)
    assert await eight(agent, config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)
