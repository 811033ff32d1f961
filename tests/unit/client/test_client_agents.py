"""Finding agents by name, factories, and what the client's import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_lightning.client.agent import adapter_for, build, is_factory, load
from agent_lightning.client.frameworks.langgraph import LANGGRAPH
from agent_lightning.client.frameworks.plain import PLAIN
from agent_lightning.errors import AgentError


class Runner:
    def run(self, text: str) -> str:
        return text.upper()


def takes_input(text: str) -> str:
    return text


async def takes_input_async(text: str) -> str:
    return text


def makes_an_agent(size: int = 1) -> Runner:
    return Runner()


def makes_nothing() -> None:
    return None


def test_an_agent_is_loaded_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("owners_agent.py").write_text("class Box:\n    graph = staticmethod(lambda text: text)\n", encoding="utf-8")
    assert load("owners_agent:Box.graph")("x") == "x"
    with pytest.raises(AgentError, match="no attribute 'Bx'; did you mean Box"):
        load("owners_agent:Bx")
    del sys.modules["owners_agent"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("owners_agent", "'module:attribute' is wanted"),
        (":graph", "'module:attribute' is wanted"),
        ("nowhere_to_be_found:graph", "no module 'nowhere_to_be_found'"),
        ("needs_more:graph", "needs 'not_installed_here', which is not installed"),
        ("broken_agent:graph", "importing 'broken_agent' raised ZeroDivisionError"),
    ],
)
def test_an_agent_that_cannot_be_loaded_is_an_error_that_says_why(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("needs_more.py").write_text("import not_installed_here\n", encoding="utf-8")
    Path("broken_agent.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(AgentError, match=said):
        load(name)


@pytest.mark.parametrize(
    ("agent", "factory"),
    [(Runner, True), (makes_an_agent, True), (Runner(), False), (takes_input, False), (lambda *args: args, False)],
)
def test_a_factory_is_a_class_or_a_function_that_needs_nothing(agent: Any, factory: bool) -> None:
    assert is_factory(agent) is factory


def test_a_factory_makes_a_new_agent_each_time_and_an_object_is_itself() -> None:
    assert build(makes_an_agent) is not build(makes_an_agent)
    agent = Runner()
    assert build(agent) is agent
    with pytest.raises(AgentError, match="makes_nothing returned None"):
        build(makes_nothing)
    with pytest.raises(AgentError, match="is no agent that can be run"):
        adapter_for(object())


def test_a_plain_agent_is_called_by_the_first_entry_it_has() -> None:
    scope: Any = None
    assert PLAIN.call(Runner(), "a", scope) == "A"
    assert PLAIN.call(takes_input, "a", scope) == "a"
    assert [PLAIN.is_async(takes_input_async), PLAIN.is_async(takes_input)] == [True, False]
    assert [PLAIN.keeps_state(takes_input), PLAIN.keeps_state(Runner())] == [False, True]
    assert not LANGGRAPH.recognises(Runner())


def test_importing_the_client_is_quick_and_loads_nothing_of_the_training_side() -> None:
    program = """
import sys, time
began = time.process_time()
import agent_lightning, agent_lightning.client
spent = time.process_time() - began
from agent_lightning import inject_runtime, emit_reward, current_rollout, Handle
heavy = {"torch", "numpy", "httpx", "httpx2", "openai", "langgraph", "fastapi", "sqlalchemy", "wrapt", "ray"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
print(spent)
"""
    best = min(
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
        for _ in range(7)
    )
    assert best < 0.060
