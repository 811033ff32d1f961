"""What adapters know of installed frameworks by name is there: a version that moved it fails here, not in silence."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from agent_lightning.client.frameworks import FRAMEWORKS

PLACES = [
    *((f.module, d.module, f"{d.owner}.{method}") for f in FRAMEWORKS for d in f.doors for method in d.methods),
    *((f.module, part.module, part.path) for f in FRAMEWORKS for part in f.parts),
]


@pytest.mark.parametrize(("package", "module", "path"), PLACES)
def test_the_place_exists(package: str, module: str, path: str) -> None:
    pytest.importorskip(package, reason=f"needs {package}")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        if error.name and error.name.startswith(package):
            raise
        pytest.skip(f"{module} needs {error.name}")
    for name in path.split("."):
        found = getattr(found, name)
    assert callable(found)
