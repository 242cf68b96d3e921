from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_cache.domain.fingerprint import block_hashes, content_hashes, prefix_hashes

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "testdata" / "fingerprint_golden.json").read_text()
)["vectors"]


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_golden_vectors(vector: dict[str, Any]) -> None:
    """Fingerprints are byte for byte those that other implementations compute."""
    tokens = range(vector["first_token"], vector["last_token"] + 1)
    contents = content_hashes(tokens, vector["block_size"])
    prefixes = prefix_hashes(contents, vector["parent"])
    assert contents == vector["content_hashes"]
    assert prefixes == vector["prefix_hashes"]
    assert [base64.b64encode(one.to_bytes(8, "big")).decode() for one in prefixes] == vector["prefix_hashes_base64"]


@pytest.mark.parametrize(("first", "last", "blocks"), [(1, 32, 2), (100, 119, 1), (0, 63, 4), (0, 9, 0)])
def test_hashes_on_the_wire_are_big_endian(first: int, last: int, blocks: int) -> None:
    """A derived chain has the bytes of the golden vectors, one hash for each full block."""
    vector = next(one for one in GOLDEN if (one["first_token"], one["last_token"]) == (first, last))
    hashes = block_hashes(range(first, last + 1), 16)
    assert len(hashes) == blocks
    assert hashes == [base64.b64decode(one) for one in vector["prefix_hashes_base64"]]


@pytest.mark.parametrize("block_size", [0, -1])
def test_no_block_size_no_blocks(block_size: int) -> None:
    """A block size that cannot be gives no hashes rather than an error."""
    assert block_hashes(range(64), block_size) == []


def test_no_tokens_no_blocks() -> None:
    """An empty prompt has no blocks."""
    assert block_hashes([], 16) == []


def test_the_first_prefix_is_its_content() -> None:
    """Without a parent the first block's prefix hash is its content hash; with one it differs."""
    contents = content_hashes(range(16), 16)
    assert prefix_hashes(contents) == contents
    assert prefix_hashes(contents, 7) != contents


def test_ids_of_32_bits_are_hashed_and_wider_ones_refused() -> None:
    """The largest unsigned id is a token like any other; nothing wraps silently."""
    assert len(block_hashes([2**32 - 1] * 16, 16)) == 1
    with pytest.raises(OverflowError):
        block_hashes([2**32] * 16, 16)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=80), st.integers(1, 20), st.integers(0, 80))
def test_a_prompt_that_begins_alike_shares_blocks(tokens: list[int], block_size: int, cut: int) -> None:
    """The blocks of a prompt's head are the leading blocks of the prompt."""
    head = block_hashes(tokens[:cut], block_size)
    assert block_hashes(tokens, block_size)[: len(head)] == head


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_prefix_hashes_stand_for_everything_before(contents: list[int]) -> None:
    """Chaining the tail onto the head's last hash continues the same chain."""
    whole = prefix_hashes(contents)
    for (parent, _), at in zip(pairwise(whole), range(1, len(whole)), strict=True):
        assert prefix_hashes(contents[at:], parent) == whole[at:]
