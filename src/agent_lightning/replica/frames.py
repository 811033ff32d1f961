"""Messages between the main process and a child: length-prefixed msgpack frames on a stream socket.

A message is a dict with a `kind`. Records travel as positional fields (both ends run the same code), arrays as their
bytes, errors by the name of their class. Sequences arrive as tuples. No torch here.
"""

from __future__ import annotations

import dataclasses
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgpack
import numpy as np

from agent_lightning import errors
from agent_lightning.errors import LightningError, RequestError
from agent_lightning.inference.engine import EngineLoad, GenerateRequest, Piece, Sampling
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, Pair, Sample, UpdateReport
from agent_lightning.replica.replica import ReplicaConfig

Message = dict[str, Any]

HEAD = struct.Struct("!Q")  # bytes of the frame that follows

_ARRAY, _RECORD, _NDARRAY, _ERROR = 1, 2, 3, 4
_RECORDS: tuple[type, ...] = (
    GenerateRequest,
    Sampling,
    Piece,
    EngineLoad,
    Batch,
    Sample,
    UpdateReport,
    Adapter,
    ReplicaConfig,
    LearnerConfig,
    Pair,
)
_CODES = {record: code for code, record in enumerate(_RECORDS)}
_FIELDS = {record: tuple(field.name for field in dataclasses.fields(record)) for record in _RECORDS}


def encode(message: Message) -> bytes:
    """One frame, head included."""
    body = _pack(message)
    return HEAD.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """The message of one frame, given without its head."""
    return _unpack(body)


class Frames:
    """Cuts a byte stream into messages; what is incomplete waits for the next bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._bytes += data
        while len(self._bytes) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            body = bytes(memoryview(self._bytes)[HEAD.size : end])
            del self._bytes[:end]
            yield decode(body)


def _pack(value: Any) -> bytes:
    packed = msgpack.packb(value, default=_foreign)
    assert packed is not None
    return packed


def _unpack(body: bytes) -> Any:
    return msgpack.unpackb(body, ext_hook=_native, use_list=False, strict_map_key=False)


def _foreign(value: Any) -> Any:
    """What msgpack has no word for."""
    code = _CODES.get(type(value))
    if code is not None:
        fields = [getattr(value, name) for name in _FIELDS[type(value)]]
        return msgpack.ExtType(_RECORD, _pack((code, fields)))
    if isinstance(value, array):
        return msgpack.ExtType(_ARRAY, value.typecode.encode() + value.tobytes())
    if isinstance(value, np.ndarray):
        flat = np.ascontiguousarray(value)
        return msgpack.ExtType(_NDARRAY, _pack((flat.dtype.str, flat.shape, flat.tobytes())))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, BaseException):
        details = (getattr(value, "field", None), getattr(value, "code", None))
        return msgpack.ExtType(_ERROR, _pack((type(value).__name__, str(value), *details)))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot travel between processes")


def _native(code: int, body: bytes) -> Any:
    if code == _ARRAY:
        values = array(chr(body[0]))
        values.frombytes(body[1:])
        return values
    if code == _RECORD:
        index, fields = _unpack(body)
        record = _RECORDS[index]
        return record(**dict(zip(_FIELDS[record], fields, strict=True)))
    if code == _NDARRAY:
        kind, shape, flat = _unpack(body)
        return np.frombuffer(flat, dtype=kind).reshape(shape).copy()
    assert code == _ERROR, f"unknown extension {code}"
    return _error(*_unpack(body))


def _error(name: str, text: str, field: str | None, code: str | None) -> LightningError:
    """The error again, as the same class of `errors.py`; a stranger's class becomes the root."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LightningError)):
        return LightningError(f"{name}: {text}")
    if issubclass(kind, RequestError):
        return kind(text, field=field, code=code or "invalid_request")
    return kind(text)
