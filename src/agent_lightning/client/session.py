"""A claimed rollout, entered: what a worker wraps around the agent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_lightning.client import naming, report, scope
from agent_lightning.client.agent import adapter_for
from agent_lightning.client.caches import look_for_caches
from agent_lightning.client.component import select
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.scope import RolloutRecord, Scope
from agent_lightning.client.semconv import Status
from agent_lightning.errors import SettingError

_CLAIM = ("rollout_id", "attempt_id", "mode", "key")


def scope_of(claim: Mapping[str, Any], *, config: ClientConfig, agent: Any = None) -> Scope:
    """The scope of a claim as it came over the wire. With `agent`, config.component is resolved against its parts."""
    missing = [name for name in _CLAIM if name not in claim]
    if missing:
        raise SettingError(f"the server's claim lacks {', '.join(missing)}: client and server differ in version")
    seconds = claim.get("deadline_seconds")
    selector, label = None, None
    if agent is not None:
        framework = adapter_for(agent)
        label = framework.agent_name(agent)
        selector = select(config.component, framework.components(agent)) if config.component else None
    entered = Scope(
        rollout_id=claim["rollout_id"],
        attempt_id=claim["attempt_id"],
        key=claim["key"],
        mode=claim["mode"],
        config=config,
        task=scope.task_for_agent(claim.get("task")),
        deadline=None if seconds is None else time.monotonic() + float(seconds),
    )
    return entered if selector is None else naming.in_agent(entered, selector, label)


@contextmanager
def claimed(claim: Mapping[str, Any], *, config: ClientConfig, agent: Any = None) -> Iterator[RolloutRecord]:
    """Run the body as this rollout: calls of the trained components go to the server. Needs `install()` once.

    Enter it in the thread or task that runs the agent; calls made from threads and tasks begun inside belong to it.
    When it ends, `record.warnings` says what makes the rollout suspect, such as an LLM cache that answers for the policy.
    """
    entered = scope_of(claim, config=config, agent=agent)
    status = Status.ERROR
    try:
        with scope.active(entered) as record:
            yield record
        status = Status.OK
    finally:
        look_for_caches(entered.record)
        report.rollout_span(entered, name="/".join(entered.component) or "agent", status=status)
