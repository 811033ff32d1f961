"""Which calls are trained: the component setting, resolved against the parts that an agent exposes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent_lightning.errors import SettingError

_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Matches a component path when any element of it matches any pattern; no pattern matches everything."""

    patterns: tuple[str, ...] = ()
    label: str | None = None  # the agent exposes no parts: this name is given to all of its calls

    def matches(self, path: tuple[str, ...]) -> bool:
        if not self.patterns or self.label is not None:
            return True
        return any(fnmatchcase(name, pattern) for name in path for pattern in self.patterns)


EVERYTHING = Selector()


def select(patterns: tuple[str, ...], names: Iterable[str]) -> Selector:
    """Resolve the setting `component` for an agent whose named parts are `names` (empty: it exposes none).

    Raises SettingError when a pattern matches no part, or when a glob or a list meets an agent without parts.
    """
    if not patterns or "*" in patterns:
        return EVERYTHING
    parts = sorted(set(names))
    if not parts:
        return _label(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parts):
            raise SettingError(
                f"component={pattern!r} matches no part of this agent; its parts are: {', '.join(parts)}. "
                "Name one of them, use a glob such as 'sql_*', or leave component out to train all."
            )
    return Selector(patterns=patterns)


def _label(patterns: tuple[str, ...]) -> Selector:
    name = patterns[0]
    if len(patterns) > 1 or _GLOB & set(name):
        raise SettingError(
            f"component={list(patterns)!r} selects among parts, but this agent exposes no named parts: "
            "give one exact name, which labels all of its calls, or leave component out"
        )
    return Selector(patterns=patterns, label=name)
