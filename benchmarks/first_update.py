"""Seconds from `make quickstart` to its first update, part by part: the same command in a clone that is installed.

The held-out tasks are measured before the first update as in the quickstart; the run ends after one step. What an
installation takes hangs on the network and is not in it.

    python benchmarks/first_update.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ("total_steps=1", "warmup_steps=0", "eval_every=1000")
MARKS = ("serving", "test, before", "validation", "step 1")  # beginnings of the lines that end a part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    marks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as runs:
        sets = [word for setting in (*SETTINGS, f"runs={runs}") for word in ("--set", setting)]
        command = [
            sys.executable,
            "-m",
            "agent_lightning.cli",
            "train",
            "examples/calculator/lightning.toml",
            "--plain",
        ]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, *sets],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            for mark in MARKS:
                if line.startswith(mark):
                    marks.setdefault(mark, round(time.perf_counter() - began, 2))
            if "step 1" in marks:
                process.terminate()
                break
        process.communicate()
    result = {"benchmark": "first_update", "seconds_until": marks}
    print("seconds until: " + ", ".join(f"{mark} {marks[mark]:.1f}" for mark in MARKS))
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
