"""The client lives in a stranger's process: it imports the standard library, wrapt, and rooms that do the same."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import agent_lightning.client

ROOM = Path(agent_lightning.client.__file__).parent
OURS = ("agent_lightning.client", "agent_lightning.errors", "agent_lightning.records", "agent_lightning.wire")


def imported(path: Path) -> set[str]:
    """Every module that the file names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            found |= {f"{module}.{name.name}" for name in node.names} if module == "agent_lightning" else {module}
    return found


def test_the_client_imports_nothing_but_the_standard_library_and_wrapt() -> None:
    files = sorted(ROOM.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        for module in imported(path):
            top = module.split(".", 1)[0]
            allowed = top in sys.stdlib_module_names or top == "wrapt" or module.startswith(OURS)
            assert allowed, f"{path.relative_to(ROOM)} imports {module}"
