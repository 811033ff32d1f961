"""The smallest true circle: a server with store, gateway and learner, and an agent's process that claims rollouts."""

from __future__ import annotations

import json
import re
from pathlib import Path

from small_runs import command, settings_file


def test_an_agent_in_another_process_gets_new_weights(tmp_path: Path):
    file = settings_file(tmp_path, workers=0)
    server = command("serve", str(file), "--run", "circle", "--port", "0", "--plain")
    assert server.stdout is not None
    seen: list[str] = []
    endpoint = None
    for line in server.stdout:
        seen.append(line)
        found = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
        if found:
            endpoint = found.group(1)
            break
    assert endpoint is not None, "".join(seen)
    worker = command(
        "work",
        "examples.lookup.agent:answer",
        "--reward",
        "examples.lookup.agent:reward",
        "--endpoint",
        endpoint,
        "--slots",
        "4",
    )
    rest, _ = server.communicate(timeout=60)
    assert server.returncode == 0, rest
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert "36 rollouts finished" in said
    rows = [json.loads(line) for line in (tmp_path / "runs/circle/metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows if row["kind"] == "step"] == [1, 2, 3]
