from __future__ import annotations

import random
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.affinity import chain_seed, pick
from inference_cache.domain.columns import PackedHashes
from inference_cache.domain.tuning import AffinityMode

MODES: tuple[AffinityMode, ...] = ("modulo", "rendezvous")
PODS = ["pod-0", "pod-1", "pod-2", "pod-10"]
GOLDEN = [bytes.fromhex("ea06fc71a5ee6e88"), bytes.fromhex("ad01835a37dd294c")]


def test_worked_example_of_a_chain() -> None:
    """Two blocks of tokens 1 to 32 over four pods give the seed, the digest and the pod that gateways expect."""
    seed = chain_seed(GOLDEN)
    assert seed.hex() == "00000008ea06fc71a5ee6e8800000008ad01835a37dd294c"
    assert sha256(seed).hexdigest() == "b9b17678d7a1a2b98e5e8e3a73302c1e26c39aec30035e078ba250dc0edc2efa"
    assert pick(seed, PODS, "modulo") == "pod-1"


def test_worked_example_of_an_exact_hash() -> None:
    """One replica more moves the prompt, as modulo does."""
    replicas = ["replica-a", "replica-b", "replica-c"]
    assert pick(b"prefix-a", replicas, "modulo") == "replica-c"
    assert pick(b"prefix-a", [*replicas, "replica-d"], "modulo") == "replica-b"


def test_a_hash_and_a_chain_of_it_differ() -> None:
    """An exact hash is its own seed, a chain of one block is framed."""
    assert pick(GOLDEN[0], PODS, "modulo") == "pod-2"
    assert pick(chain_seed(GOLDEN[:1]), PODS, "modulo") == "pod-1"


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_seeds_frame_each_hash(hashes: list[bytes]) -> None:
    """Whatever the widths, the seed is length and bytes of each hash; empty hashes have their place in it."""
    assert chain_seed(hashes) == b"".join(len(one).to_bytes(4, "big") + one for one in hashes)


@given(st.lists(st.binary(min_size=8, max_size=8), max_size=40))
def test_packed_hashes_have_the_seed_of_single_ones(hashes: list[bytes]) -> None:
    """A gateway's prompt goes to the same replica however its message was read."""
    assert chain_seed(PackedHashes(b"".join(hashes))) == chain_seed(hashes)


def test_a_chain_of_one_empty_hash_has_a_seed() -> None:
    """Four zero bytes are a seed like any other."""
    assert chain_seed([b""]) == bytes(4)
    assert pick(bytes(4), PODS, "modulo") in PODS


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_pick_from_or_by(mode: AffinityMode) -> None:
    """Without candidates or without a seed nobody is picked."""
    assert pick(b"seed", [], mode) is None
    assert pick(b"", PODS, mode) is None


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.binary(min_size=1, max_size=40), order=st.permutations(PODS))
def test_the_order_of_reports_does_not_matter(mode: AffinityMode, seed: bytes, order: list[str]) -> None:
    """Every server picks the same replica, in whatever order it learned of them."""
    assert pick(seed, order, mode) == pick(seed, PODS, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_lone_replica_is_always_picked(mode: AffinityMode) -> None:
    """With one candidate there is nothing to choose."""
    assert {pick(bytes([at]), ["only"], mode) for at in range(10)} == {"only"}


@pytest.mark.parametrize("mode", MODES)
def test_prompts_spread_over_the_replicas(mode: AffinityMode) -> None:
    """1000 random seeds over 8 replicas give each between 80 and 220."""
    rng = random.Random(7)
    replicas = [f"r{at}" for at in range(8)]
    picks = Counter(pick(rng.randbytes(32), replicas, mode) for _ in range(1000))
    assert set(picks) == set(replicas)
    assert all(80 <= count <= 220 for count in picks.values())


@given(seed=st.binary(min_size=1, max_size=40), leaving=st.sampled_from(PODS))
def test_rendezvous_moves_only_what_the_lost_replica_had(seed: bytes, leaving: str) -> None:
    """A replica that leaves changes nothing for the prompts of the others."""
    before = pick(seed, PODS, "rendezvous")
    after = pick(seed, [pod for pod in PODS if pod != leaving], "rendezvous")
    assert before in (after, leaving)


def test_rendezvous_weights_are_as_documented() -> None:
    """The winner has the largest first eight bytes of SHA-256(SHA-256(seed), replica id)."""
    digest = sha256(b"seed").digest()
    weights = {pod: int.from_bytes(sha256(digest + pod.encode()).digest()[:8], "big") for pod in PODS}
    assert pick(b"seed", PODS, "rendezvous") == max(weights, key=weights.__getitem__)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1, max_size=6, unique=True))
def test_candidates_are_ordered_by_their_bytes(replicas: list[str]) -> None:
    """The index counts replica ids in the order of their UTF-8 bytes."""
    ordered = sorted(replicas, key=str.encode)
    at = int.from_bytes(sha256(b"seed").digest()[:8], "big") % len(ordered)
    assert pick(b"seed", replicas, "modulo") == ordered[at]
