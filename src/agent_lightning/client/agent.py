"""Finding an agent by name, and the framework that knows how to run it."""

from __future__ import annotations

import inspect
import os
import sys
import types
from importlib import import_module
from typing import Any

from agent_lightning.client.frameworks import FRAMEWORKS
from agent_lightning.client.frameworks.framework import Framework
from agent_lightning.errors import AgentError


def load(name: str) -> Any:
    """The object, or the factory, that "package.module:attribute" names. Raises AgentError that says what is missing."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise AgentError(f"agent {name!r}: 'module:attribute' is wanted, such as 'my_agent:graph'")
    found: Any = _module(module_name, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            from difflib import get_close_matches

            near = get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AgentError(f"agent {name!r}: {module_name!r} has no attribute {part!r}{hint}")
        found = getattr(found, part)
    return found


def adapter_for(agent: Any) -> Framework:
    """The framework that knows this agent. Raises AgentError when none does."""
    for framework in FRAMEWORKS:
        if framework.recognises(agent):
            return framework
    raise AgentError(
        f"an object of type {type(agent).__module__}.{type(agent).__qualname__} is no agent that can be run: a function "
        "that takes the task's input, a compiled LangGraph graph, or an object with run, invoke or __call__ is wanted"
    )


def is_factory(agent: Any) -> bool:
    """Whether it makes agents: a class, or a function that needs no argument."""
    if isinstance(agent, type):
        return True
    if not isinstance(agent, types.FunctionType | types.MethodType):
        return False
    parameters = inspect.signature(agent).parameters.values()
    return not any(
        (p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)) or p.kind is p.VAR_POSITIONAL
        for p in parameters
    )


def build(agent: Any) -> Any:
    """An agent to run: what the factory makes, or the object itself as a new rollout must find it."""
    if not is_factory(agent):
        return adapter_for(agent).fresh(agent)
    try:
        made = agent()
    except Exception as error:
        label = getattr(agent, "__qualname__", repr(agent))
        raise AgentError(f"the agent factory {label} raised {type(error).__name__}: {error}") from error
    if made is None:
        raise AgentError(f"the agent factory {getattr(agent, '__qualname__', agent)} returned None: an agent is wanted")
    adapter_for(made)
    return made


def _module(module_name: str, name: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise AgentError(
                f"agent {name!r}: there is no module {error.name!r} in {folder} or on PYTHONPATH"
            ) from error
        raise AgentError(f"agent {name!r}: its module needs {error.name!r}, which is not installed") from error
    except Exception as error:
        raise AgentError(f"agent {name!r}: importing {module_name!r} raised {type(error).__name__}: {error}") from error
