"""Settings of the client: explicit argument > environment > lightning.toml in the working directory > default."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_lightning.errors import SettingError

PREFIX = "AGENT_LIGHTNING_"
FILE = "lightning.toml"
RETRY_STRATEGIES = ("exponential_backoff", "fixed", "none")
_ALIASES = {"component_of_interest": "component"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})

Redact = Callable[[str], str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What an agent's process needs to know. Raises SettingError that names the field, the value and the range."""

    runtime_injection: bool = True
    endpoint: str = "http://127.0.0.1:8000"
    api_key: str | None = None
    component: tuple[str, ...] = ()  # names or globs, matched against any element of the path; empty: all
    trace_sampling_rate: float | str = 0.3  # share of live rollouts recorded, in (0, 1], or "auto"
    async_data_upload: bool | str = "auto"
    max_step_timeout: float = 30.0  # seconds; "30s", "500ms", "2m" are read too
    retry_strategy: str = "exponential_backoff"
    profiling_mode: bool = False
    debug_trace: bool = False
    redact: Redact = None  # applied to text before anything is queued

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "api_key")
        return f"ClientConfig({', '.join(shown)})"

    def redacted(self, text: str) -> str:
        """`text` after the redactions, which never raise: text that could not be redacted is left out."""
        if self.redact is None:
            return text
        if not callable(self.redact):
            for pattern in self.redact:
                text = re.sub(pattern, "[redacted]", text)
            return text
        try:
            return str(self.redact(text))
        except Exception as error:
            return f"[left out: redact raised {type(error).__name__}]"


def read_config(explicit: Mapping[str, Any], *, folder: Path | None = None) -> ClientConfig:
    """Join the four sources. An explicit value of None counts as not given. Raises SettingError."""
    given = {name: value for name, value in _canonical(explicit, "argument").items() if value is not None}
    path = (folder or Path.cwd()) / FILE
    return ClientConfig(**{**_from_file(path), **_from_environment(), **given})


def _names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(ClientConfig))


def _canonical(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace aliases and refuse what is unknown."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        target = _ALIASES.get(name, name)
        if target not in _names():
            raise SettingError(
                f"{where}: unknown client setting {name!r}; known are: {', '.join(_names())}. "
                "Settings of the training itself belong into the server's file."
            )
        if target in found and value is not None and found[target] is not None:
            raise SettingError(f"{where}: {target!r} is given twice, also as {name!r}; give it once")
        if value is not None or target not in found:
            found[target] = value
    return found


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*_names(), *_ALIASES):
        value = os.environ.get(PREFIX + name.upper())
        if value:
            found.setdefault(_ALIASES.get(name, name), value)
    return found


def _from_file(path: Path) -> dict[str, Any]:
    """The [client] table, where unknown names are refused; top-level names of other parts are not ours to judge."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: this is no valid TOML: {error}") from error
    known = {*_names(), *_ALIASES}
    top = {name: value for name, value in content.items() if name in known}
    table = content.get("client", {})
    if not isinstance(table, dict):
        raise SettingError(f"{path}: [client] must be a table, it is {table!r}")
    return {**_canonical(top, str(path)), **_canonical(table, f"{path} [client]")}


def _refuse(name: str, value: Any, wanted: str) -> SettingError:
    return SettingError(f"{name} = {value!r}: {wanted} is wanted")


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _refuse(name, value, "true or false")


def _endpoint(name: str, value: Any) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or "?" in value or "#" in value:
        raise _refuse(name, value, "an address such as 'http://127.0.0.1:8000'")
    return value.rstrip("/").removesuffix("/v1")


def _key(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.isascii() and value.isprintable() and value.strip() == value):
        return value or None
    raise SettingError(f"{name}: a key of printable ASCII characters without spaces around it is wanted")


def _component(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item.strip() for item in items):
        raise _refuse(name, value, "a name, a glob, or a list of them")
    return tuple(item.strip() for item in items)


def _rate(name: str, value: Any) -> float | str:
    if value == "auto":
        return "auto"
    number = _number(value)
    if number is None or not 0.0 < number <= 1.0:
        raise _refuse(name, value, "'auto' or a number in (0, 1]")
    return number


def _upload(name: str, value: Any) -> bool | str:
    if value == "auto":
        return "auto"
    try:
        return _boolean(name, value)
    except SettingError:
        raise _refuse(name, value, "true, false or 'auto'") from None


def _timeout(name: str, value: Any) -> float:
    seconds = _number(value)
    if seconds is None and isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|h)\s*", value)
        seconds = float(match[1]) * _UNITS[match[2]] if match else None
    if seconds is None or not 0.05 <= seconds <= 3600.0:
        raise _refuse(name, value, "a time from '50ms' to '1h', such as '30s'")
    return seconds


def _strategy(name: str, value: Any) -> str:
    if value not in RETRY_STRATEGIES:
        raise _refuse(name, value, f"one of {', '.join(RETRY_STRATEGIES)}")
    return value


def _redact(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, list | tuple):
        raise _refuse(name, value, "a callable or a list of regular expressions")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise _refuse(name, pattern, f"a regular expression ({error})") from error
    return tuple(patterns)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "runtime_injection": _boolean,
    "endpoint": _endpoint,
    "api_key": _key,
    "component": _component,
    "trace_sampling_rate": _rate,
    "async_data_upload": _upload,
    "max_step_timeout": _timeout,
    "retry_strategy": _strategy,
    "profiling_mode": _boolean,
    "debug_trace": _boolean,
    "redact": _redact,
}
