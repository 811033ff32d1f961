"""Caches of agent frameworks that answer in the model's place: siblings get one answer, the policy gets no call."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from agent_lightning.client.scope import RolloutRecord

_log = logging.getLogger("agent_lightning")
_lock = threading.Lock()
_said: set[str] = set()


def look_for_caches(record: RolloutRecord) -> None:
    """Note each cache that is switched on in `record.warnings`; log it the first time. Never raises."""
    for warning in (_langchain(), _dspy()):
        if warning is None:
            continue
        record.warn(warning)
        with _lock:
            first = warning not in _said
            _said.add(warning)
        if first:
            _log.warning("%s (said once)", warning)


def _langchain() -> str | None:
    settings = sys.modules.get("langchain_core.globals")
    cache = None if settings is None else settings.get_llm_cache()
    if cache is None:
        return None
    return (
        f"LangChain's LLM cache ({type(cache).__qualname__}) is on: a prompt seen before is answered by it, such a "
        "call is never sent and cannot be trained, and siblings share one answer; switch it off with "
        "langchain_core.globals.set_llm_cache(None) before the agent runs"
    )


def _dspy() -> str | None:
    # Read as it stands: asking DSPy for a cache that nobody has used yet would make one.
    cache: Any = vars(sys.modules["dspy"]).get("cache") if "dspy" in sys.modules else None
    if not (getattr(cache, "enable_disk_cache", False) or getattr(cache, "enable_memory_cache", False)):
        return None
    return (
        "DSPy's LLM cache is on: a prompt seen before is answered by it, such a call is never sent and cannot be "
        "trained, and siblings share one answer; switch it off with "
        "dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False) before the agent runs"
    )
