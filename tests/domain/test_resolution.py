from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference_cache.domain import reasons
from inference_cache.domain.fingerprint import block_hashes
from inference_cache.domain.models import MAX_TOKENS
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.resolution import Refused, Resolved, resolve
from inference_cache.domain.tuning import Tuning
from tests.domain.evidence import ask, ask_chain, ask_exact

TWO_BLOCKS = range(1, 33)
TWO_HASHES = block_hashes(TWO_BLOCKS, 16)


def by(
    request: LookupRequest,
    *,
    chains: bool = True,
    tuning: Tuning | None = None,
    prompt_tokens: Sequence[int] | None = None,
) -> Resolved | Refused:
    """Resolve with the defaults."""
    return resolve(request, tuning or Tuning(), chain_matching=chains, prompt_tokens=prompt_tokens)


def test_a_chain_wins_over_everything() -> None:
    """With a chain, neither the prefix hash nor tokens nor text play a role; the chain's counts are effective."""
    request = ask_chain(16, 16, 16, prefix_hash=b"legacy", tokens=999, token_ids=TWO_BLOCKS, text="hi")
    assert by(request) == Resolved(True, [b"block000", b"block001", b"block002"], [16] * 3, 48)


def test_uneven_chain_counts_are_added() -> None:
    """Effective tokens are the sum of the request's counts, saturated."""
    resolved = by(ask_chain(64, 0, 32))
    assert isinstance(resolved, Resolved)
    assert resolved.effective_tokens == 96
    large = by(ask_chain(MAX_TOKENS, MAX_TOKENS))
    assert isinstance(large, Resolved)
    assert large.effective_tokens == MAX_TOKENS


def test_an_exact_hash_wins_over_tokens_and_text() -> None:
    """Its own count is effective, 0 when the caller leaves it out."""
    request = ask_exact(128, token_ids=TWO_BLOCKS, text="hi")
    assert by(request) == Resolved(False, (b"prefix-a",), effective_tokens=128)
    assert by(ask_exact()) == Resolved(False, (b"prefix-a",))


@pytest.mark.parametrize(("hashes", "counts"), [(3, 2), (1, 2), (3, 0), (0, 1)])
@pytest.mark.parametrize(
    "also", [ask(), ask_exact(64), ask(token_ids=TWO_BLOCKS), ask(text="hi")], ids=["alone", "hash", "tokens", "text"]
)
def test_arrays_that_differ_in_length_refuse(hashes: int, counts: int, also: LookupRequest) -> None:
    """A malformed chain is never papered over by a weaker input."""
    request = ask(
        hashes=[b"%08d" % at for at in range(hashes)],
        counts=[16] * counts,
        prefix_hash=also.prefix_hash,
        token_ids=also.token_ids,
        text=also.prompt_text,
    )
    assert by(request) == Refused(reasons.MISMATCHED_ARRAYS)


def test_negative_counts_refuse_where_they_take_effect() -> None:
    """A negative count of the input that wins refuses; beside it, it is ignored."""
    assert by(ask_chain(16, -1)) == Refused(reasons.NEGATIVE_COUNT)
    assert by(ask_exact(-1)) == Refused(reasons.NEGATIVE_COUNT)
    assert by(ask(tokens=-1)) == Refused(reasons.NEGATIVE_COUNT)
    assert by(ask_exact(-1), chains=False) == Refused(reasons.NEGATIVE_COUNT)
    assert isinstance(by(ask_chain(16, tokens=-1)), Resolved)
    assert isinstance(by(ask(token_ids=TWO_BLOCKS, tokens=-1)), Resolved)
    assert isinstance(by(ask_exact(16, hashes=[b"x"], counts=[-1]), chains=False), Resolved)


def test_an_empty_hash_inside_a_chain_is_told() -> None:
    """The chain keeps its hashes, for the seed, and its tokens; that a part cannot match is counted."""
    resolved = by(ask(hashes=[b"a", b"", b"c"], counts=[16, 16, 16]))
    assert resolved == Resolved(True, [b"a", b"", b"c"], [16] * 3, 48, dropped=reasons.EMPTY_HASH)


def test_tokens_become_the_chain_they_stand_for() -> None:
    """Token ids are the same as the explicit chain of their full blocks, and are not echoed."""
    assert by(ask(token_ids=TWO_BLOCKS)) == Resolved(True, TWO_HASHES, [16, 16], 32)
    assert by(ask(token_ids=range(1, 48))) == Resolved(True, TWO_HASHES, [16, 16], 32)


