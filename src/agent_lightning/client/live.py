"""A rollout that nobody queued: an injected agent called in production. Watching never hurts.

The server is asked for a rollout; when it does not answer, or the dice say no, the agent runs to its own provider.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
from typing import Any

from agent_lightning.client.breaker import Breaker, breaker_of
from agent_lightning.client.config import ClientConfig
from agent_lightning.client.link import Link, load_of
from agent_lightning.client.outbox import OUTBOX, Message
from agent_lightning.client.rendering import REPLAYED, as_json, brief
from agent_lightning.client.scope import Scope, task_for_agent

ASK_SECONDS = 2.0  # an agent waits no longer for the server
AUTO_RATE, AUTO_RANGE = 0.3, (0.1, 0.5)  # trace_sampling_rate = "auto": before the server has told its load, and then
_OK, _AGENT_ERROR = "ok", "agent_error"
_log = logging.getLogger("agent_lightning")


class LiveSource:
    """Begins and ends the live rollouts of one configuration."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._link = Link(config.endpoint, config.api_key)
        self._silent_before = False
        self._endpoint = config.endpoint

    def begin(self, task_input: Any) -> Scope:
        """A recorded scope, or one that leaves the agent alone. Blocks for at most ASK_SECONDS; never raises."""
        if random.random() >= self.rate() or breaker_of(self._endpoint, "calls").rests():
            return self._alone()
        breaker = breaker_of(self._endpoint, "rollouts")
        if not breaker.allows():
            return self._alone()
        rollout_id = f"live-{uuid.uuid4().hex}"
        try:
            shown = self._shown(task_input)
            claim = self._link.live(rollout_id=rollout_id, worker=worker_name(), task_input=shown, timeout=ASK_SECONDS)
            scope = Scope(
                rollout_id=claim["rollout_id"],
                attempt_id=claim["attempt_id"],
                key=claim["key"],
                mode=claim.get("mode", "live"),
                config=self._config,
                task=task_for_agent(claim.get("task")),
            )
            breaker.succeeded()
            return scope
        except Exception as error:  # an answer of another server, a name that no resolver takes: the agent runs on
            self._rest(breaker, error)
            return self._alone()

    def end(self, scope: Scope, *, error: BaseException | None, result: Any) -> None:
        """Tell the server, in the background, how a recorded rollout ended."""
        if scope.key is None:
            return
        key = scope.key
        self._canary(scope)
        outcome = _OK if error is None else _AGENT_ERROR
        detail = None if error is None else self._config.redacted(brief(error))
        shown = self._shown(result) if error is None else None

        def send(link: Link) -> None:
            rewards = scope.record.open_rewards()
            link.end(scope.attempt_id, key=key, outcome=outcome, detail=detail, result=shown, rewards=rewards)
            scope.record.acknowledge([reward["id"] for reward in rewards])

        OUTBOX.put_message(Message(kind="end", endpoint=self._config.endpoint, api_key=self._config.api_key, send=send))

    def close(self) -> None:
        self._link.close()

    def _canary(self, scope: Scope) -> None:
        if scope.record.calls_seen == 0 and not self._silent_before:
            self._silent_before = True
            _log.warning(
                "agent-lightning saw no LLM call while this agent ran: a cached answer, a client that is neither httpx nor "
                "httpx2, or a call from a process of its own (said once)"
            )

    def _alone(self) -> Scope:
        return Scope(rollout_id="", attempt_id="", key=None, mode="live", config=self._config)

    def _rest(self, breaker: Breaker, error: Exception) -> None:
        """An agent in production waits for no server twice."""
        OUTBOX.lose("live rollout")
        if breaker.open():
            _log.warning("agent-lightning does not record this agent for now, it runs on undisturbed: %s", error)

    def rate(self) -> float:
        """Share of rollouts to record now. Under "auto" 0.5 while the server is idle, 0.1 at its full load."""
        if self._config.trace_sampling_rate != "auto":
            return float(self._config.trace_sampling_rate)
        load = load_of(self._config.endpoint)
        low, high = AUTO_RANGE
        return AUTO_RATE if load is None else high - (high - low) * load

    def _shown(self, value: Any) -> Any:
        """A JSON value for display and replay, redacted."""
        return as_json(value, limits=REPLAYED, text=self._config.redacted)


def worker_name() -> str:
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"
