"""docs/settings.md names every setting, and its defaults are those of the code."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.trainer.config import _PARTS, NAMES

PAGE = Path(__file__).resolve().parents[3] / "docs/settings.md"


def rows() -> dict[str, str]:
    """Default column by name."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        names, default = [*line.split("|"), "", "", ""][1:3]
        found |= {name: default.strip() for name in re.findall(r"`(\w+)`", names)}
    return found


def test_every_setting_is_there_and_no_other():
    assert rows().keys() == NAMES


def test_the_defaults_are_those_of_the_code():
    shown = rows()
    compared = 0
    for kind in (*_PARTS.values(), ReplicaConfig):
        for item in fields(kind):
            if item.name not in shown or not (found := re.fullmatch(r"`(.+)`", shown[item.name])):
                continue
            if item.default is MISSING and item.default_factory is MISSING:
                continue
            value = tomllib.loads(f"value = {found[1]}")["value"]
            own = item.default if item.default is not MISSING else item.default_factory()
            assert value == (list(own) if isinstance(own, tuple) else own), item.name
            compared += 1
    assert compared > 40
