"""Client settings: where they come from, and what is refused. Components, resolved against an agent's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning.client.component import EVERYTHING, select
from agent_lightning.client.config import ClientConfig, read_config
from agent_lightning.errors import SettingError


def test_an_argument_beats_the_environment_beats_the_file_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lightning.toml").write_text(
        'max_step_timeout = "1m"\ngroup_size = 8\n[client]\nendpoint = "http://file:1"\nretry_strategy = "fixed"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("AGENT_LIGHTNING_RETRY_STRATEGY", "none")
    monkeypatch.setenv("AGENT_LIGHTNING_COMPONENT_OF_INTEREST", "writer, sql_*")
    monkeypatch.setenv("AGENT_LIGHTNING_PROFILING_MODE", "no")
    read = read_config({"endpoint": None, "trace_sampling_rate": 1})
    assert read.endpoint == "http://file:1"
    assert read.retry_strategy == "none"
    assert read.component == ("writer", "sql_*")
    assert (read.max_step_timeout, read.trace_sampling_rate, read.profiling_mode) == (60.0, 1.0, False)
    assert read_config({"retry_strategy": "fixed"}).retry_strategy == "fixed"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("trace_sampling_rate", 0, r"'auto' or a number in \(0, 1\]"),
        ("trace_sampling_rate", "nan", r"\(0, 1\]"),
        ("trace_sampling_rate", True, r"\(0, 1\]"),
        ("max_step_timeout", "soon", "from '50ms' to '1h'"),
        ("max_step_timeout", float("nan"), "from '50ms' to '1h'"),
        ("max_step_timeout", "2h", "from '50ms' to '1h'"),
        ("retry_strategy", "always", "one of exponential_backoff, fixed, none"),
        ("async_data_upload", "sometimes", "true, false or 'auto'"),
        ("runtime_injection", "maybe", "true or false"),
        ("endpoint", "localhost:8000", "an address such as"),
        ("endpoint", 8000, "an address such as"),
        ("endpoint", "http://h:99999", "an address such as"),
        ("component", ["a", 1], "a name, a glob, or a list"),
        ("component", "", "a name, a glob, or a list"),
        ("redact", ["("], "a regular expression"),
        ("api_key", "two words\n", "a key of printable"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_range(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(SettingError, match=wanted) as refusal:
        ClientConfig(**{name: value})
    assert name in str(refusal.value)


def test_unknown_names_are_refused_where_they_are_ours_to_judge() -> None:
    with pytest.raises(SettingError, match="unknown client setting 'colour'"):
        read_config({"colour": 1})
    with pytest.raises(SettingError, match="given twice"):
        read_config({"component": "a", "component_of_interest": "b"})
    Path("lightning.toml").write_text("[client]\ncolour = 1\n", encoding="utf-8")
    with pytest.raises(SettingError, match=r"lightning.toml \[client\]: unknown client setting 'colour'"):
        read_config({})
    Path("lightning.toml").write_text("[client\n", encoding="utf-8")
    with pytest.raises(SettingError, match="no valid TOML"):
        read_config({})


def test_a_key_is_never_shown_and_redaction_never_raises() -> None:
    config = ClientConfig(api_key="alw-secret", redact=[r"\d{4}"])
    assert "alw-secret" not in repr(config)
    assert config.redacted("pin 1234") == "pin [redacted]"

    def broken(text: str) -> str:
        raise KeyError(text)

    assert ClientConfig(redact=broken).redacted("secret") == "[left out: redact raised KeyError]"


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("1.5m", 90.0), (2, 2.0), ("7", 7.0)])
def test_times_are_read_with_their_units(text: Any, seconds: float) -> None:
    assert ClientConfig(max_step_timeout=text).max_step_timeout == seconds


def test_a_selector_looks_at_every_element_of_the_path() -> None:
    selector = select(("sql_*",), {"sql_writer", "checker"})
    assert selector.matches(("team", "sql_writer", "model"))
    assert not selector.matches(("team", "checker"))
    assert not selector.matches(())
    assert select((), {"a"}) is EVERYTHING
    assert select(("writer",), ()).label == "writer"
    with pytest.raises(SettingError, match="parts are: checker, sql_writer"):
        select(("sql_*", "chekcer"), {"sql_writer", "checker"})
    with pytest.raises(SettingError, match="one exact name"):
        select(("a", "b"), ())


@given(st.lists(st.text("abc", min_size=1), min_size=1), st.text("abc", min_size=1))
def test_an_exact_name_selects_the_paths_that_contain_it_and_no_other(path: list[str], name: str) -> None:
    assert select((name,), {name}).matches(tuple(path)) == (name in path)
