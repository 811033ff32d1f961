"""The README's curve: training reward and validation success by step, one colour a run, as a self-contained SVG.

python benchmarks/curve.py OUT.svg RUN [RUN ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent_lightning.trainer.charts import Series, lines

STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#667}.grid{stroke:#8884}.line{fill:none;stroke-width:2}"
    ".a{stroke:#2563eb;fill:#2563eb}.b{stroke:#d97706;fill:#d97706}.c{stroke:#059669;fill:#059669}"
    "polyline{fill:none!important}.hit{fill:none}</style>"
)


def success(run: Path) -> list[tuple[int, float]]:
    """(step, share of solved validation tasks) of every evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["seen"]["success"]) for row in rows if row["kind"] == "eval"]


def main() -> None:
    out, *runs = map(Path, sys.argv[1:])
    series = [Series(name=run.name, points=success(run), style=style) for run, style in zip(runs, "abc", strict=False)]
    chart = str(lines("validation success by step, each line a seed", series, percent=True))
    svg = chart[chart.index("<svg") : chart.rindex("</svg>") + len("</svg>")]
    head, body = svg.split(">", 1)
    if "xmlns" not in head:
        head += ' xmlns="http://www.w3.org/2000/svg"'
    out.write_text(f"{head}>{STYLE}{body}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
