"""A call: one LLM request and its response, with the exact tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Dialect = Literal["chat", "completions", "responses", "messages"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "aborted"]


class CallStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"  # the only status that is trained
    BROKEN = "broken"  # failed or abandoned; a retry with the same id generates anew
    SEALED = "sealed"  # still running when its attempt ended


def token_ids(values: Any = ()) -> array[int]:
    """Token ids as a compact signed 32-bit array."""
    return array("i", values)


def nats(values: Any = ()) -> array[float]:
    """Log-probabilities as a compact float32 array."""
    return array("f", values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    id: str  # minted by the client once per logical call; choice i > 0 of an `n` request appends ".i"
    attempt_id: str  # (attempt_id, id) is unique
    rollout_id: str
    policy: str
    component: str  # path of names, outermost first, joined by "/"; "" when unknown
    dialect: Dialect
    order: int  # admission order at the gateway within the rollout, from 0
    index: int  # step index: calls that overlap in time under one parent span share it
    parent_call_id: str | None  # the call whose tokens this prompt extends; None starts a branch
    prompt_offset: int  # tokens of the prompt that come from the parent (its prompt + its sampled ids)
    suffix_ids: array[int]  # the rest of the prompt: full prompt = parent's prompt + parent's sampled + this
    sampled_ids: array[int]  # what the policy wrote, end-of-turn token included
    logprobs: array[float]  # nats under the weights and temperature that sampled; aligned with sampled_ids
    legal_mass: array[float] = field(default_factory=nats)  # of a constrained call: Piece.legal_mass, else empty
    version_from: int  # policy version of the first sampled token
    version_to: int  # and of the last
    status: CallStatus
    finish_reason: FinishReason | None
    request: Mapping[str, Any]  # body as it came, opaque
    response: Mapping[str, Any] | None  # body as it was answered; replayed to a retry
    request_hash: str  # SHA-256 of the canonical body: a retry with another body is not a retry
    requested_sampling: Mapping[str, Any]  # what the client asked for
    used_sampling: Mapping[str, Any]  # what was done: temperature, top_p, ...
    parent_span: str | None = None
    error: str | None = None
    admitted_at: float = 0.0  # Unix seconds
    first_token_at: float | None = None
    finished_at: float | None = None
    trainable: bool = True  # False: the tokens failed a check; `error` names it
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spoken(self) -> bool:
        """Completed by a policy; what a component's own provider answered has no tokens of ours."""
        return self.status is CallStatus.COMPLETED and self.response is not None and "choices" in self.response
