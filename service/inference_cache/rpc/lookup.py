"""Answering one lookup in time: the deadlines of ``LookupRoute`` around the domain's decisions.

Whatever happens, there is an answer, and it comes within the budget: the caller's deadline, the tenant's
``lookup_timeout_ms``, and where the tenant has none the server's own, which bounds the index stage alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from inference_cache.domain import reasons
from inference_cache.domain.credits import delivery
from inference_cache.domain.models import RESERVED_TENANT, ChainEvidence, ExactEvidence
from inference_cache.domain.policy import PolicySource
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.routing import Answer, Query, decide, give_up, needs_presence, plan
from inference_cache.domain.times import expired_at_ms, silent_at_ms
from inference_cache.domain.tuning import Tuning
from inference_cache.errors import StoreError, WalkTooLong
from inference_cache.metrics import Metrics
from inference_cache.rpc.admission import DEFAULT_MAX_LOOKUPS, Admission
from inference_cache.rpc.credits import Credits
from inference_cache.rpc.deadlines import Deadlines
from inference_cache.store.base import Store

DEFAULT_LOOKUP_TIMEOUT_MS = 50
"""Budget of the index stage of a lookup whose tenant has none of its own."""

INLINE_TOKENS = 16_384
"""Prompts of more token ids are fingerprinted on a thread, so that other lookups go on meanwhile."""

_PROVES_MODEL = frozenset(
    {reasons.PREFIX_MATCH, reasons.TENANT_HOT, reasons.AFFINITY_HINT, reasons.UNKNOWN_HASH_SCHEME}
)

Evidence = ChainEvidence | ExactEvidence


class Lookups:
    """Answers lookups from the index.

    Args:
        store: the index.
        policies: the tenants' rules.
        metrics: where every lookup is counted.
        hits: where the hits of LFU tenants are counted.
        tuning: the server's weights and limits.
        lookup_timeout_ms: budget of the index stage where the tenant's policy has none; 0 = none.
        max_in_flight: lookups under way at once; those beyond are answered NO_HINT at once.
    """

    def __init__(
        self,
        store: Store,
        policies: PolicySource,
        metrics: Metrics,
        hits: Credits,
        tuning: Tuning,
        lookup_timeout_ms: int = DEFAULT_LOOKUP_TIMEOUT_MS,
        max_in_flight: int = DEFAULT_MAX_LOOKUPS,
    ) -> None:
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._hits = hits
        self._tuning = tuning
        self._timeout_ms = lookup_timeout_ms
        self._deadlines = Deadlines()
        self._admission = Admission(max_in_flight)

    async def answer(self, request: LookupRequest, remaining_s: float | None) -> tuple[Answer, int]:
        """Return the answer to a lookup and the microseconds it took; count both.

        Args:
            request: the question.
            remaining_s: seconds until the caller's deadline, ``None`` when it has none.
        """
        if request.tenant_id == RESERVED_TENANT:
            self._metrics.reserved_tenant("LookupRoute")
            answer = Answer(reasons.NO_HINT)
            self._count(request, answer, 0.0)
            return answer, 0
        began = time.perf_counter()
        answer = give_up(None, reasons.TIMEOUT)  # what a caller that goes away is counted as
        try:
            with self._admission:
                answer = await self._route(request, remaining_s)
        except Exception:
            answer = give_up(None, reasons.INDEX_UNAVAILABLE)
            raise
        finally:
            seconds = time.perf_counter() - began
            self._count(request, answer, seconds)
        return answer, int(seconds * 1e6)

    async def _route(self, request: LookupRequest, remaining_s: float | None) -> Answer:
        policies = self._policies.current()  # one generation throughout, whatever is pushed meanwhile
        policy = policies.for_tenant(request.tenant_id)
        now = asyncio.get_running_loop().time()
        deadline = _sooner(_after(now, policy.lookup_timeout_ms), None if remaining_s is None else now + remaining_s)
        if deadline is not None and deadline <= now:
            return give_up(None, reasons.TIMEOUT)
        if len(request.token_ids) > INLINE_TOKENS:
            if self._admission.crowded:
                return self._shed(None)
            try:
                async with asyncio.timeout_at(deadline):
                    step = await asyncio.to_thread(plan, request, policy, self._tuning)
            except TimeoutError:
                return give_up(None, reasons.TIMEOUT)
        else:
            step = plan(request, policy, self._tuning)
        if isinstance(step, Answer):
            return step
        return self._shed(step) if self._admission.crowded else await self._ask_within(deadline, step, policies)

    def _shed(self, query: Query | None) -> Answer:
        self._metrics.lookup_shed()
        return give_up(query, reasons.NO_HINT)

    async def _ask_within(self, deadline: float | None, query: Query, policies: PolicySource) -> Answer:
        """Ask the index; the server's own budget begins here."""
        now = asyncio.get_running_loop().time
        if query.policy.lookup_timeout_ms <= 0:
            deadline = _sooner(deadline, _after(now(), self._timeout_ms))
        wait = self._deadlines.until(deadline)
        try:
            with wait:
                answer, evidence = await self._ask(query, policies)
        except TimeoutError:
            if not wait.expired:
                raise
            return give_up(query, reasons.TIMEOUT)
        except StoreError as error:
            self._metrics.store_error("LookupRoute", error.reason)
            too_long = isinstance(error, WalkTooLong)
            return give_up(query, reasons.TIMEOUT if too_long else reasons.INDEX_UNAVAILABLE)
        if deadline is not None and deadline <= now():
            return give_up(query, reasons.TIMEOUT)
        if answer.reason == reasons.PREFIX_MATCH and (hit := delivery(evidence, answer.scores)):
            self._hits.add(hit)
        return answer

    async def _ask(self, query: Query, policies: PolicySource) -> tuple[Answer, Evidence]:
        now_ms = self._store.now_ms()
        where = query.model, query.partition, query.keys
        expired, lfu = query.expired_at_ms(now_ms), query.policy.lfu
        silent = silent_at_ms(now_ms, self._tuning.liveness_ttl_ms)
        evidence: Evidence
        if query.is_chain:
            evidence = await self._store.lookup_chain(*where, expired_at_ms=expired, silent_at_ms=silent, want_path=lfu)
        else:
            evidence = await self._store.lookup_exact(
                *where, expired_at_ms=expired, silent_at_ms=silent, want_path=lfu, want_warm=query.want_warm
            )
        presence = None
        if needs_presence(query, evidence):
            presence = await self._store.presence(query.model, _expired_at(query, policies, now_ms))
        return decide(query, evidence, presence, now_ms, self._tuning), evidence

    def _count(self, request: LookupRequest, answer: Answer, seconds: float) -> None:
        if answer.dropped:
            self._metrics.lookup_malformed(answer.dropped)
        self._metrics.looked_up(
            request.model_id,
            answer.reason,
            hint=bool(answer.scores),
            index_knows=answer.reason in _PROVES_MODEL,
            seconds=seconds,
        )


def _expired_at(query: Query, policies: PolicySource, now_ms: int) -> Callable[[str], int]:
    """Return what is expired for each tenant, by the policies that the request began with."""

    def expired_at(tenant_id: str) -> int:
        own = tenant_id == query.model.tenant_id
        policy = query.policy if own else policies.for_tenant(tenant_id)
        return expired_at_ms(now_ms, policy.ttl_ms)

    return expired_at


def _after(moment: float, budget_ms: int) -> float | None:
    """Return when a budget ends; a budget of 0 or less is none."""
    return moment + budget_ms / 1000 if budget_ms > 0 else None


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
