"""What interception costs: microseconds by stage, measured only under profiling_mode, shown when the process ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

_lock = threading.RLock()  # a generator that is collected may count in the midst of counting
_spent: dict[str, tuple[int, float]] = {}  # stage -> (times, seconds)
_measuring = False


def begin(lost: Callable[[], Mapping[str, int]]) -> None:
    """Measure from now on; print a table with what `lost` says to stderr at the end of the process."""
    global _measuring
    if not _measuring:
        import atexit

        _measuring = True
        atexit.register(lambda: print(table(lost()), file=sys.stderr))


def spent(stage: str, seconds: float) -> None:
    """Time that one passage through `stage` took."""
    if _measuring:
        with _lock:
            times, total = _spent.get(stage, (0, 0.0))
            _spent[stage] = (times + 1, total + seconds)


def table(lost: Mapping[str, int]) -> str:
    with _lock:
        lines = [
            f"  {stage:<14}{times:>9} times {1e6 * total / times:>10.1f} us each"
            for stage, (times, total) in sorted(_spent.items())
        ]
    lines += [f"  lost {kind}: {number}" for kind, number in sorted(lost.items())]
    return "\n".join(["agent-lightning profile", *lines])
