"""LangGraph: compiled graphs. The running node is read from the graph's own context when a call leaves; no patch."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import Door, Entry, Framework, own_entries

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_HIDDEN = frozenset({"__start__", "__end__"})
_ANONYMOUS = "LangGraph"  # the name of a graph that was given none


class LangGraph(Framework):
    name = "langgraph"
    module = "langgraph"
    doors = (Door(module="langgraph.pregel.main", owner="Pregel", methods=("invoke", "ainvoke", "stream", "astream")),)

    def recognises(self, agent: Any) -> bool:
        return any(
            base.__name__ == "Pregel" and base.__module__.startswith("langgraph.pregel") for base in type(agent).__mro__
        )

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return own_entries(agent, ("invoke", "ainvoke", "stream", "astream"), "input")

    def copiers(self, agent: Any) -> tuple[str, ...]:
        return ("copy",)  # with_config goes through it

    def components(self, agent: Any) -> frozenset[str]:
        names: set[str] = set()
        for graph in _graphs(agent):
            names |= set(graph.nodes) - _HIDDEN
            own = self.agent_name(graph)
            if own is not None:
                names.add(own)
        return frozenset(names)

    def agent_name(self, agent: Any) -> str | None:
        name = super().agent_name(agent)
        return None if name == _ANONYMOUS else name

    def is_async(self, agent: Any) -> bool:
        """Only a graph with a node that has no synchronous form is awaited."""
        return any(_only_async(node.bound) for graph in _graphs(agent) for node in graph.nodes.values())

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """State lives under the thread id, and each rollout has its own."""
        config = {"configurable": {"thread_id": scope.attempt_id}}
        run = agent.ainvoke if self.is_async(agent) else agent.invoke
        return run(task_input, config)

    def current_component(self) -> tuple[str, ...]:
        metadata = _metadata()
        nodes = [part.split(":", 1)[0] for part in _namespace(metadata)]
        if not nodes and metadata.get("langgraph_node"):
            nodes = [metadata["langgraph_node"]]
        agent = metadata.get("lc_agent_name")
        if isinstance(agent, str) and agent and agent not in nodes:
            nodes.insert(max(0, len(nodes) - 1), agent)  # create_agent's own node is always called "model"
        return tuple(nodes)

    def current_parent(self, trace_id: str) -> str | None:
        above = _namespace(_metadata())[:-1]
        if not above:
            return None
        return hashlib.sha256(f"{trace_id}|{'|'.join(above)}".encode()).hexdigest()[:16]


def _metadata() -> dict[str, Any]:
    config_module = sys.modules.get("langgraph.config")
    if config_module is None:
        return {}
    try:
        return config_module.get_config().get("metadata") or {}
    except RuntimeError:  # raised outside of a graph
        return {}


def _namespace(metadata: dict[str, Any]) -> list[str]:
    """["outer:uuid", "model:uuid"]: one element a nested node."""
    namespace = metadata.get("langgraph_checkpoint_ns") or metadata.get("checkpoint_ns") or ""
    return [part for part in namespace.split("|") if part and not part.isdigit()]


def _graphs(agent: Any) -> Iterator[Any]:
    yield agent
    for _, graph in agent.get_subgraphs(recurse=True):
        if hasattr(graph, "nodes"):
            yield graph


def _only_async(bound: Any) -> bool:
    steps = getattr(bound, "steps", None)
    if isinstance(steps, list | tuple):
        return any(_only_async(step) for step in steps)
    return getattr(bound, "func", 0) is None and getattr(bound, "afunc", None) is not None


LANGGRAPH = LangGraph()
