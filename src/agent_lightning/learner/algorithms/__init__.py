"""The algorithms by name: every module of this package that has an ALGORITHM. A new one is one more file here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from agent_lightning.errors import SettingError
from agent_lightning.learner.algorithms.algorithm import Algorithm

__all__ = ["WARM_START", "Algorithm", "algorithm_of", "algorithms", "specific"]

WARM_START = "sft"  # what `sft_steps` begins with


@cache
def algorithms() -> tuple[Algorithm, ...]:
    """All of them, by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [module.ALGORITHM for module in modules if hasattr(module, "ALGORITHM")]
    return tuple(sorted(found, key=lambda algorithm: algorithm.name))


def algorithm_of(name: str) -> Algorithm:
    """Raises SettingError for one that is not known."""
    for algorithm in algorithms():
        if algorithm.name == name:
            return algorithm
    raise SettingError(f"algorithm is {name!r}: known are {', '.join(known.name for known in algorithms())}")


@cache
def specific() -> frozenset[str]:
    """The settings that belong to some algorithms alone."""
    return frozenset[str]().union(*(algorithm.settings for algorithm in algorithms()))
