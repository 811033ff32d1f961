"""What goes into a frame comes out of it, however the stream is cut."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_lightning import errors
from agent_lightning.errors import LightningError, PromptTooLong
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece, Sampling
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, Sample, UpdateReport
from agent_lightning.replica.frames import HEAD, Frames, decode, encode
from agent_lightning.replica.replica import ReplicaConfig

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(lambda values: array("i", values))
nats = st.lists(st.floats(-50, 0, width=32), max_size=8).map(lambda values: array("f", values))

pieces = st.builds(
    Piece,
    ids=ids,
    logprobs=nats,
    version=st.integers(0, 1000),
    finish_reason=st.sampled_from([None, "stop", "length", "aborted"]),
    top=st.lists(st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 0)), max_size=2).map(tuple), max_size=2).map(
        tuple
    ),
    prompt_tokens_cached=st.integers(0, 100),
    legal_mass=nats,
)
requests = st.builds(
    GenerateRequest,
    id=st.text(max_size=8),
    policy=st.text(max_size=8),
    prompt_ids=ids,
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        logit_bias=st.dictionaries(st.integers(0, 100), st.floats(-5, 5), max_size=3),
        stop_ids=st.lists(st.integers(0, 100), max_size=3).map(tuple),
        grammar=st.none() | st.text(max_size=8),
    ),
    noise_key=st.text(max_size=8),
    affinity=st.text(max_size=8),
    version=st.none() | st.integers(0, 9),
)
samples = st.builds(
    Sample,
    rollout_id=st.text(max_size=4),
    group_id=st.text(max_size=4),
    tokens=ids,
    trained=st.lists(st.integers(0, 1), max_size=8).map(lambda values: array("b", values)),
    logprobs=nats,
    advantages=nats,
    temperature=st.floats(0, 2),
    rollout_tokens=st.integers(1, 99),
    version=st.integers(0, 9),
    call_ids=st.lists(st.text(max_size=4), max_size=2).map(tuple),
)
batches = st.builds(
    Batch,
    policy=st.text(max_size=4),
    samples=st.lists(samples, max_size=3).map(tuple),
    rollouts=st.integers(1, 9),
    figures=st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False), max_size=2),
)
messages = st.one_of(
    st.builds(lambda piece: {"kind": "pieces", "pieces": (("a", piece),)}, pieces),
    st.builds(lambda request: {"kind": "generate", "request": request}, requests),
    st.builds(lambda batch: {"kind": "update", "number": 3, "batch": batch, "rate": 1e-5, "version": 2}, batches),
)


@given(st.lists(messages, max_size=4), st.integers(1, 40))
def test_messages_survive_a_stream_that_is_cut_anywhere(sent: list[dict[str, Any]], size: int) -> None:
    stream = b"".join(encode(message) for message in sent)
    frames, heard = Frames(), []
    for start in range(0, len(stream), size):
        heard += frames.feed(stream[start : start + size])
    assert heard == sent


@pytest.mark.parametrize(
    "record",
    [
        EngineLoad(
            running=1, waiting=2, capacity=3, tokens_per_second=4.5, busy_seconds=6.0, tokens=7, context_length=8
        ),
        UpdateReport(version=3, applied=False, reason="nan", figures={"learner.loss": float("inf")}),
        ReplicaConfig(model="tiny", learner=LearnerConfig(adam_betas=(0.5, 0.9))),
    ],
)
def test_reports_and_settings_arrive_equal(record: Any) -> None:
    assert _sent(record) == record


def test_an_adapter_arrives_bit_for_bit_and_writable() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32), np.zeros((4, 2), np.float32)
    adapter = Adapter(policy="p", version=5, rank=2, alpha=4.0, matrices={"layer": (a, b)})
    arrived = _sent(adapter)
    assert (arrived.version, arrived.scale, arrived.weights) == (5, 2.0, None)
    assert arrived.matrices["layer"][0].tobytes() == a.tobytes()
    assert arrived.matrices["layer"][0].flags.writeable


def test_numbers_of_numpy_arrive_as_plain_ones() -> None:
    assert _sent({"loss": np.float32(0.5), "count": np.int64(3)}) == {"loss": 0.5, "count": 3}


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LightningError)]
)
def test_every_error_of_the_tree_arrives_as_its_own_class(kind: type[LightningError]) -> None:
    arrived = _sent(kind("what came and what was wanted"))
    assert type(arrived) is kind
    assert str(arrived) == "what came and what was wanted"


def test_the_field_of_a_request_error_arrives() -> None:
    arrived = _sent(PromptTooLong("too long", field="messages", code="context_length_exceeded"))
    assert (arrived.field, arrived.code) == ("messages", "context_length_exceeded")


def test_a_strangers_error_arrives_under_its_name() -> None:
    arrived = _sent(IndexError("7"))
    assert type(arrived) is LightningError
    assert str(arrived) == "IndexError: 7"


def test_what_has_no_words_is_refused_where_it_is_sent() -> None:
    with pytest.raises(TypeError, match="a object cannot travel"):
        encode({"kind": object()})


def _sent(value: Any) -> Any:
    return decode(encode({"kind": "test", "value": value})[HEAD.size :])["value"]
