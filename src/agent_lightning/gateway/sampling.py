"""Who sets the sampling: in training and evaluation the run does, in live traffic the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_lightning.errors import SettingError
from agent_lightning.gateway.grammar import bound_to
from agent_lightning.inference.engine import Sampling
from agent_lightning.records import Mode, Rollout
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.tool_families import PARSERS

History = Literal["auto", "stitched", "rendered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    policy: str = "default"
    train_temperature: float = 1.0
    max_new_tokens: int = 512
    max_prompt_tokens: int | None = None  # None: whatever fits the context
    context_length: int = 4096  # prompt and new tokens
    run_seed: int = 0  # of live rollouts; queued ones bring the seed of their run
    history: History = "auto"  # "stitched" if the template is append-only, else as far as it is
    tool_parser: str = "auto"  # family of the model's tool calls; "auto": what the chat template writes
    hold_seconds: float = 60.0  # that a request waits while weights change
    attempts_kept: int = 256  # whose branches are in memory; others are read back when they speak again

    def __post_init__(self) -> None:
        if not 0.0 < self.train_temperature <= 10.0:
            raise SettingError(
                f"train_temperature is {self.train_temperature}: wanted above 0 to 10; greedy siblings do not differ"
            )
        for name, low in (("max_new_tokens", 1), ("context_length", 2), ("attempts_kept", 1)):
            if getattr(self, name) < low:
                raise SettingError(f"{name} is {getattr(self, name)}: wanted at least {low}")
        if not 0.0 <= self.hold_seconds <= 3600.0:
            raise SettingError(f"hold_seconds is {self.hold_seconds}: wanted 0 to 3600")
        if self.max_prompt_tokens is not None and not 1 <= self.max_prompt_tokens < self.context_length:
            raise SettingError(
                f"max_prompt_tokens is {self.max_prompt_tokens}: wanted 1 to {self.context_length - 1}, "
                "below context_length"
            )
        if self.history not in ("auto", "stitched", "rendered"):
            raise SettingError(f"history is {self.history!r}: wanted 'auto', 'stitched' or 'rendered'")
        if self.tool_parser not in ("auto", *PARSERS):
            raise SettingError(f"tool_parser is {self.tool_parser!r}: wanted 'auto', {', '.join(map(repr, PARSERS))}")

    @property
    def longest_prompt(self) -> int:
        """Tokens; one is left for an answer."""
        return self.max_prompt_tokens or self.context_length - 1


def sampling_for(
    mode: Mode,
    request: ChatRequest,
    config: GatewayConfig,
    *,
    prompt_tokens: int,
    stop_ids: tuple[int, ...],
    grammar: str | None = None,
) -> Sampling:
    """What is done, whatever was asked for. Train: the run's temperature and the full distribution, so that siblings
    differ and their log-probabilities are those that the learner computes. Val, test: greedy. Live: the client's.
    The form of the reply is the client's in all of them."""
    room = config.context_length - prompt_tokens
    limit = min(request.max_tokens or config.max_new_tokens, config.max_new_tokens, room)
    always: dict[str, Any] = {
        "max_new_tokens": max(limit, 1),
        "stop_ids": stop_ids,
        "top_logprobs": request.top_logprobs,
        "grammar": grammar,
    }
    if mode == "train":
        return Sampling(temperature=config.train_temperature, **always)
    if mode != "live":
        return Sampling(temperature=0.0, **always)
    return Sampling(
        temperature=_given(request.temperature, 1.0),
        top_p=_given(request.top_p, 1.0),
        top_k=request.top_k or 0,
        presence_penalty=_given(request.presence_penalty, 0.0),
        frequency_penalty=_given(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias,
        **always,
    )


def used(sampling: Sampling, request: ChatRequest) -> Mapping[str, Any]:
    """The record of what was done; `bound_to` is there where a grammar left some replies out."""
    bound = {} if sampling.grammar is None else {"bound_to": bound_to(request)}
    return {
        **bound,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()},
        "max_new_tokens": sampling.max_new_tokens,
        "stop": list(request.stop),
    }


def noise_key(rollout: Rollout, config: GatewayConfig, request: ChatRequest, order: int, choice: int) -> str:
    """Names the draws of one sequence: (run seed, task, sibling, call, choice).

    A queued task comes again in later steps and must not draw the same again, so its step is part of its name.
    A live rollout has no queue behind it: its id takes the task's place, and a client's seed, if given, everything's.
    """
    if rollout.mode != "live":
        return f"{rollout.seed}/{rollout.task.id}@{rollout.step}/{rollout.sibling}/{order}/{choice}"
    if request.seed is not None:
        return f"client/{request.seed}/{choice}"
    return f"{config.run_seed}/{rollout.id}/{rollout.sibling}/{order}/{choice}"


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
