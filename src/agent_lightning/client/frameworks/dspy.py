"""DSPy: modules. A predictor is named as the program that is called names it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from agent_lightning.client.frameworks.framework import Args, Door, Entry, Framework, Kwargs, Part, descends

if TYPE_CHECKING:
    from agent_lightning.client.scope import Scope

_PREDICT = "dspy.predict.predict"


def _called(name: str) -> str:
    """A chain of thought holds one predictor, which says nothing."""
    return name.removesuffix(".predict")


def _predictor(instance: Any, args: Args, kwargs: Kwargs) -> str | None:
    callers = sys.modules["dspy"].settings.caller_modules or ()
    for program in callers[:1]:
        for name, predictor in program.named_predictors():
            if predictor is instance and name != "self":
                return _called(name)
    return None


def _asked(args: Args, kwargs: Kwargs) -> Any:
    return dict(kwargs) if kwargs else args[0] if args else None


class DSPy(Framework):
    name = "dspy"
    module = "dspy"
    doors = (Door(module="dspy.primitives.module", owner="Module", methods=("__call__", "acall")),)
    parts = (
        Part(module=_PREDICT, path="Predict.forward", name=_predictor),
        Part(module=_PREDICT, path="Predict.aforward", name=_predictor),
    )

    def recognises(self, agent: Any) -> bool:
        return descends(agent, "dspy", "Module")

    def entries(self, agent: Any) -> tuple[Entry, ...]:
        return tuple(Entry(owner=type(agent), method=name, asked=_asked) for name in ("__call__", "acall"))

    def copiers(self, agent: Any) -> tuple[str, ...]:
        return ("deepcopy", "reset_copy")

    def components(self, agent: Any) -> frozenset[str]:
        return frozenset(_called(name) for name, _ in agent.named_predictors() if name != "self")

    def is_async(self, agent: Any) -> bool:
        return False

    def call(self, agent: Any, task_input: Any, scope: Scope) -> Any:
        """A mapping is the program's keyword arguments."""
        return agent(**task_input) if isinstance(task_input, dict) else agent(task_input)


DSPY = DSPy()
