"""Agents without a framework: Anthropic's SDK, and litellm, sync, async and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from framework_servers import Server
from rollouts import injected

MESSAGES: Any = [{"role": "user", "content": "q"}]


class OverAnthropic:
    def __init__(self, url: str) -> None:
        self.anthropic: Any = pytest.importorskip("anthropic", reason="needs anthropic")
        self.to: dict[str, Any] = {"base_url": url, "api_key": "sk-ant-secret"}

    def run(self, text: str) -> str:
        with self.anthropic.Anthropic(**self.to) as client:
            return client.messages.create(model="claude-x", max_tokens=9, messages=MESSAGES).content[0].text

    async def arun(self, text: str) -> str:
        async with self.anthropic.AsyncAnthropic(**self.to) as client:
            answer = await client.messages.create(model="claude-x", max_tokens=9, messages=MESSAGES)
        return answer.content[0].text

    def stream(self, text: str) -> Any:
        client = self.anthropic.Anthropic(**self.to)
        with client, client.messages.stream(model="claude-x", max_tokens=9, messages=MESSAGES) as stream:
            yield from stream.text_stream


class OverLiteLLM:
    def __init__(self, url: str) -> None:
        self.litellm: Any = pytest.importorskip("litellm", reason="needs litellm")
        self.to: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "sk-secret", "model": "openai/gpt-x"}

    def run(self, text: str) -> str:
        return self.litellm.completion(messages=MESSAGES, **self.to).choices[0].message.content

    async def arun(self, text: str) -> str:
        return (await self.litellm.acompletion(messages=MESSAGES, **self.to)).choices[0].message.content

    def stream(self, text: str) -> Any:
        for chunk in self.litellm.completion(messages=MESSAGES, stream=True, **self.to):
            yield chunk.choices[0].delta.content or ""


@pytest.mark.parametrize(("kind", "path"), [(OverAnthropic, "/v1/messages"), (OverLiteLLM, "/v1/chat/completions")])
async def test_calls_are_routed_whole_and_streamed(gateway: Server, provider: Server, kind: Any, path: str) -> None:
    agent = kind(provider.url)
    with injected(agent, gateway, component="solo"):
        assert agent.run("q") == "gateway: q"
        assert await agent.arun("q") == "gateway: q"
        assert "".join(agent.stream("q")) == "gateway: q"
    assert [call.path for call in gateway.calls] == [path] * 3
    assert gateway.components == ["solo"] * 3
    assert gateway.keys == [f"alr-live-{n}" for n in (1, 2, 3)]
    assert not [call for call in gateway.calls if "secret" in str(call.headers)]
    assert provider.calls == []
    assert agent.run("q") == "provider: q"
    assert "secret" in provider.keys[0]
