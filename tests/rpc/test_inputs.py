"""The ways to give a prompt, and requests that cannot be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.fingerprint import block_hashes
from inference_cache.domain.tuning import Tuning
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, Wire, asks, chain, exact, h, hs, ids, update

HOSTILE = [
    "{}",
    "{a}:b/c",
    "a}{b",
    "a/b",
    "a:b",
    "a\x00b",
    "\x00",
    "line\nbreak\r\n",
    "%2F%7B",
    "ключ-鍵-🔑",
    "$" + "x" * 4096,
    "*?[abc]\\",
    "\"quoted\" 'twice'",
]
"""Ids that would break a careless key, pattern, script or protocol frame."""

BAD_TEXT = b"\x12\x02\xff\xfe"
"""Field 2, a string of two bytes that are no UTF-8."""

CUT_OFF = b"\x12\x7f"
"""A field of 127 bytes that do not follow."""


@pytest.fixture
def tuning() -> Tuning:
    """Keep the token limit low enough for a message to reach it."""
    return Tuning(max_token_ids=4096, max_prompt_bytes=4096)


async def test_tokens_and_their_chain_are_the_same_question(wire: Wire) -> None:
    """Token ids give the answer of the chain that they make, without an echo of the tokens."""
    tokens = list(range(64))
    hashes = block_hashes(tokens, 16)
    await wire.report("A", chain(hashes))
    by_tokens = await wire.lookup(token_ids=tokens)
    by_chain = await wire.lookup(**asks(hashes))
    for answer in (by_tokens, by_chain):
        assert answer.reason_code == "PREFIX_MATCH"
        assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 64)]
        assert not answer.token_ids


async def test_a_chain_outweighs_tokens(wire: Wire) -> None:
    """Beside a chain token ids are not looked at."""
    await wire.report("A", chain(hs(1, 2), 64))
    assert (await wire.lookup(**asks(hs(1, 2), 64), token_ids=range(64))).reason_code == "PREFIX_MATCH"


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"token_ids": range(8)}, "partial_block"),
        ({"token_ids": range(4097)}, "too_many_tokens"),
        ({"prompt_text": "no tokenizer here"}, "no_tokens"),
        ({"prompt_text": "x" * 4097}, "prompt_too_long"),
        ({"block_token_counts": [16]}, "mismatched_arrays"),
        ({"block_hashes": hs(1, 2), "block_token_counts": [16]}, "mismatched_arrays"),
        ({"block_hashes": hs(1, 2), "block_token_counts": [16], "token_ids": range(64)}, "mismatched_arrays"),
        ({"block_hashes": hs(1, 2), "block_token_counts": [16, -16]}, "negative_count"),
        ({"prefix_hash": h(1), "prefix_token_count": -1}, "negative_count"),
    ],
    ids=[
        "less than a block",
        "too many tokens",
        "text",
        "too much text",
        "counts only",
        "mismatch",
        "mismatch and tokens",
        "negative block",
        "negative prefix",
    ],
)
async def test_unusable_prompts_are_no_hint(wire: Wire, question: dict[str, Any], reason: str) -> None:
    """What cannot be used is no hint, neither warm nor stable nor echoed, and counted with its reason."""
    await wire.report("A", chain(hs(1, 2), 64), stats={"hit_rate": 0.9})
    answer = await wire.lookup(**question, adapter_id="sql")
    assert (answer.reason_code, ids(answer), answer.adapter_id) == ("NO_HINT", [], "")
    assert wire.counted("lookup_malformed_total", {"reason": reason}) == 1
    labels = {"model": "m1", "reason_code": "NO_HINT", "hint_used": "false"}
    assert wire.counted("lookup_route_calls_total", labels) == 1


async def test_a_negative_count_beside_a_chain_is_ignored(wire: Wire) -> None:
    """The single count takes no effect beside a chain, so it may be anything."""
    await wire.report("A", chain(hs(1, 2), 64))
    answer = await wire.lookup(prefix_hash=h("p"), prefix_token_count=-1, **asks(hs(1, 2), 64))
    assert answer.reason_code == "PREFIX_MATCH"


async def test_an_empty_hash_matches_nothing(wire: Wire) -> None:
    """An empty hash ends a run, and is no exact key."""
    wire.policy(FLOORS_OFF)
    await wire.report("A", chain([h(1), b"", h(3)]), exact(b"", 64))
    answer = await wire.lookup(**asks([h(1), b"", h(3)]))
    assert answer.replica_scores[0].matched_tokens == 16
    assert wire.counted("lookup_malformed_total", {"reason": "empty_hash"}) == 1
    wire.policy(AFFINITY_OFF)
    assert ids(await wire.lookup(b"")) == []


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 32, 1000])
async def test_hashes_of_any_width(wire: Wire, width: int) -> None:
    """Hashes of any width are stored and found, exactly and in chains, and differ when their last byte does."""
    wire.policy(AFFINITY_OFF)
    known, other = [b"\x00" * (width - 1) + bytes([last]) for last in (1, 2)]
    await wire.report("A", chain([known], 64))
    assert ids(await wire.lookup(known)) == ids(await wire.lookup(**asks([known], 64))) == ["A"]
    assert ids(await wire.lookup(other)) == ids(await wire.lookup(**asks([other], 64))) == []


@pytest.mark.parametrize("field", ["tenant_id", "model_id", "hash_scheme", "adapter_id", "replica_id"])
@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_ids(wire: Wire, field: str, hostile: str) -> None:
    """Any UTF-8 is an id: it is stored, found, answered as sent and cleared, and meets no other."""
    names = {
        "tenant_id": "t",
        "model_id": "m",
        "hash_scheme": "s",
        "adapter_id": "a",
        "replica_id": "r",
        field: hostile,
    }
    replica = names.pop("replica_id")
    plain: dict[str, Any] = dict.fromkeys(names, "plain")
    await wire.report("neighbour", exact(h("p"), 64), **plain)
    await wire.report(replica, exact(h("p"), 64), **names, stats={"hit_rate": 0.5})
    assert ids(await wire.lookup(h("p"), **names)) == [replica]
    where: dict[str, Any] = {name: names[name] for name in ("tenant_id", "model_id")}
    assert [row.replica_id for row in (await wire.state(**where)).replicas] == [replica]
    await wire.event("ALL_CLEARED", replica, **where)
    assert (await wire.state(**where)).summary.total_prefixes == 0
    assert ids(await wire.lookup(h("p"), **plain)) == ["neighbour"]


@pytest.mark.parametrize(
    "pair", [(("a", "b:c"), ("a:b", "c")), (("a/", "b"), ("a", "/b")), (("a}", "{b"), ("a", "}{b"))]
)
async def test_ids_do_not_run_into_each_other(wire: Wire, pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    """Two pairs of ids that join to the same text are two."""
    (tenant, model), (other_tenant, other_model) = pair
    await wire.report("A", exact(h("p"), 64), tenant_id=tenant, model_id=model)
    assert ids(await wire.lookup(h("p"), tenant_id=other_tenant, model_id=other_model)) == []
    await wire.report("A", exact(h("p"), 64), hash_scheme=tenant, adapter_id=model)
    assert ids(await wire.lookup(h("p"), hash_scheme=other_tenant, adapter_id=other_model)) == []


async def test_a_hundred_thousand_blocks(wire: Wire) -> None:
    """A chain of 100,000 blocks is stored by one update and found by one lookup."""
    hashes = [at.to_bytes(8, "big") for at in range(1, 100_001)]
    await wire.report("A", chain(hashes, 16))
    assert await wire.total() == 100_000
    answer = await wire.lookup(**asks(hashes, 16))
    assert [(s.replica_id, s.matched_tokens) for s in answer.replica_scores] == [("A", 1_600_000)]


async def test_a_bulk_eviction_of_a_hundred_thousand_blocks(wire: Wire) -> None:
    """A bulk eviction as large as a message allows is applied as a whole."""
    hashes = [at.to_bytes(8, "big") for at in range(1, 100_001)]
    await wire.report("A", chain(hashes, 16))
    assert (await wire.event("PREFIX_EVICTED", "A", prefix_hashes=hashes)).accepted
    assert await wire.total() == 0


SERVICE = "/inferencecache.v1alpha1.InferenceCache/"


@pytest.mark.parametrize(
    "call",
    [
        lambda wire, big: wire.lookup(big),
        lambda wire, big: wire.stream(update("A", exact(h("p"), 64)), update("A", exact(big, 64))),
        lambda wire, big: wire.event("PREFIX_EVICTED", "A", big),
    ],
    ids=["LookupRoute", "ReportCacheState", "PublishEvent"],
)
async def test_a_message_above_four_mebibytes(wire: Wire, call: Callable[[Wire, bytes], Awaitable[object]]) -> None:
    """A message of 5 MB is refused by name, and the server goes on."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(wire, h("x") * 640_000)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await wire.lookup(h("p"))).reason_code in {"PREFIX_MATCH", "NO_HINT"}


