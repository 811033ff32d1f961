"""DSPy: a program of two predictors, sync and async, through a base URL of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from framework_servers import Server
from rollouts import check_that_none_mixed, eight, injected

from agent_lightning.client.config import ClientConfig

dspy: Any = pytest.importorskip("dspy", reason="needs dspy")

ANSWER = "[[ ## plan ## ]]\np\n\n[[ ## completed ## ]]"
WRITTEN = "[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\nwritten\n\n[[ ## completed ## ]]"


class Program(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.planner = dspy.Predict("question -> plan")
        self.writer = dspy.ChainOfThought("plan -> answer")

    def forward(self, question: str) -> Any:
        return self.writer(plan=self.planner(question=question).plan)

    async def aforward(self, question: str) -> Any:
        return await self.writer.acall(plan=(await self.planner.acall(question=question)).plan)


@pytest.fixture
def program(provider: Server) -> Iterator[Any]:
    lm = dspy.LM("openai/gpt-x", api_base=f"{provider.url}/v1", api_key="sk-secret", cache=False, num_retries=0)
    with dspy.context(lm=lm):
        yield Program()


def test_each_call_bears_the_name_of_its_predictor(gateway: Server, provider: Server, program: Any) -> None:
    gateway.script = [ANSWER, WRITTEN]
    with injected(program, gateway) as handle:
        assert handle.components == {"planner", "writer"}
        assert program(question="q").answer == "written"
    assert gateway.components == ["planner", "writer"]
    assert gateway.keys == ["alr-live-1"] * 2
    assert provider.calls == []
    assert [body["input"] for body in gateway.on("/live")] == [{"question": "q"}]


async def test_only_the_component_of_interest_is_routed_also_async(
    gateway: Server, provider: Server, program: Any
) -> None:
    provider.script, gateway.script = [ANSWER], [WRITTEN]
    with injected(program, gateway, component="writer"):
        assert (await program.acall(question="q")).answer == "written"
    assert gateway.components == ["writer"]
    assert provider.keys == ["sk-secret"]


def test_a_deep_copy_is_injected_too(gateway: Server, provider: Server, program: Any) -> None:
    gateway.script = [ANSWER, WRITTEN]
    with injected(program, gateway):
        assert program.deepcopy()(question="q").answer == "written"
    assert gateway.components == ["planner", "writer"]


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_at_once_do_not_mix(
    gateway: Server, provider: Server, config: ClientConfig, program: Any
) -> None:
    predict = dspy.Predict("question -> plan")
    gateway.script = [ANSWER] * 8

    class Asking(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.planner = predict

        def forward(self, question: str) -> Any:
            return self.planner(question=question).plan

    assert await eight(Asking(), config) == ["p"] * 8
    check_that_none_mixed(gateway)
    assert gateway.components == ["planner"] * 8
