"""How an attempt ended, read from what the agent raised. Failures are not zeros: each gets its own name."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_lightning.client.scope import RolloutRecord
from agent_lightning.records import Outcome

LONGEST_DETAIL = 4000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    outcome: Outcome
    detail: str | None = None  # cut to LONGEST_DETAIL
    result: Any = None
    rewards: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", None if self.detail is None else _cut(self.detail))

    def refused(self, reason: BaseException) -> Ending:
        """What to send instead of an ending that the server does not take: little enough to be taken."""
        good = self.outcome is Outcome.OK
        why = f"the server refused the end of the attempt: {reason}"
        return Ending(
            outcome=Outcome.NO_REWARD if good else self.outcome, detail=f"{why} | {self.detail}" if self.detail else why
        )


def _cut(text: str) -> str:
    """Of valid characters, at most LONGEST_DETAIL of them; beginning and end are kept."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= LONGEST_DETAIL:
        return text
    half = (LONGEST_DETAIL - 40) // 2
    return f"{text[:half]} ... ({len(text)} characters) ... {text[-half:]}"


def ending_of(error: BaseException, record: RolloutRecord) -> Ending | None:
    """The ending that an agent's exception means; None when the attempt was taken from us (410)."""
    for link in _chain(error):
        status, code = getattr(link, "status_code", None), _code(link)
        if status == 410:
            return None
        if code == "context_length_exceeded":
            return Ending(outcome=Outcome.OVER_LONG_PROMPT, detail=str(link))
        if code == "step_timeout":
            return Ending(outcome=Outcome.TIMEOUT, detail=f"an LLM call took longer than max_step_timeout: {link}")
    if record.timeouts:
        return Ending(outcome=Outcome.TIMEOUT, detail=f"an LLM call took longer than max_step_timeout: {error}")
    if record.failures and any(_is_ours(link) for link in _chain(error)):
        return Ending(outcome=Outcome.INFRASTRUCTURE, detail=f"{type(error).__name__}: {error}")
    return Ending(outcome=Outcome.AGENT_ERROR, detail=brief(error))


def _code(error: BaseException) -> Any:
    """The server's code for what went wrong; OpenAI's clients know it as an attribute, Anthropic's have the body."""
    body = getattr(error, "body", None)
    told = body.get("error") if isinstance(body, dict) else None
    return getattr(error, "code", None) or (told.get("code") if isinstance(told, dict) else None)


def brief(error: BaseException, frames: int = 3) -> str:
    """Type, message and the innermost frames."""
    stack = traceback.extract_tb(error.__traceback__)[-frames:]
    where = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(stack))
    return f"{type(error).__name__}: {error}" + (f" (at {where})" if where else "")


def _is_ours(error: BaseException) -> bool:
    """Whether the training server, or the way to it, failed: no status at all, 429 or 5xx."""
    status = getattr(error, "status_code", None)
    if status is None:
        return "connection" in type(error).__name__.lower() or isinstance(error, ConnectionError)
    return status == 429 or status >= 500


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
