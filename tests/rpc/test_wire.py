from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import event, given
from hypothesis import strategies as st

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.columns import Equal, PackedHashes
from inference_cache.domain.requests import LookupRequest
from inference_cache.rpc.convert import lookup_request
from inference_cache.rpc.wire import read_lookup

HASHES = st.lists(st.binary(min_size=8, max_size=8), max_size=6) | st.lists(st.binary(max_size=10), max_size=4)
COUNT = st.integers(-(2**31), 2**31 - 1)
COUNTS = st.lists(COUNT, max_size=6) | st.builds(
    lambda value, length: [value] * length, st.sampled_from([0, 16, 127, 128, 2**28 - 1, 2**28, -1]), st.integers(0, 7)
)
TEXT = st.text(max_size=5)
PARTS = st.one_of(
    st.builds(pb.LookupRouteRequest, block_hashes=HASHES),
    st.builds(pb.LookupRouteRequest, block_token_counts=COUNTS),
    st.builds(pb.LookupRouteRequest, model_id=TEXT, tenant_id=TEXT, hash_scheme=TEXT, adapter_id=TEXT),
    st.builds(pb.LookupRouteRequest, prefix_hash=st.binary(max_size=9), prefix_token_count=COUNT, prompt_text=TEXT),
    st.builds(pb.LookupRouteRequest, slo=st.builds(pb.SLO, ttft_ms=COUNT, tbt_ms=COUNT)),
    st.builds(pb.LookupRouteRequest, token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=3)),
).map(pb.LookupRouteRequest.SerializeToString)
CHAINS = st.builds(
    lambda hashes, count: pb.LookupRouteRequest(
        tenant_id="t", block_hashes=hashes, block_token_counts=[count] * len(hashes)
    ).SerializeToString(),
    st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=20),
    st.sampled_from([0, 16, 256, 2**27]),
)
ODDITIES = st.sampled_from(
    [
        b"\x40\x10",  # a count that is not packed
        b"\x38\x10",  # hashes' number as a plain number
        b"\x42\x01\x80",  # a count that never ends
        b"\x42\x02\x90\x00",  # a count with a byte too many
        b"\x42\x00",
        b"\x3a\x81\x00a",  # a length with a byte too many
        b"\xba\x00\x01a",  # a tag with a byte too many
        b"\x0b\x3a\x08abcdefgh\x0c",  # a hash within a group
        b"\x0b",
        b"\xa2\x06\x03abc",  # fields that nobody knows
        b"\xa8\x06\x07",
        b"\x7d\x00\x00\x00\x00",
        b"\x12\x01\xff",  # no UTF-8
        b"\x00\x01",
        b"\x3a\x08abc",
        b"\x08" + b"\xff" * 9 + b"\x01",
        b"\x08" + b"\xff" * 11,
    ]
)
MESSAGES = st.one_of(
    CHAINS,
    st.lists(PARTS | CHAINS, max_size=6).map(b"".join),
    st.lists(PARTS | CHAINS | ODDITIES, max_size=6).map(b"".join),
)


def outcome(read: Any, data: bytes) -> dict[str, Any] | str:
    """Return what was read, with lists for all sequences, or the error."""
    try:
        request: LookupRequest = read(data)
    except DecodeError as error:
        return str(error)
    return {
        name: value if isinstance(value, str | bytes | int) else list(value)
        for name, value in request._asdict().items()
    }


def by_the_generated_class(data: bytes) -> LookupRequest:
    """Read a lookup without any shortcut."""
    return lookup_request(pb.LookupRouteRequest.FromString(data))


def same(data: bytes) -> None:
    """Compare both readings."""
    assert outcome(read_lookup, data) == outcome(by_the_generated_class, data)


@given(MESSAGES)
def test_every_message_is_read_as_the_generated_class_reads_it(data: bytes) -> None:
    """Fields in any order, split, repeated, unknown or malformed: the same request, or the same error."""
    same(data)
    packed = isinstance(outcome(read_lookup, data), dict) and isinstance(read_lookup(data).block_hashes, PackedHashes)
    event(f"packed: {packed}")


@given(MESSAGES, st.data())
def test_damaged_messages_are_read_alike(data: bytes, draw: st.DataObject) -> None:
    """Cut short, a byte changed, inserted or lost: no shortcut reads what is not there."""
    at = draw.draw(st.integers(0, len(data)))
    byte = bytes((draw.draw(st.integers(0, 255) | st.sampled_from([0x3A, 8, 0x42, 0x80])),))
    for damaged in (data[:at], data[at:], data[:at] + byte + data[at + 1 :], data[:at] + byte + data[at:]):
        same(damaged)


@pytest.mark.parametrize("count", [0, 16, 127, 128, 2**14, 2**28 - 1])
@pytest.mark.parametrize("number", [1, 2, 512, 8192])
def test_what_gateways_send_becomes_columns(count: int, number: int) -> None:
    """Eight-byte hashes with equal counts, beside whatever else: no object a block."""
    message = pb.LookupRouteRequest(
        tenant_id="t",
        model_id="m" * 300,
        hash_scheme="vllm",
        slo=pb.SLO(ttft_ms=100),
        block_hashes=[at.to_bytes(8, "big") for at in range(number)],
        block_token_counts=[count] * number,
        adapter_id="sql",
    )
    data = message.SerializeToString()
    request = read_lookup(data)
    assert isinstance(request.block_hashes, PackedHashes)
    assert isinstance(request.block_token_counts, Equal)
    same(data)


def test_a_second_chain_in_the_message_continues_the_first() -> None:
    """Messages may be concatenated: what follows the columns is not lost."""
    one = pb.LookupRouteRequest(block_hashes=[b"12345678"], block_token_counts=[16]).SerializeToString()
    assert list(read_lookup(one + one).block_hashes) == [b"12345678"] * 2
    assert list(read_lookup(one + b"\x40\x07").block_token_counts) == [16, 7]


def test_no_field_is_read_twice() -> None:
    """A message of many small fields buys no long loop: at the first repetition the generated class takes over."""
    chain = pb.LookupRouteRequest(block_hashes=[b"12345678"], block_token_counts=[16]).SerializeToString()
    assert isinstance(read_lookup(chain + b"\x12\x01a").block_hashes, PackedHashes)
    again = read_lookup(chain + b"\x12\x01a" + b"\x12\x01b")
    assert not isinstance(again.block_hashes, PackedHashes)
    assert again.tenant_id == "b"
