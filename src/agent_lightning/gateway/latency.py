"""What the gateway measures of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Latencies:
    """Seconds that calls spent at the gateway less the engine's: the last 4,096 of them."""

    count: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=4096))

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)

    def quantile(self, share: float) -> float | None:
        """Nearest rank over the recent calls; None before the first one."""
        if not self._recent:
            return None
        ranked = sorted(self._recent)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


@dataclass(slots=True)
class Counts:
    """Logical calls since the start, by how they went."""

    asked: int = 0  # everything below, and what is still in flight
    completed: int = 0
    quarantined: int = 0  # choices among the completed whose text and ids do not belong together: never trained
    replayed: int = 0
    joined: int = 0
    refused: int = 0  # bad request, over-long prompt, conflict
    fenced: int = 0
    timeouts: int = 0
    broken: int = 0  # engine or store failed, or the client left

    @property
    def timeout_rate(self) -> float:
        """agent.step.timeout_rate: share of calls that hit max_step_timeout; 0.0 before the first one."""
        ended = self.completed + self.timeouts + self.broken
        return self.timeouts / ended if ended else 0.0


def figures(latencies: Latencies, counts: Counts) -> Mapping[str, float]:
    """Metrics by their declared names; the latency is the median of the recent calls."""
    made = {"agent.step.timeout_rate": counts.timeout_rate}
    median = latencies.quantile(0.5)
    return made if median is None else {**made, "gateway.latency": median}
