"""The size rules of the house: files, functions, and the 90th percentile of functions. Run by `make check`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES, FUNCTION_P90 = 400, 60, 30


def functions(path: Path) -> list[tuple[str, int]]:
    """(where, lines) of every function of a file, decorators and docstring included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def complaints(folder: Path) -> list[str]:
    found, lengths = [], []
    for path in sorted(folder.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            found.append(f"{path.relative_to(ROOT)} has {lines} lines: at most {FILE_LINES} are wanted")
        for where, length in functions(path):
            lengths.append(length)
            if length > FUNCTION_LINES:
                found.append(f"{where} has {length} lines: at most {FUNCTION_LINES} are wanted")
    p90 = sorted(lengths)[int(0.9 * len(lengths))] if lengths else 0
    if p90 > FUNCTION_P90:
        found.append(f"the 90th percentile of function lengths is {p90}: at most {FUNCTION_P90} is wanted")
    return found


if __name__ == "__main__":
    problems = complaints(ROOT / "src")
    print("\n".join(problems) or "sizes: fine")
    sys.exit(bool(problems))
