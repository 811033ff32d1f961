"""What agents take and return, as JSON: it ends, it never raises, and nothing that is secret slips through."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pytest
from client_loopback import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning import inject_runtime
from agent_lightning.client.outbox import OUTBOX
from agent_lightning.client.rendering import REPLAYED, SHOWN, Limits, as_json, brief


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class BrokenKey(Broken):
    __hash__ = object.__hash__


class BrokenMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise OSError(key)

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class Endless:
    """A message whose content is a message, for ever."""

    type = "ai"

    @property
    def content(self) -> Endless:
        return Endless()


def ring(width: int) -> list[Any]:
    made: list[Any] = []
    made.extend([made] * width)
    return made


def doubled(depth: int) -> list[Any]:
    """2 ** depth paths through `depth` lists."""
    made: list[Any] = []
    for _ in range(depth):
        made = [made, made]
    return made


def deep(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def test_messages_numbers_and_long_texts_are_shown_as_what_they_are() -> None:
    class Message:
        type, content = "ai", "hello"

    shown = as_json({"messages": [Message()], "x": float("nan"), "long": "a" * 9000, "set": {1}, "sum": Decimal("1.5")})
    assert shown["messages"] == [{"role": "ai", "content": "hello"}]
    assert (shown["x"], shown["set"], shown["sum"]) == ("nan", [1], "1.5")
    assert shown["long"] == "a" * 4000 + "... (9000 characters)"
    assert as_json(list(range(300)))[198:] == [198, 199, "... (300 items in all)"]
    assert as_json({n: n for n in range(300)})["..."] == "300 items in all"


def test_what_cannot_be_shown_takes_nothing_else_with_it() -> None:
    shown = as_json({"odd": Broken(), "map": BrokenMapping(), BrokenKey(): 1, "fine": 2})
    assert shown == {
        "odd": "<Broken that cannot be shown>",
        "map": "<BrokenMapping that cannot be shown>",
        "<BrokenKey that cannot be shown>": 1,
        "fine": 2,
    }


@pytest.mark.parametrize("limits", [SHOWN, REPLAYED])
@pytest.mark.parametrize(
    "value",
    [ring(1), ring(200), doubled(60), deep(100_000), Endless(), 10**10_000, ["x" * 100_000] * 10_000],
    ids=["ring", "wide ring", "doubled", "deep", "endless", "huge number", "repeated text"],
)
def test_what_has_no_end_is_cut(value: Any, limits: Limits) -> None:
    began = time.process_time()
    text = json.dumps(as_json(value, limits=limits), allow_nan=False)
    assert time.process_time() - began < 3.0
    assert len(text) < 2 * (limits.size + limits.text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_of_ordinary_size_is_kept_as_it_is(value: Any) -> None:
    assert as_json(value, limits=REPLAYED) == value


def test_every_text_is_redacted_before_it_is_cut() -> None:
    def hide(text: str) -> str:
        return text.replace("secret", "[redacted]")

    across = "a" * (SHOWN.text - 3) + "secret"
    shown = as_json({"secret": "my secret", "cut": across, "odd": ValueError("secret")}, text=hide)
    assert "secret" not in json.dumps(shown)
    assert shown["[redacted]"] == "my [redacted]"
    assert "secr" not in shown["cut"]


def test_an_error_whose_message_cannot_be_read_still_has_a_name() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert brief(ValueError("x")) == "ValueError: x"
    assert brief(Silent()) == "Silent whose message cannot be shown"


def test_an_agent_with_unspeakable_inputs_results_and_errors_runs_undisturbed(gateway: FakeServer) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Echo:
        def run(self, value: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

    agent, loop, far = Echo(), ring(3), deep(100_000)
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0):
        assert agent.run(loop) is loop
        assert agent.run(far) is far
        assert type(agent.run(odd := Broken())) is type(odd)
        with pytest.raises(Silent):
            agent.run(Silent())
    assert OUTBOX.flush(5.0)
    assert len(gateway.on("/live")) == 4
    assert [seen.body["outcome"] for seen in gateway.on("/end")] == ["ok", "ok", "ok", "agent_error"]
    assert gateway.on("/end")[3].body["detail"] == "Silent whose message cannot be shown"


def test_a_long_input_is_kept_whole_so_that_it_can_be_replayed(gateway: FakeServer) -> None:
    class Echo:
        def run(self, value: Any) -> None: ...

    agent, given_input = Echo(), {"documents": ["word " * 5_000] * 3, "numbers": list(range(1_000))}
    with inject_runtime(agent, endpoint=gateway.url, trace_sampling_rate=1.0):
        agent.run(given_input)
    assert OUTBOX.flush(5.0)
    assert gateway.on("/live")[0].body["input"] == given_input
