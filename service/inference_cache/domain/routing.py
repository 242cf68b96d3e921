"""The order of decisions of a lookup, in two halves around the one call to the index.

:func:`plan` decides what needs no index and says what to ask; :func:`decide` turns the evidence into the answer. In
between the caller asks the store, and once more when :func:`needs_presence` says so::

    step = plan(request, policy, tuning)
    if isinstance(step, Answer):
        return step
    expired = step.expired_at_ms(now_ms)
    if step.is_chain:
        evidence = await store.lookup_chain(step.model, step.partition, step.keys, expired_at_ms=expired)
    else:
        evidence = await store.lookup_exact(
            step.model, step.partition, step.keys, expired_at_ms=expired, want_warm=step.want_warm
        )
    presence = await store.presence(step.model, expired_at) if needs_presence(step, evidence) else None
    return decide(step, evidence, presence, now_ms, tuning)

Deadlines are the caller's: whoever gives up answers :func:`give_up`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference_cache.domain.models import ChainEvidence, ExactEvidence, ModelKey, Partition, Presence
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.times import expired_at_ms
from inference_cache.domain.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lookup says.

    Attributes:
        reason: one of :data:`~inference_cache.domain.reasons.REASON_CODES`.
        scores: ranked replicas, best first.
        adapter_id: echo of the request's adapter where the index was consulted, else ``""``.
        token_ids: echo of the tokens that the server made of the prompt text.
        dropped: the drop reason to count, ``""`` when the whole request was used.
    """

    reason: str
    scores: tuple[Score, ...] = ()
    adapter_id: str = ""
    token_ids: Sequence[int] = ()
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """What to ask the index, and what is needed to judge its answer.

    Attributes:
        request: the request as sent.
        policy: the tenant's policy, one and the same throughout the request.
        model: whose index to ask.
        partition: scheme and adapter.
        is_chain: whether ``keys`` is a chain, else it is one exact key.
        keys: block keys, concatenated; of a chain those before its first empty hash, else one key or ``b""``.
        want_warm: whether an exact miss may be answered with warm replicas.
        hashes: what was resolved, as sent: the chain, or the one exact hash, or nothing.
        counts: token counts of the chain's blocks.
        effective_tokens: tokens of the prompt by which it is judged long enough.
        token_ids: tokens to echo.
        dropped: drop reason to count, if a part of the request was left out.
    """

    request: LookupRequest
    policy: Policy
    model: ModelKey
    partition: Partition
    is_chain: bool
    keys: bytes
    want_warm: bool
    hashes: Sequence[bytes] = ()
    counts: Sequence[int] = ()
    effective_tokens: int = 0
    token_ids: Sequence[int] = ()
    dropped: str = ""

    def expired_at_ms(self, now_ms: int) -> int:
        """Return the newest time of a holding that no longer counts for this request."""
        return expired_at_ms(now_ms, self.policy.ttl_ms)


def wants_tokens(request: LookupRequest, policy: Policy, tuning: Tuning) -> bool:
    """Tell whether the prompt text is the effective input, so that tokenizing it is worth while.

    True exactly when :func:`plan` uses its ``prompt_tokens``.
    """
    raise NotImplementedError


def plan(
    request: LookupRequest, policy: Policy, tuning: Tuning, prompt_tokens: Sequence[int] | None = None
) -> Answer | Query:
    """Decide what needs no index, or say what to ask it.

    Args:
        request: the request as sent.
        policy: the tenant's policy.
        tuning: the server's limits.
        prompt_tokens: tokens of the prompt text, ``None`` when it was not or could not be tokenized.
    """
    raise NotImplementedError


def needs_presence(query: Query, evidence: ChainEvidence | ExactEvidence) -> bool:
    """Tell whether the answer depends on what the index holds beyond the request's scope."""
    raise NotImplementedError


def decide(
    query: Query,
    evidence: ChainEvidence | ExactEvidence,
    presence: Presence | None,
    now_ms: int,
    tuning: Tuning,
) -> Answer:
    """Judge the evidence: rank, apply the floors, fall back.

    Args:
        query: what :func:`plan` returned.
        evidence: what the store found.
        presence: what it said of the wider index; needed only where :func:`needs_presence` says so.
        now_ms: the same time that the store was asked with.
        tuning: the server's weights.
    """
    raise NotImplementedError


def give_up(query: Query | None, reason: str) -> Answer:
    """Answer without the index (``TIMEOUT``, ``INDEX_UNAVAILABLE``): no adapter echo, the token echo stays."""
    raise NotImplementedError
