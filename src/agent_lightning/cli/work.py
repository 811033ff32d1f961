"""`agent-lightning work module:agent`: run an agent on rollouts that a training server has queued."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence

from agent_lightning.client.agent import load
from agent_lightning.client.config import PREFIX, read_config
from agent_lightning.runner.worker import FROM_SERVER, Worker, WorkerConfig

PLACEHOLDER = "agent-lightning-needs-no-key"


def work(arguments: Sequence[str]) -> None:
    """Claim until the run is over, or until SIGTERM or Ctrl-C: then finish what runs and leave."""
    given = _parser().parse_args(arguments)
    client = read_config({"endpoint": given.endpoint, "api_key": given.api_key, "component": given.component})
    lend_provider_keys()
    reward = load(given.reward) if given.reward else None
    config = WorkerConfig(client=client, run_id=given.run, slots=given.slots, own=_own(given.component))
    worker = Worker(load(given.agent), reward, config, notice=lambda text: print(text, file=sys.stderr, flush=True))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    worker.start()
    print(f"working for {client.endpoint} with {given.agent}; Ctrl-C ends after the rollouts that run", flush=True)
    while not stopped.wait(0.2) and not worker.join(timeout=0.0):
        pass
    worker.stop(timeout=given.drain)
    if worker.error is not None:
        raise worker.error
    print(f"{worker.finished} rollouts finished", flush=True)


def _own(component: Sequence[str] | None) -> frozenset[str]:
    """Settings that were given here, even if they are the defaults: the server's do not replace them."""
    names = {name for name in FROM_SERVER if os.environ.get(PREFIX + name.upper())}
    return frozenset(names | ({"component"} if component else set()))


def lend_provider_keys() -> None:
    """SDKs refuse to be made without a key, but calls that are routed need none of the provider's."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        os.environ.setdefault(name, PLACEHOLDER)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent-lightning work", description=work.__doc__)
    parser.add_argument("agent", help="module:attribute of the agent, or of a function that makes one")
    parser.add_argument("--reward", help="module:function that judges a result: (task, result, rollout) -> number")
    parser.add_argument("--endpoint", help="training server; default http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="the worker key; default AGENT_LIGHTNING_API_KEY")
    parser.add_argument("--component", action="append", help="train only this part of the agent; may be repeated")
    parser.add_argument("--run", help="work for this run only")
    parser.add_argument("--slots", type=int, default=8, help="rollouts at once; default 8")
    parser.add_argument("--drain", type=float, default=60.0, help="seconds that running rollouts get at the end")
    return parser
