"""Pydantic AI: agents with tools and with other agents as tools, sync, async and streamed, over three dialects."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server, Tool
from rollouts import check_that_none_mixed, eight, injected

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim[openai,anthropic]")

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from agent_lightning.client.config import ClientConfig
from agent_lightning.client.outbox import OUTBOX


def model(provider: Server, kind: str = "responses") -> Any:
    if kind == "messages":
        return AnthropicModel("claude-x", provider=AnthropicProvider(base_url=provider.url, api_key="sk-ant-secret"))
    made = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="sk-secret")
    return {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}[kind]("gpt-x", provider=made)


def team(provider: Server, kind: str = "responses") -> Any:
    writer = Agent(model(provider, kind), name="writer")
    boss = Agent(model(provider, kind), name="boss")

    @boss.tool_plain
    async def ask_writer(text: str) -> str:
        """Ask the writer."""
        return (await writer.run(text)).output

    return boss


@pytest.mark.parametrize("kind", ["responses", "chat", "messages"])
def test_each_call_bears_the_name_of_the_agent_that_made_it(gateway: Server, provider: Server, kind: str) -> None:
    agent = team(provider, kind)
    gateway.script = [Tool("ask_writer", {"text": "x"}), "inner", "outer"]
    with injected(agent, gateway):
        assert agent.run_sync("q").output == "outer"
    assert gateway.components == ["boss", "boss/writer", "boss"]
    assert gateway.keys == ["alr-live-1"] * 3
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == ["q"]


async def test_a_streamed_run_is_one_rollout_to_its_end(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway):
        async with agent.run_stream("q") as streamed:
            assert [text async for text in streamed.stream_text()][-1] == "gateway: q"
            assert OUTBOX.flush(5.0)
            assert gateway.on("/end") == []
        async with agent.iter("again") as run:
            nodes = [node async for node in run]
    assert nodes
    assert gateway.components == ["boss", "boss"]
    assert OUTBOX.flush(5.0)
    assert [end["outcome"] for end in gateway.on("/end")] == ["ok", "ok"]


async def test_one_injected_inside_another_joins_its_rollout(gateway: Server, provider: Server) -> None:
    inner = Agent(model(provider), name="writer")
    outer = Agent(model(provider), name="boss")

    @outer.tool_plain
    async def ask(text: str) -> str:
        """Ask."""
        return (await inner.run(text)).output

    gateway.script = [Tool("ask", {"text": "x"}), "inner", "outer"]
    with injected(inner, gateway), injected(outer, gateway):
        assert (await outer.run("q")).output == "outer"
        assert (await inner.run("q")).output == "gateway: q"
    assert gateway.components == ["boss", "boss/writer", "boss", "writer"]
    assert len(gateway.on("/live")) == 2


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(gateway: Server, provider: Server, config: ClientConfig) -> None:
    assert await eight(team(provider), config) == [f"gateway: question {n}" for n in range(8)]
    check_that_none_mixed(gateway)


def test_detached_it_goes_where_it_went(gateway: Server, provider: Server) -> None:
    agent = team(provider)
    with injected(agent, gateway):
        agent.run_sync("q")
    assert agent.run_sync("q").output == "provider: q"
    assert provider.keys == ["sk-secret"]
