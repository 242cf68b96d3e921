"""What a lookup really asks for: one chain of hashes, or one hash, out of four ways to describe a prompt.

The strongest way that is present wins: a chain, one hash, token ids, text. Whatever is malformed in the way that wins
refuses the request; a weaker way is never tried instead, since it may describe another prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inference_cache.domain import reasons
from inference_cache.domain.columns import Equal, PackedHashes
from inference_cache.domain.fingerprint import block_hashes
from inference_cache.domain.models import MAX_TOKENS
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.tuning import Tuning


class Resolved(NamedTuple):
    """The prompt as hashes.

    Attributes:
        is_chain: whether ``hashes`` is a chain, else it has one exact hash or none.
        hashes: as sent or derived, empty ones included.
        counts: token counts of the chain's blocks.
        effective_tokens: tokens by which the prompt is judged long enough.
        token_ids: tokens to echo.
        dropped: drop reason to count for a part that cannot match.
    """

    is_chain: bool
    hashes: Sequence[bytes] = ()
    counts: Sequence[int] = ()
    effective_tokens: int = 0
    token_ids: Sequence[int] = ()
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that gets no hint: the drop reason to count, and tokens to echo all the same."""

    reason: str
    token_ids: Sequence[int] = ()


def has_chain(request: LookupRequest) -> bool:
    """Tell whether a request, as sent, carries a well-formed chain."""
    return len(request.block_hashes) > 0 and arrays_agree(request)


def arrays_agree(request: LookupRequest) -> bool:
    """Tell whether a request, as sent, has as many block hashes as token counts."""
    return len(request.block_hashes) == len(request.block_token_counts)


def uses_text(request: LookupRequest, *, chain_matching: bool) -> bool:
    """Tell whether the prompt text is the way that wins."""
    if request.prefix_hash or len(request.token_ids) or (chain_matching and _mentions_chain(request)):
        return False
    return bool(request.prompt_text)


def text_fits(request: LookupRequest, tuning: Tuning) -> bool:
    """Tell whether the prompt text is within the limit, which is in bytes."""
    text = request.prompt_text
    return len(text) <= tuning.max_prompt_bytes and len(text.encode()) <= tuning.max_prompt_bytes


def resolve(
    request: LookupRequest, tuning: Tuning, *, chain_matching: bool, prompt_tokens: Sequence[int] | None
) -> Resolved | Refused:
    """Turn a request into hashes.

    Args:
        request: as sent.
        tuning: limits and the block size of derived chains.
        chain_matching: whether the tenant's policy lets chains count; without it, chain arrays are ignored and
            derived chains stand for their last block.
        prompt_tokens: tokens of the prompt text, ``None`` when there are none.
    """
    if chain_matching and _mentions_chain(request):
        return _chain(request)
    if request.prefix_hash:
        return _exact(request)
    if len(request.token_ids):
        return _tokens(request.token_ids, tuning, chain_matching=chain_matching)
    if request.prompt_text:
        return _text(request, prompt_tokens, tuning, chain_matching=chain_matching)
    if _mentions_chain(request):
        return Refused(reasons.CHAIN_MATCHING_OFF)
    return _exact(request)


def _mentions_chain(request: LookupRequest) -> bool:
    return len(request.block_hashes) > 0 or len(request.block_token_counts) > 0


def _chain(request: LookupRequest) -> Resolved | Refused:
    if not arrays_agree(request):
        return Refused(reasons.MISMATCHED_ARRAYS)
    hashes, counts = request.block_hashes, request.block_token_counts
    if isinstance(counts, Equal):
        lowest, tokens = counts.value, counts.value * counts.length
    else:
        counts = list(counts)
        lowest, tokens = min(counts), sum(counts)
    if lowest < 0:
        return Refused(reasons.NEGATIVE_COUNT)
    dropped = ""
    if not isinstance(hashes, PackedHashes):
        hashes = list(hashes)
        dropped = "" if all(hashes) else reasons.EMPTY_HASH
    return Resolved(True, hashes, counts, min(tokens, MAX_TOKENS), dropped=dropped)


def _exact(request: LookupRequest) -> Resolved | Refused:
    if request.prefix_token_count < 0:
        return Refused(reasons.NEGATIVE_COUNT)
    hashes = (request.prefix_hash,) if request.prefix_hash else ()
    return Resolved(False, hashes, effective_tokens=request.prefix_token_count)


def _tokens(token_ids: Sequence[int], tuning: Tuning, *, chain_matching: bool) -> Resolved | Refused:
    if len(token_ids) > tuning.max_token_ids:
        return Refused(reasons.TOO_MANY_TOKENS)
    hashes = block_hashes(token_ids, tuning.block_size)
    if not hashes:
        return Refused(reasons.PARTIAL_BLOCK)
    tokens = min(tuning.block_size * len(hashes), MAX_TOKENS)
    if chain_matching:
        return Resolved(True, hashes, Equal(tuning.block_size, len(hashes)), tokens)
    return Resolved(False, hashes[-1:], effective_tokens=tokens)


def _text(
    request: LookupRequest, prompt_tokens: Sequence[int] | None, tuning: Tuning, *, chain_matching: bool
) -> Resolved | Refused:
    if not text_fits(request, tuning):
        return Refused(reasons.PROMPT_TOO_LONG)
    if not prompt_tokens:
        return Refused(reasons.NO_TOKENS)
    resolved = _tokens(prompt_tokens, tuning, chain_matching=chain_matching)
    if isinstance(resolved, Resolved):
        return Resolved(
            resolved.is_chain, resolved.hashes, resolved.counts, resolved.effective_tokens, token_ids=prompt_tokens
        )
    # Too many tokens were never worth echoing; those of less than a block spare the gateway its own tokenizer.
    return resolved if resolved.reason == reasons.TOO_MANY_TOKENS else Refused(resolved.reason, prompt_tokens)
