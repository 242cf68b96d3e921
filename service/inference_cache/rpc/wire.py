"""Lookups straight from their bytes: a message of thousands of blocks is read without an object for each.

Gateways send hashes of eight bytes, one after the other. In the message they then lie ten bytes apart (the field's
tag, the length 8, the hash), so that strides check and gather all of them, and equal token counts behind them are one
comparison. Those two columns are cut out and the generated class reads what is left. Whatever is not laid out so,
malformed messages included, the generated class reads as a whole: it alone says what a message means.
"""

from __future__ import annotations

from typing import NamedTuple

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.columns import Equal, PackedHashes
from inference_cache.domain.models import KEY_BYTES
from inference_cache.domain.requests import LookupRequest
from inference_cache.rpc.convert import lookup_request

_LENGTH_DELIMITED = 2
_VARINT = 0
_HASHES = pb.LookupRouteRequest.BLOCK_HASHES_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_COUNTS = pb.LookupRouteRequest.BLOCK_TOKEN_COUNTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_RECORD_BYTES = 2 + KEY_BYTES

_MORE = 0x80
"""The bit of a varint's byte that says that another one follows."""

_MAX_FIELDS_BEFORE = 16
"""Fields looked at before the hashes: more than the message has, few enough that no message costs a long loop."""

_MAX_COUNT_BYTES = 4
"""Widest varint of a count that is read here: below 2^28, where no sign or truncation plays a role."""


class _Columns(NamedTuple):
    """The two columns, and where they begin and end in the message."""

    start: int
    end: int
    hashes: PackedHashes
    counts: Equal


def read_lookup(data: bytes) -> LookupRequest:
    """Return the domain's view of a serialized ``LookupRouteRequest``.

    Raises:
        DecodeError: the bytes are no such message.
    """
    columns = _columns(data)
    if columns is not None:
        rest = pb.LookupRouteRequest.FromString(data[: columns.start] + data[columns.end :])
        if not (rest.block_hashes or rest.block_token_counts):
            return lookup_request(rest, columns.hashes, columns.counts)
    message = pb.LookupRouteRequest.FromString(data)
    return lookup_request(message, message.block_hashes, message.block_token_counts)


def _columns(data: bytes) -> _Columns | None:
    """Find a run of hashes of eight bytes with as many equal counts behind it, ``None`` when there is none."""
    start = _first_hash(data)
    if start is None:
        return None
    tags = data[start : len(data) - _RECORD_BYTES + 1 : _RECORD_BYTES]
    number = len(tags) - len(tags.lstrip(bytes((_HASHES,))))
    end = start + number * _RECORD_BYTES
    if data[start + 1 : end : _RECORD_BYTES] != bytes((KEY_BYTES,)) * number:
        return None
    counts = _equal_counts(data, end, number)
    if counts is None:
        return None
    keys = bytearray(data[start:end])
    del keys[::_RECORD_BYTES]  # the tags
    del keys[:: _RECORD_BYTES - 1]  # the lengths
    return _Columns(start, counts[0], PackedHashes(bytes(keys)), Equal(counts[1], number))


def _first_hash(data: bytes) -> int | None:
    """Return where the first field with a hash begins, ``None`` when what precedes it is not plain."""
    at = 0
    try:
        for _ in range(_MAX_FIELDS_BEFORE):
            tag = data[at]
            if tag == _HASHES:
                return at
            if tag >= _MORE or tag < 1 << 3:
                return None
            size, at = _varint(data, at + 1)
            if tag & 7 == _LENGTH_DELIMITED:
                at += size
            elif tag & 7 != _VARINT:
                return None
    except IndexError:
        return None
    return None


def _equal_counts(data: bytes, at: int, number: int) -> tuple[int, int] | None:
    """Read packed counts that are all the same: where they end, and the count."""
    try:
        if not number or data[at] != _COUNTS:
            return None
        size, at = _varint(data, at + 1)
        count, behind = _varint(data, at)
    except IndexError:
        return None
    one = data[at:behind]
    if len(one) > _MAX_COUNT_BYTES or size != len(one) * number or data[at : at + size] != one * number:
        return None
    return at + size, count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends.

    Raises:
        IndexError: the message ends within it, or it is longer than a length or a plain number ever is.
    """
    value = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, at
    raise IndexError(at)