def test_the_block_size_is_the_servers() -> None:
    """A server with blocks of 32 derives one block of 32 tokens."""
    expected = Resolved(True, block_hashes(TWO_BLOCKS, 32), [32], 32)
    assert by(ask(token_ids=TWO_BLOCKS), tuning=Tuning(block_size=32)) == expected
    assert expected.hashes != TWO_HASHES[:1]


def test_less_than_a_block_refuses() -> None:
    """Eight tokens have nothing to match."""
    assert by(ask(token_ids=range(8))) == Refused(reasons.PARTIAL_BLOCK)


@pytest.mark.parametrize("chains", [True, False])
def test_too_many_tokens_refuse(chains: bool) -> None:
    """The limit itself is allowed, one more is not."""
    tuning = Tuning(max_token_ids=64)
    assert isinstance(by(ask(token_ids=range(64)), tuning=tuning, chains=chains), Resolved)
    assert by(ask(token_ids=range(65)), tuning=tuning, chains=chains) == Refused(reasons.TOO_MANY_TOKENS)
    assert Tuning().max_token_ids == 2**20


@pytest.mark.parametrize("tokens", [None, []])
def test_text_without_tokens_refuses(tokens: Sequence[int] | None) -> None:
    """Without a tokenizer, or when it fails or finds nothing, there is nothing to match and to echo."""
    assert by(ask(text="hello"), prompt_tokens=tokens) == Refused(reasons.NO_TOKENS)


def test_text_is_matched_by_its_tokens_which_are_echoed() -> None:
    """A tokenized prompt resolves as its tokens do."""
    tokens = list(TWO_BLOCKS)
    expected = Resolved(True, TWO_HASHES, [16, 16], 32, token_ids=tokens)
    assert by(ask(text="hello"), prompt_tokens=tokens) == expected


def test_short_text_refuses_with_an_echo_and_long_without() -> None:
    """Tokens of less than a block are echoed; more than the limit were never wanted."""
    assert by(ask(text="hi"), prompt_tokens=[1, 2]) == Refused(reasons.PARTIAL_BLOCK, [1, 2])
    refused = by(ask(text="hi"), prompt_tokens=range(65), tuning=Tuning(max_token_ids=64))
    assert refused == Refused(reasons.TOO_MANY_TOKENS)


@pytest.mark.parametrize("text", ["x" * 11, "é" * 6])
def test_the_limit_of_text_is_in_bytes(text: str) -> None:
    """A text above the limit refuses whatever its tokens; exactly the limit passes."""
    tuning = Tuning(max_prompt_bytes=10)
    assert by(ask(text=text), tuning=tuning, prompt_tokens=TWO_BLOCKS) == Refused(reasons.PROMPT_TOO_LONG)
    assert isinstance(by(ask(text="é" * 5), tuning=tuning, prompt_tokens=TWO_BLOCKS), Resolved)
    assert Tuning().max_prompt_bytes == 2**20


def test_nothing_is_an_exact_question_without_a_hash() -> None:
    """A request without inputs still asks for warm replicas and diagnostics."""
    assert by(ask()) == Resolved(False)
    assert by(ask(), chains=False) == Resolved(False)


def test_without_chain_matching_the_arrays_are_ignored() -> None:
    """The exact hash and its count are taken beside a chain, even a malformed one."""
    expected = Resolved(False, (b"prefix-a",), effective_tokens=10)
    assert by(ask_exact(10, hashes=[b"x"], counts=[200]), chains=False) == expected
    assert by(ask_exact(10, hashes=[b"x", b"y"], counts=[200]), chains=False) == expected


def test_without_chain_matching_a_chain_alone_refuses() -> None:
    """There is nothing else to go by, and the index is not asked."""
    assert by(ask_chain(16), chains=False) == Refused(reasons.CHAIN_MATCHING_OFF)
    assert by(ask(counts=[16]), chains=False) == Refused(reasons.CHAIN_MATCHING_OFF)


def test_without_chain_matching_tokens_stand_for_their_last_block() -> None:
    """Tokens and text become an exact question for the last full block, whose tokens are all of the prefix."""
    last = Resolved(False, TWO_HASHES[-1:], effective_tokens=32)
    assert by(ask(token_ids=TWO_BLOCKS), chains=False) == last
    assert by(ask(token_ids=TWO_BLOCKS, hashes=[b"x", b"y"], counts=[1]), chains=False) == last
    echoed = by(ask(text="hello"), chains=False, prompt_tokens=list(TWO_BLOCKS))
    assert echoed == Resolved(False, TWO_HASHES[-1:], effective_tokens=32, token_ids=list(TWO_BLOCKS))
