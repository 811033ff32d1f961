"""Seconds from the command to the first update: the calculator agent's training, started fresh, ended after one step.

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
SETTINGS = ("total_steps=1", "warmup_steps=0", "test_rollouts=false", "val_tasks=")


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
            for mark in ("serving", "step 1"):
                if line.startswith(mark):
                    marks[mark] = round(time.perf_counter() - began, 2)
        assert process.wait() == 0
    result = {"benchmark": "first_update", "seconds_to_serving": marks["serving"], "seconds_to_step_1": marks["step 1"]}
    print(f"serving after {marks['serving']:.1f} s, first update after {marks['step 1']:.1f} s")
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
