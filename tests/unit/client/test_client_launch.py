"""Zero code: unchanged programs under `agent-lightning run` and `inspect`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from client_loopback import FakeServer

import agent_lightning
from agent_lightning.wire import protocol

SOURCE = str(Path(agent_lightning.__file__).parent.parent)
PLAIN = """
import sys
assert "httpx2" not in sys.modules
import httpx2

def ask(text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer sk-secret"}
    answer = httpx2.post(sys.argv[1] + "/v1/chat/completions", json=body, headers=headers).json()
    return answer["choices"][0]["message"]["content"]

if __name__ == "__main__":
    print(ask("a"), sys.argv[2:])
"""
GRAPH = (
    PLAIN.split("if __name__", maxsplit=1)[0]
    + """
from langgraph.graph import END, START, StateGraph

builder = StateGraph(dict)
builder.add_node("planner", lambda state: {"q": ask("plan")})
builder.add_node("writer", lambda state: {"q": ask("write")})
builder.add_edge(START, "planner"); builder.add_edge("planner", "writer"); builder.add_edge("writer", END)
graph = builder.compile()
for text in ("one", "two"):
    print(graph.invoke({"q": text})["q"])
"""
)


def launch(command: str, *arguments: str, **environment: str) -> Any:
    path = os.pathsep.join(filter(None, (SOURCE, environment.pop("PYTHONPATH", ""))))
    made = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.run(
        [sys.executable, "-m", "agent_lightning.cli", command, *arguments],
        env=made, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_a_program_without_a_framework_is_one_rollout(gateway: FakeServer, provider: FakeServer) -> None:
    Path("my_agent.py").write_text(PLAIN, encoding="utf-8")
    options = ["--endpoint", gateway.url, "--sample", "1.0", "--component", "solo"]
    done = launch("run", *options, "--", sys.executable, "my_agent.py", provider.url, "x", "--y")
    assert done.stdout == "gateway: a ['x', '--y']\n", done.stderr
    assert done.returncode == 0
    assert provider.seen == []
    assert gateway.calls[0].headers[protocol.COMPONENT] == "solo"
    assert len(gateway.on("/live")) == len(gateway.on("/end")) == 1


def test_each_run_of_a_framework_is_a_rollout_and_components_are_chosen(
    gateway: FakeServer, provider: FakeServer
) -> None:
    Path("my_graph.py").write_text(GRAPH, encoding="utf-8")
    options = ["--endpoint", gateway.url, "--sample", "1.0", "--component", "writer"]
    done = launch("run", *options, "--", "my_graph.py", provider.url)
    assert done.stdout == "gateway: write\ngateway: write\n", done.stderr
    assert [call.headers[protocol.COMPONENT] for call in gateway.calls] == ["writer", "writer"]
    assert [call.headers["authorization"] for call in provider.calls] == ["Bearer sk-secret"] * 2
    assert len(gateway.on("/end")) == 2


def test_modules_subprocesses_and_forked_children_are_reached_too(gateway: FakeServer, provider: FakeServer) -> None:
    Path("my_agent.py").write_text(PLAIN, encoding="utf-8")
    Path("starter.py").write_text(
        "import multiprocessing, subprocess, sys\n"
        "from my_agent import ask\n"
        "if __name__ == '__main__':\n"
        "    subprocess.run([sys.executable, '-m', 'my_agent', sys.argv[1]], check=True)\n"
        "    for kind in ('fork', 'spawn'):\n"
        "        child = multiprocessing.get_context(kind).Process(target=ask, args=(kind,))\n"
        "        child.start(); child.join(); assert child.exitcode == 0\n",
        encoding="utf-8",
    )
    options = ["--endpoint", gateway.url, "--sample", "1.0"]
    done = launch("run", *options, "--", sys.executable, "-m", "starter", provider.url, PYTHONPATH=os.getcwd())
    assert done.returncode == 0, done.stderr
    assert provider.seen == []
    assert [call.body["messages"][0]["content"] for call in gateway.calls] == ["a", "fork", "spawn"]


def test_the_users_own_sitecustomize_still_runs_and_the_exit_status_is_the_programs(gateway: FakeServer) -> None:
    Path("own").mkdir()
    Path("own/sitecustomize.py").write_text("print('own')\n", encoding="utf-8")
    program = "import sys; print('ours' if sys.meta_path[0].__class__.__name__ == '_Watch' else 'none'); sys.exit(7)"
    done = launch("run", "--endpoint", gateway.url, "--", sys.executable, "-c", program, PYTHONPATH="own")
    assert (done.stdout, done.returncode) == ("own\nown\nours\n", 7), "first in the command's own interpreter"
    assert gateway.seen == []


def test_a_server_that_is_away_leaves_the_program_as_it_was(provider: FakeServer) -> None:
    Path("my_agent.py").write_text(PLAIN, encoding="utf-8")
    options = ["--endpoint", "http://127.0.0.1:9", "--sample", "1.0"]
    done = launch("run", *options, "--", sys.executable, "my_agent.py", provider.url)
    assert done.stdout == "provider: a []\n", done.stderr
    assert provider.calls[0].headers["authorization"] == "Bearer sk-secret"


def test_inspect_lists_rollouts_components_endpoints_and_what_would_be_trained(provider: FakeServer) -> None:
    Path("my_graph.py").write_text(GRAPH, encoding="utf-8")
    done = launch("inspect", "--component", "writer", "--", sys.executable, "my_graph.py", provider.url)
    assert done.returncode == 0, done.stderr
    assert provider.seen == [], "no provider is asked"
    said = done.stderr
    assert said.count("rollout of CompiledStateGraph") == 2
    assert "asked \"{'q': 'one'}\"" in said
    assert f"{provider.url.removeprefix('http://')}/v1/chat/completions" in said
    assert "components: planner, writer" in said
    assert said.count("left to its provider") == 2
    assert "2 of 4 calls would be trained" in said


def test_what_cannot_be_run_is_said(gateway: FakeServer) -> None:
    for arguments, wanted in (
        (["--sample", "7", "--", sys.executable], "trace_sampling_rate"),
        (["--endpoint", gateway.url], "a command is wanted"),
        (["--", "no-such-program"], "no program 'no-such-program'"),
    ):
        done = launch("run", *arguments)
        assert done.returncode == 2
        assert wanted in done.stderr


@pytest.mark.slow
def test_an_interpreter_starts_at_most_25_ms_later() -> None:
    from agent_lightning.client.launch.command import SITE

    def seconds(**environment: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, **environment}, check=True)
        return time.perf_counter() - began

    added = [seconds(PYTHONPATH=str(SITE)) - seconds(PYTHONPATH="") for _ in range(20)]
    assert statistics.median(added) < 0.025
