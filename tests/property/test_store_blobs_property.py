"""Token ids and log-probabilities come back bit for bit; bodies come back as they were sent."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_lightning.records import nats, token_ids
from agent_lightning.store.rows import blob, unpacked
from agent_lightning.store.sqlite import SqliteStore
from store_cases import answered, make_call, make_rollout

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=[]))  # lone surrogates and zero bytes too
BODIES = st.dictionaries(
    TEXT,
    st.recursive(
        SCALARS | TEXT, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3), max_leaves=8
    ),
    max_size=4,
)


@given(st.lists(INT32), st.lists(FLOAT32))
def test_blobs_are_little_endian_and_come_back_bit_for_bit(ids: list[int], values: list[float]) -> None:
    assert blob(token_ids(ids), "i") == b"".join(value.to_bytes(4, "little", signed=True) for value in ids)
    assert unpacked(blob(token_ids(ids), "i"), "i") == token_ids(ids)
    assert unpacked(blob(nats(values), "f"), "f").tobytes() == nats(values).tobytes()


@given(st.lists(INT32))
def test_ids_of_another_width_are_kept_as_int32(ids: list[int]) -> None:
    assert blob(array("q", ids), "i") == blob(token_ids(ids), "i") == blob(ids, "i")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(BODIES, st.lists(INT32, max_size=5), st.lists(FLOAT32, max_size=5)), min_size=1, max_size=4))
def test_calls_come_back_as_they_were_sent(sent: list[tuple[dict[str, Any], list[int], list[float]]]) -> None:
    async def there_and_back() -> None:
        store = await SqliteStore.open()
        await store.enqueue([make_rollout()])
        claim = await store.claim("w", lease_seconds=60)
        assert claim is not None
        for number, (body, ids, values) in enumerate(sent):
            admitted = await store.admit(make_call(claim, f"c{number}", request=body))
            await store.complete(
                answered(admitted.call, suffix_ids=token_ids(ids), logprobs=nats(values), response=body, meta=body)
            )
        kept = await store.calls("r1")
        await store.close()
        assert [(c.request, c.response, c.meta) for c in kept] == [(body, body, body) for body, _, _ in sent]
        assert [(list(c.suffix_ids), list(c.logprobs)) for c in kept] == [(ids, values) for _, ids, values in sent]

    asyncio.run(there_and_back())
