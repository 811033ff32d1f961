"""What every framework's test does: inject all of an agent, or run it as claimed rollouts."""

from __future__ import annotations

import asyncio
from typing import Any

from framework_servers import Server

from agent_lightning import Handle, inject_runtime
from agent_lightning.client.agent import adapter_for
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.scope import current
from agent_lightning.client.session import claimed


def injected(agent: Any, gateway: Server, **settings: Any) -> Handle:
    return inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0, **settings)


def claim(number: int) -> dict[str, Any]:
    return {"rollout_id": f"ro-{number}", "attempt_id": f"at-{number}", "mode": "train", "key": f"alr-{number}"}


async def one(agent: Any, number: int, config: ClientConfig, text: str = "question") -> Any:
    """Run a claimed rollout as a worker does: what the agent answers."""
    framework = adapter_for(agent)
    with claimed(claim(number), config=config, agent=agent):
        scope = current()
        assert scope is not None
        answer = framework.call(framework.fresh(agent), f"{text} {number}", scope)
        return await answer if framework.is_async(agent) else answer


async def eight(agent: Any, config: ClientConfig) -> list[Any]:
    """Eight claimed rollouts at once."""
    if adapter_for(agent).is_async(agent):
        return await asyncio.gather(*(one(agent, number, config) for number in range(8)))
    return await asyncio.gather(*(asyncio.to_thread(asyncio.run, one(agent, number, config)) for number in range(8)))


def check_that_none_mixed(gateway: Server) -> None:
    """Each call of "question N" bears the key of rollout N."""
    for call in gateway.calls:
        text = str(call.body)
        (number,) = {n for n in range(8) if f"question {n}" in text}
        assert call.key == f"alr-{number}"