@pytest.mark.parametrize(
    ("rpc", "call"),
    [
        ("LookupRoute", lambda channel: channel.unary_unary(SERVICE + "LookupRoute")(BAD_TEXT)),
        ("PublishEvent", lambda channel: channel.unary_unary(SERVICE + "PublishEvent")(BAD_TEXT)),
        ("ReportCacheState", lambda channel: channel.stream_unary(SERVICE + "ReportCacheState")(iter([BAD_TEXT]))),
        ("StreamMetrics", lambda channel: channel.unary_stream(SERVICE + "StreamMetrics")(CUT_OFF).read()),
    ],
)
async def test_bytes_that_are_no_message(
    channel: grpc.aio.Channel, wire: Wire, rpc: str, call: Callable[[grpc.aio.Channel], Awaitable[object]]
) -> None:
    """What is no message is refused without a word about the server's insides, and counted."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(channel)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert refused.value.details() == "the message cannot be decoded"
    assert wire.counted("rpc_errors_total", {"rpc": rpc, "code": "INTERNAL"}) == 1


async def test_unknown_fields_are_ignored(channel: grpc.aio.Channel, wire: Wire) -> None:
    """A newer client's fields do not disturb an older server."""
    await wire.report("A", exact(h("p"), 64))
    request = pb.LookupRouteRequest(tenant_id="team-a", model_id="m1", hash_scheme="vllm", prefix_hash=h("p"))
    call: Any = channel.unary_unary(SERVICE + "LookupRoute", None, pb.LookupRouteResponse.FromString)
    answer = await call(request.SerializeToString() + b"\xf8\x07\x01")  # field 127, a varint
    assert answer.reason_code == "PREFIX_MATCH"
