"""OpenAI completions, the request: body -> `ChatRequest` with a prompt of its own, which no template touches.

The prompt is text or token ids; one a call. Unknown fields are ignored; what cannot be honoured and would change the
result is refused by its name.
"""

from __future__ import annotations

from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.fields import flag, model_of, number, refuse, sampling_of

DEFAULT_TOKENS = 16  # OpenAI's own
_SAMPLING = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "n", "max_tokens",
)  # fmt: skip


def parse_completions(body: Any) -> ChatRequest:
    """Raises RequestError with the name of the field that is wrong or cannot be honoured."""
    model = model_of(body)
    refuse(body, {"echo": (False,), "suffix": ("",), "best_of": (1, body.get("n"))})
    wanted = number(body, "logprobs", 0, 20, whole=True)
    prompt = _prompt(body.get("prompt"))
    return ChatRequest(
        model=model,
        messages=({"role": "prompt", "content": prompt if isinstance(prompt, str) else str(list(prompt))},),
        prompt=prompt,
        max_tokens=int(number(body, "max_tokens", 1, 1_000_000, whole=True) or DEFAULT_TOKENS),
        **sampling_of(body),
        logprobs=wanted is not None,
        top_logprobs=int(wanted or 0),
        stream=flag(body, "stream"),
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
