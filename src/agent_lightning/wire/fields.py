"""Fields that requests of several dialects share. Everything here raises RequestError with the name of the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.wire.form import Choice

MOST_CHOICES = 128


def model_of(body: Any) -> str:
    """The name of the model; the body must be an object."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is {type(body).__name__}: a JSON object is wanted")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("`model` is missing: the name of a model is wanted", field="model")
    return model


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAI's chat completions and completions have in common, by the names of `ChatRequest`."""
    options = body.get("stream_options") or {}
    return {
        "n": int(number(body, "n", 1, MOST_CHOICES, whole=True) or 1),
        "stop": stop_texts(body.get("stop")),
        "temperature": number(body, "temperature", 0, 2),
        "top_p": number(body, "top_p", 0, 1),
        "presence_penalty": number(body, "presence_penalty", -2, 2),
        "frequency_penalty": number(body, "frequency_penalty", -2, 2),
        "logit_bias": logit_bias(body.get("logit_bias")),
        "seed": seed(body),
        "include_usage": isinstance(options, dict) and bool(options.get("include_usage")),
    }


def tools_of(
    body: Mapping[str, Any], choice: Choice, read: Callable[[Any, str], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """The tools in the neutral form, none when the choice is "none". `read` makes one of them, given its place."""
    tools = body.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise RequestError(f"`tools` is {type(tools).__name__}: a list is wanted", field="tools")
    made = tuple(read(tool, f"tools[{position}]") for position, tool in enumerate(tools))
    return () if choice.mode == "none" else made


def refuse(body: Mapping[str, Any], harmless: Mapping[str, Sequence[Any]]) -> None:
    """Raises RequestError for a field that would change the result and cannot be honoured, unless it has a value with
    which it changes nothing."""
    for name, values in harmless.items():
        value = body.get(name)
        if value is not None and value not in values:
            wanted = f"; it can be left out or {' or '.join(map(repr, values))}" if values else ""
            raise RequestError(
                f"`{name}` is {str(value)[:100]!r}: it cannot be honoured and would change the result{wanted}",
                field=name,
                code="unsupported_value",
            )


def text_of(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"`{where}` is {type(value).__name__}: text is wanted", field=where)
    return value


def foreign_tool(kind: Any, where: str) -> RequestError:
    return RequestError(
        f"`{where}` is {kind!r}: the provider runs such a tool itself; only tools of the agent are understood",
        field=where,
        code="unsupported_value",
    )


def stop_texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError("`stop` is wanted as a text or a list of at most 16 texts, none empty", field="stop")
    return tuple(stops)


def logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError("`logit_bias` is wanted as an object of token ids and numbers", field="logit_bias")
    try:
        bias = {int(token): float(number) for token, number in value.items()}
    except (TypeError, ValueError) as error:
        raise RequestError(f"`logit_bias` is wanted as token ids and numbers: {error}", field="logit_bias") from error
    if not all(-100 <= number <= 100 for number in bias.values()):
        raise RequestError("`logit_bias` has a value outside -100 to 100", field="logit_bias")
    return bias


def seed(body: Mapping[str, Any]) -> int | None:
    value = number(body, "seed", -(2**63), 2**63, whole=True)
    return None if value is None else int(value)


def flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A field that is true, false or absent. Raises RequestError."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"`{name}` is {value!r}: true or false is wanted", field=name)
    return default if value is None else value


def number(body: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> float | None:
    """A field that is a number from low to high, or absent. Raises RequestError."""
    value = body.get(name)
    if value is None:
        return None
    wanted = f"a {'whole ' if whole else ''}number from {low} to {high} is wanted"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"`{name}` is {value!r}: {wanted}", field=name)
    if not low <= value <= high or (whole and value != int(value)):
        raise RequestError(f"`{name}` is {value}: {wanted}", field=name)
    return value
