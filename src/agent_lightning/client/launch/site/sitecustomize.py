"""Runs at the start of every interpreter below `agent-lightning run`. Standard library only, and as little as possible.

Nothing of ours is loaded before the program imports an agent framework or an HTTP library. The user's own
`sitecustomize`, which this one hides, is run too.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_WAITED_FOR = frozenset(
    [
        "httpx",
        "httpx2",
        "langgraph",
        "agents",
        "pydantic_ai",
        "autogen_agentchat",
        "smolagents",
        "agent_framework",
        "llama_index",
        "crewai",
        "dspy",
        "google.adk",
    ]
)


class _Watch:
    """First among the finders until the first import that concerns us."""

    def find_spec(self, name, path=None, target=None):
        if name not in _WAITED_FOR or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            from agent_lightning.client.launch.boot import begin

            begin()
        except Exception as error:
            print(f"agent-lightning: this program runs without us: {type(error).__name__}: {error}", file=sys.stderr)
        return importlib.util.find_spec(name)


def _run_the_users_own():
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("AGENT_LIGHTNING_RUNTIME_INJECTION", "true").lower() not in {"0", "false", "no", "off"}:
    sys.meta_path.insert(0, _Watch())
_run_the_users_own()
