"""Lookups straight from their bytes: a message of thousands of blocks is read without an object for each.

Gateways send hashes of eight bytes, one after the other. In the message they then lie ten bytes apart (the field's
tag, the length 8, the hash), so that strides check and gather all of them, and equal token counts behind them are one
comparison. Beside these two columns only the ids and the objective are read here. Whatever else a message has, and
every malformed one, is left to the generated class, which alone says what a message means.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.columns import Equal, PackedHashes
from inference_cache.domain.models import KEY_BYTES
from inference_cache.domain.requests import LookupRequest
from inference_cache.rpc.convert import lookup_request

_LENGTH_DELIMITED = 2
_TAGS = {
    name: field.number << 3 | _LENGTH_DELIMITED
    for name, field in pb.LookupRouteRequest.DESCRIPTOR.fields_by_name.items()
}
_IDS = {_TAGS[name]: name for name in ("model_id", "tenant_id", "hash_scheme", "adapter_id")}
_SLO, _HASHES, _COUNTS = _TAGS["slo"], _TAGS["block_hashes"], _TAGS["block_token_counts"]
_RECORD_BYTES = 2 + KEY_BYTES

_MORE = 0x80
"""The bit of a varint's byte that says that another one follows."""

_MAX_COUNT_BYTES = 4
"""Widest varint of a count that is read here: below 2^28, where neither sign nor truncation plays a role."""


class _UnusualError(Exception):
    """The message is not laid out as gateways lay theirs out."""


def read_lookup(data: bytes) -> LookupRequest:
    """Return the domain's view of a serialized ``LookupRouteRequest``.

    Raises:
        DecodeError: the bytes are no such message.
    """
    try:
        return _read(data)
    except (_UnusualError, IndexError, UnicodeDecodeError, DecodeError):
        return lookup_request(pb.LookupRouteRequest.FromString(data))


def _read(data: bytes) -> LookupRequest:
    """Read a message that has each field at most once, so that no message costs a long loop.

    Raises:
        _UnusualError: it has something else.
        IndexError: it ends within a field, or a length is longer than lengths are.
        UnicodeDecodeError: an id is no text.
        DecodeError: the objective is no message.
    """
    found: dict[str, Any] = {}
    at, blocks = 0, 0
    while at < len(data):
        tag = data[at]
        name: str | None
        value: object
        if tag == _HASHES:
            name, (at, value) = "block_hashes", _hashes(data, at)
            blocks = len(value)
        else:
            size, start = _varint(data, at + 1)
            at = start + size
            payload = data[start:at]
            if name := _IDS.get(tag):
                value = payload.decode()
            elif tag == _COUNTS:
                name, value = "block_token_counts", _equal_counts(payload, blocks)
            elif tag == _SLO:
                name, value = "ttft_ms", pb.SLO.FromString(payload).ttft_ms
            else:
                raise _UnusualError
        if name in found or at > len(data):
            raise _UnusualError
        found[name] = value
    return LookupRequest(**found)


def _hashes(data: bytes, start: int) -> tuple[int, PackedHashes]:
    """Read a run of hashes of eight bytes: where it ends, and the hashes."""
    tags = data[start : len(data) - _RECORD_BYTES + 1 : _RECORD_BYTES]
    number = len(tags) - len(tags.lstrip(b"%c" % _HASHES))
    end = start + number * _RECORD_BYTES
    if not number or data[start + 1 : end : _RECORD_BYTES] != b"%c" % KEY_BYTES * number:
        raise _UnusualError
    records = bytearray(memoryview(data)[start:end])
    del records[::_RECORD_BYTES]  # the tags
    del records[:: _RECORD_BYTES - 1]  # the lengths
    return end, PackedHashes(bytes(records))


def _equal_counts(payload: bytes, blocks: int) -> Equal:
    """Read packed counts that are as many as the blocks and all the same."""
    value, width = _varint(payload, 0)
    if width > _MAX_COUNT_BYTES or payload != payload[:width] * blocks:
        raise _UnusualError
    return Equal(value, blocks)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, at
    raise IndexError(at)
