"""A batch as bytes, so that an update that was committed can be repeated without sampling again."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import asdict
from typing import Any

import msgpack

from agent_lightning.errors import CheckpointError
from agent_lightning.records import Batch, Pair, Sample

FORMAT = 2
READABLE = (1, FORMAT)  # 1 knew neither steps nor pairs
_ARRAYS = {
    "tokens": "i",
    "trained": "b",
    "logprobs": "f",
    "advantages": "f",
    "step_ends": "i",
    "step_places": "i",
    "step_rewards": "f",
    "legal_mass": "f",
}


def encode(batch: Batch) -> bytes:
    rows = [
        {
            **{name: getattr(sample, name).tobytes() for name in _ARRAYS},
            "rollout_id": sample.rollout_id,
            "group_id": sample.group_id,
            "temperature": sample.temperature,
            "rollout_tokens": sample.rollout_tokens,
            "version": sample.version,
            "call_ids": list(sample.call_ids),
        }
        for sample in batch.samples
    ]
    body = {
        "format": FORMAT,
        "policy": batch.policy,
        "rollouts": batch.rollouts,
        "figures": dict(batch.figures),
        "algorithm": batch.algorithm,
        "pairs": [asdict(pair) for pair in batch.pairs],
        "samples": rows,
    }
    packed = msgpack.packb(body)
    assert packed is not None
    return zlib.compress(packed, level=1)


def decode(payload: bytes) -> Batch:
    """The batch that `encode` wrote down. Raises CheckpointError for bytes that are none."""
    try:
        body = msgpack.unpackb(zlib.decompress(payload))
        version = body["format"]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"a committed batch cannot be read ({error}): the store is damaged") from error
    if version not in READABLE:
        raise CheckpointError(f"a committed batch has format {version}, this version reads {FORMAT}")
    return Batch(
        policy=body["policy"],
        rollouts=body["rollouts"],
        figures=body["figures"],
        algorithm=body.get("algorithm", ""),
        pairs=tuple(Pair(**pair) for pair in body.get("pairs", ())),
        samples=tuple(_sample(row) for row in body["samples"]),
    )


def _sample(row: dict[str, Any]) -> Sample:
    arrays = {name: array(code) for name, code in _ARRAYS.items()}
    for name, values in arrays.items():
        values.frombytes(row.pop(name, b""))
    return Sample(**{**row, "call_ids": tuple(row["call_ids"]), **arrays})
