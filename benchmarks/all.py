"""Every benchmark, one after the other: text to the screen, JSON under benchmarks/results/. `make bench` calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("update", "generation", "gateway", "store", "store_size", "injection", "first_update")


def main() -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    failed = []
    for name in NAMES:
        print(f"\n== {name}", flush=True)
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")], cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False
        )
        *text, last = done.stdout.rstrip().splitlines() or [""]
        print("\n".join(text), flush=True)
        if done.returncode:
            failed.append(name)
        else:
            (results / f"{name}.json").write_text(last + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
