"""OpenAI completions, the request: body -> `ChatRequest` with a prompt of its own, which no template touches.

The prompt is text or token ids; one a call. Unknown fields are ignored; what cannot be honoured and would change the
result is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import MOST_CHOICES, ChatRequest, flag, logit_bias, number, seed, stop_texts

DEFAULT_TOKENS = 16  # OpenAI's own
_SAMPLING = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "n", "max_tokens",
)  # fmt: skip


def parse_completions(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is {type(body).__name__}: a JSON object is wanted")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("`model` is missing: the name of a model is wanted", field="model")
    _refuse(body)
    wanted = number(body, "logprobs", 0, 20, whole=True)
    options = body.get("stream_options") or {}
    prompt = _prompt(body.get("prompt"))
    return ChatRequest(
        model=model,
        messages=({"role": "prompt", "content": prompt if isinstance(prompt, str) else str(list(prompt))},),
        prompt=prompt,
        n=int(number(body, "n", 1, MOST_CHOICES, whole=True) or 1),
        stop=stop_texts(body.get("stop")),
        max_tokens=int(number(body, "max_tokens", 1, 1_000_000, whole=True) or DEFAULT_TOKENS),
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        presence_penalty=number(body, "presence_penalty", -2, 2),
        frequency_penalty=number(body, "frequency_penalty", -2, 2),
        logit_bias=logit_bias(body.get("logit_bias")),
        seed=seed(body),
        logprobs=wanted is not None,
        top_logprobs=int(wanted or 0),
        stream=flag(body, "stream"),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        requested={name: body[name] for name in _SAMPLING if body.get(name) is not None},
    )


def _prompt(value: Any) -> str | tuple[int, ...]:
    """One text or one list of ids, also where it is the only one of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int and 0 <= token < 1 << 31 for token in value):
        return tuple(value)
    raise RequestError("`prompt` is wanted as one text or one list of token ids, not empty", field="prompt")


def _refuse(body: Mapping[str, Any]) -> None:
    for name, harmless in (("echo", (None, False)), ("suffix", (None, "")), ("best_of", (None, 1, body.get("n")))):
        if body.get(name) not in harmless:
            raise RequestError(
                f"`{name}` is {body[name]!r}: it cannot be honoured", field=name, code="unsupported_value"
            )
