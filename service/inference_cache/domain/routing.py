"""The order of decisions of a lookup, in two halves around the one call to the index.

:func:`plan` decides what needs no index and says what to ask; :func:`decide` turns the evidence into the answer. In
between the caller asks the store, and once more when :func:`needs_presence` says so::

    step = plan(request, policy, tuning)
    if isinstance(step, Answer):
        return step
    when = {"expired_at_ms": step.expired_at_ms(now_ms), "silent_at_ms": silent_at_ms(now_ms, tuning.liveness_ttl_ms)}
    if step.is_chain:
        evidence = await store.lookup_chain(step.model, step.partition, step.keys, **when)
    else:
        evidence = await store.lookup_exact(step.model, step.partition, step.keys, **when, want_warm=step.want_warm)
    presence = await store.presence(step.model, expired_at) if needs_presence(step, evidence) else None
    return decide(step, evidence, presence, now_ms, tuning)

Deadlines are the caller's: whoever gives up answers :func:`give_up`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inference_cache.domain import reasons
from inference_cache.domain.affinity import chain_seed, pick
from inference_cache.domain.blocks import join_keys
from inference_cache.domain.diagnostics import diagnose
from inference_cache.domain.floors import apply_floors, too_short
from inference_cache.domain.liveness import without_silent
from inference_cache.domain.models import (
    RESERVED_TENANT,
    ChainEvidence,
    ExactEvidence,
    ModelKey,
    Partition,
    Presence,
)
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score, rank_chain, rank_exact, rank_warm
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.resolution import (
    Refused,
    Resolved,
    arrays_agree,
    has_chain,
    resolve,
    text_fits,
    uses_text,
)
from inference_cache.domain.scoring import Scale
from inference_cache.domain.times import expired_at_ms
from inference_cache.domain.tuning import Tuning


class Answer(NamedTuple):
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


class Query(NamedTuple):
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

    True exactly when :func:`plan` looks at its ``prompt_tokens``.
    """
    return (
        _refusal(request, policy) is None
        and uses_text(request, chain_matching=policy.enable_chain_matching)
        and text_fits(request, tuning)
    )


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
    refusal = _refusal(request, policy)
    if refusal is not None:
        return refusal
    resolved = resolve(request, tuning, chain_matching=policy.enable_chain_matching, prompt_tokens=prompt_tokens)
    if isinstance(resolved, Refused):
        return Answer(reasons.NO_HINT, token_ids=resolved.token_ids, dropped=resolved.reason)
    short = too_short(resolved.effective_tokens, policy)
    if short and not policy.affinity_routing:
        return Answer(reasons.NO_HINT, token_ids=resolved.token_ids, dropped=resolved.dropped)
    if not (request.tenant_id and request.model_id and request.hash_scheme):
        return Answer(reasons.NO_HINT, (), request.adapter_id, resolved.token_ids, reasons.EMPTY_KEY)
    warm = policy.enable_tenant_hot and tuning.hot_max_age_ms > 0
    return Query(
        request=request,
        policy=policy,
        model=ModelKey(request.tenant_id, request.model_id),
        partition=Partition(request.hash_scheme, request.adapter_id),
        is_chain=resolved.is_chain,
        keys=_keys(resolved),
        want_warm=warm and not resolved.is_chain and not short,
        hashes=resolved.hashes,
        counts=resolved.counts,
        effective_tokens=resolved.effective_tokens,
        token_ids=resolved.token_ids,
        dropped=resolved.dropped,
    )


def needs_presence(query: Query, evidence: ChainEvidence | ExactEvidence) -> bool:  # noqa: ARG001 - both halves of a step
    """Tell whether the answer depends on what the index holds beyond the request's scope.

    While anybody serves the scope, tenant, model and scheme are known.
    """
    return not evidence.serving


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
        evidence: what the store found. Silent replicas count for what is known at all, and for nothing else.
        presence: what it said of the wider index; needed where :func:`needs_presence` says so.
        now_ms: the same time that the store was asked with.
        tuning: the server's weights.

    Raises:
        ValueError: the presence is needed and missing.
    """
    miss = _miss(query, evidence, presence)
    evidence = without_silent(evidence)
    reason, scores = _strategy(query, evidence, miss, now_ms, tuning)
    if scores and too_short(query.effective_tokens, query.policy):
        reason, scores = reasons.NO_HINT, ()
    if reason == reasons.PREFIX_MATCH:
        scores = apply_floors(scores, query.policy)
        reason = reason if scores else reasons.NO_HINT
    if reason == reasons.NO_HINT:
        picked = _stable_replica(query, evidence.serving, tuning)
        if picked is not None:
            reason, scores = reasons.AFFINITY_HINT, (Score(picked),)
    return Answer(reason, scores, query.request.adapter_id, query.token_ids, query.dropped)


def give_up(query: Query | None, reason: str) -> Answer:
    """Answer without the index (``TIMEOUT``, ``INDEX_UNAVAILABLE``): no adapter echo, the token echo stays.

    Args:
        query: the request's query, ``None`` when it was given up before there was one.
        reason: the reason code.
    """
    if query is None:
        return Answer(reason)
    return Answer(reason, token_ids=query.token_ids, dropped=query.dropped)


def _refusal(request: LookupRequest, policy: Policy) -> Answer | None:
    if request.tenant_id == RESERVED_TENANT:
        return Answer(reasons.NO_HINT, dropped=reasons.RESERVED_TENANT)
    if policy.require_chain and not has_chain(request):
        return Answer(reasons.POLICY_REQUIRES_CHAIN)
    return None


def _keys(resolved: Resolved) -> bytes:
    hashes = resolved.hashes
    return join_keys(hashes[: hashes.index(b"")] if resolved.dropped == reasons.EMPTY_HASH else hashes)


def _miss(query: Query, evidence: ChainEvidence | ExactEvidence, presence: Presence | None) -> str:
    """Return the reason of an answer without scores."""
    if not needs_presence(query, evidence):
        return reasons.NO_HINT
    if presence is None:
        raise ValueError("nobody serves the scope: the presence is needed")
    return diagnose(presence)


def _strategy(
    query: Query, evidence: ChainEvidence | ExactEvidence, miss: str, now_ms: int, tuning: Tuning
) -> tuple[str, tuple[Score, ...]]:
    scale = Scale.for_request(query.request.ttft_ms, now_ms, query.policy.ttl_ms, tuning)
    if isinstance(evidence, ChainEvidence):
        scores = rank_chain(evidence, query.counts, scale)
    else:
        scores = rank_exact(evidence, scale)
    if scores:
        return reasons.PREFIX_MATCH, scores
    if query.want_warm and isinstance(evidence, ExactEvidence):
        scores = rank_warm(evidence.warm, scale, tuning)
        if scores:
            return reasons.TENANT_HOT, scores
    return miss, ()


def _stable_replica(query: Query, serving: Sequence[str], tuning: Tuning) -> str | None:
    # The arrays are checked as sent, even where the policy ignores chains: such a gateway's seed is not to be trusted.
    if not (query.policy.affinity_routing and query.hashes and arrays_agree(query.request)):
        return None
    seed = chain_seed(query.hashes) if query.is_chain else query.hashes[0]
    return pick(seed, serving, tuning.affinity)
