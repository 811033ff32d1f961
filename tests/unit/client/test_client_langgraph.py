"""A real LangGraph graph with two nodes that call ChatOpenAI."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from client_loopback import FakeServer, claim
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from agent_lightning import inject_runtime
from agent_lightning.client.agent import adapter_for
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.scope import current
from agent_lightning.client.session import claimed
from agent_lightning.errors import SettingError
from agent_lightning.wire import protocol


class State(TypedDict, total=False):
    question: str
    plan: str
    answer: str
    turns: int


def graph(provider: FakeServer, **compile_settings: Any) -> Any:
    llm = ChatOpenAI(model="gpt-x", base_url=f"{provider.url}/v1", api_key="sk-secret")  # type: ignore[arg-type]

    def plan(state: State) -> State:
        return {"plan": str(llm.invoke(f"plan {state['question']}").content), "turns": state.get("turns", 0) + 1}

    def write(state: State) -> State:
        return {"answer": str(llm.invoke(f"write {state['question']}").content)}

    builder = StateGraph(State)
    builder.add_node("planner", plan)
    builder.add_node("writer", write)
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "writer")
    builder.add_edge("writer", END)
    return builder.compile(**compile_settings)


def async_graph(provider: FakeServer) -> Any:
    llm = ChatOpenAI(model="gpt-x", base_url=f"{provider.url}/v1", api_key="sk-secret")  # type: ignore[arg-type]

    async def write(state: State) -> State:
        return {"answer": str((await llm.ainvoke(f"write {state['question']}")).content)}

    builder = StateGraph(State)
    builder.add_node("writer", write)
    builder.add_edge(START, "writer")
    builder.add_edge("writer", END)
    return builder.compile()


def components(server: FakeServer) -> list[str | None]:
    return [call.headers.get(protocol.COMPONENT) for call in server.calls]


def run(agent: Any, task_input: Any) -> Any:
    scope = current()
    assert scope is not None
    return adapter_for(agent).call(agent, task_input, scope)


@pytest.mark.usefixtures("installed")
def test_every_call_carries_the_name_of_its_node(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    agent = graph(provider)
    with claimed(claim(), config=config, agent=agent) as record:
        result = run(agent, {"question": "q"})
    assert result["answer"] == "gateway: write q"
    assert components(gateway) == ["planner", "writer"]
    assert record.calls_sent == 2


def test_only_the_component_of_interest_is_routed(gateway: FakeServer, provider: FakeServer) -> None:
    agent = graph(provider)
    with inject_runtime(agent, endpoint=gateway.url, component="writer", trace_sampling_rate=1.0):
        result = agent.invoke({"question": "q"})
    assert result["plan"] == "provider: plan q"
    assert result["answer"] == "gateway: write q"
    assert components(gateway) == ["writer"]
    assert provider.calls[0].headers["authorization"] == "Bearer sk-secret"


def test_a_claimed_rollout_obeys_the_component_of_the_injection(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    agent = graph(provider)
    with inject_runtime(agent, endpoint=gateway.url, component="wri*"), claimed(claim(), config=config) as record:
        run(agent, {"question": "q"})
    assert components(gateway) == ["writer"]
    assert (record.calls_seen, record.calls_sent, record.calls_passed) == (2, 1, 1)


def test_an_unknown_component_is_an_error_that_lists_the_nodes(gateway: FakeServer, provider: FakeServer) -> None:
    with pytest.raises(SettingError, match="its parts are: planner, writer"):
        inject_runtime(graph(provider), endpoint=gateway.url, component="sql_writer")


def test_a_graph_stays_injected_through_with_config_and_stream_is_one_rollout(
    gateway: FakeServer, provider: FakeServer
) -> None:
    agent = graph(provider)
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0):
        tagged = agent.with_config(tags=["x"])
        assert tagged.invoke({"question": "a"})["answer"] == "gateway: write a"
        assert len(list(agent.stream({"question": "b"}))) == 2
        agent.batch([{"question": "c"}, {"question": "d"}])
    assert len(gateway.on("/live")) == 4
    assert agent.invoke({"question": "e"})["answer"] == "provider: write e"


async def test_async_entries_and_sync_nodes_under_them_keep_the_rollout(
    gateway: FakeServer, provider: FakeServer
) -> None:
    sync_nodes, async_nodes = graph(provider), async_graph(provider)
    with (
        inject_runtime(sync_nodes, endpoint=gateway.url, trace_sampling_rate=1.0),
        inject_runtime(async_nodes, endpoint=gateway.url, trace_sampling_rate=1.0),
    ):
        assert (await sync_nodes.ainvoke({"question": "a"}))["answer"] == "gateway: write a"
        assert [chunk async for chunk in async_nodes.astream({"question": "b"})]
    assert len(gateway.on("/live")) == 2
    assert components(gateway) == ["planner", "writer", "writer"]


@pytest.mark.usefixtures("installed")
async def test_eight_rollouts_of_one_graph_with_memory_do_not_mix(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    agent = graph(provider, checkpointer=InMemorySaver())
    assert not adapter_for(agent).keeps_state(agent)

    def rollout(number: int) -> Any:
        with claimed(claim(number), config=config, agent=agent):
            return run(agent, {"question": str(number)})

    results = await asyncio.gather(*(asyncio.to_thread(rollout, n) for n in range(8)))
    assert [result["answer"] for result in results] == [f"gateway: write {n}" for n in range(8)]
    assert [result["turns"] for result in results] == [1] * 8, "each rollout has its own thread id"
    for call in gateway.calls:
        assert call.headers["authorization"] == f"Bearer alr-{call.body['messages'][0]['content'].split()[1]}"


@pytest.mark.usefixtures("installed")
async def test_a_graph_that_is_only_async_is_awaited(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    agent = async_graph(provider)
    assert adapter_for(agent).is_async(agent)
    assert not adapter_for(graph(provider)).is_async(graph(provider))
    with claimed(claim(), config=config, agent=agent):
        assert (await run(agent, {"question": "q"}))["answer"] == "gateway: write q"


@pytest.mark.usefixtures("installed")
def test_a_sub_agent_is_on_the_path_and_is_the_parent_of_its_calls(
    gateway: FakeServer, provider: FakeServer, config: ClientConfig
) -> None:
    inner = graph(provider)
    builder = StateGraph(State)
    builder.add_node("team", inner)
    builder.add_edge(START, "team")
    builder.add_edge("team", END)
    outer = builder.compile()
    assert adapter_for(outer).components(outer) == {"team", "planner", "writer"}
    with claimed(claim(), config=ClientConfig(endpoint=config.endpoint, component="team"), agent=outer):
        run(outer, {"question": "q"})
    assert components(gateway) == ["team/planner", "team/writer"]
    parents = {call.headers[protocol.PARENT_SPAN] for call in gateway.calls}
    assert len(parents) == 1
