"""/metrics in Prometheus' text format, with the declared names, units and helps."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent_lightning.gateway.latency import figures
from agent_lightning.metrics.declared import METRICS
from agent_lightning.server.state import ServerState


class _Live(Collector):
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        gateway = self._state.gateway
        for name, value in figures(gateway.latencies, gateway.counts).items():
            yield GaugeMetricFamily(name.replace(".", "_"), METRICS[name].help, value=value)
        calls = CounterMetricFamily("gateway_calls", "logical calls by how they went", labels=["kind"])
        for kind in ("completed", "replayed", "joined", "refused", "fenced", "timeouts", "broken", "quarantined"):
            calls.add_metric([kind], getattr(gateway.counts, kind))
        yield calls
        lost = CounterMetricFamily("client_lost", METRICS["client.lost"].help, labels=["kind"])
        for kind, count in self._state.lost.by_kind().items():
            lost.add_metric([kind], count)
        yield lost
        yield GaugeMetricFamily("gateway_in_flight", "calls being served now", value=gateway.in_flight)


def exposed(state: ServerState) -> str:
    registry = CollectorRegistry()
    registry.register(_Live(state))
    return generate_latest(registry).decode()
