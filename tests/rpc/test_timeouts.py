"""Lookups answer within their budget, whatever the index does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.domain.fingerprint import block_hashes
from inference_cache.domain.models import ExactEvidence
from inference_cache.domain.policy import Policy
from inference_cache.domain.reasons import INDEX_UNAVAILABLE, POLICY_REQUIRES_CHAIN, TIMEOUT
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.tuning import Tuning
from inference_cache.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, WalkTooLong
from inference_cache.metrics import Metrics
from inference_cache.rpc.credits import Credits
from inference_cache.rpc.lookup import INLINE_TOKENS, Lookups
from inference_cache.store.base import Store
from tests.rpc.serving import GatedStore, serving, until
from tests.rpc.wire import TENANT, Policies, Wire, asks, chain, exact, h, hs, ids


def lookups_on(store: Store, policies: Policies) -> Lookups:
    """Return what answers lookups, without a server around it."""
    metrics = Metrics()
    return Lookups(store, policies, metrics, Credits(store, metrics), Tuning())


QUESTIONS = [{"prefix_hash": h("p")}, asks(hs(1, 2), 64)]


def calls(wire: Wire, reason: str, model: str = "other") -> float:
    """Return how many lookups were counted with a reason and without a hint."""
    labels = {"model": model, "reason_code": reason, "hint_used": "false"}
    return wire.counted("lookup_route_calls_total", labels)


@pytest.mark.parametrize("question", QUESTIONS, ids=["exact", "chain"])
@pytest.mark.parametrize(("server_ms", "policy_ms"), [(20, 0), (0, 20), (600_000, 20)])
async def test_an_index_that_never_answers(question: dict[str, bytes], server_ms: int, policy_ms: int) -> None:
    """The server's budget ends the wait, and a policy's replaces it; the answer is empty and the work is cut."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store, lookup_timeout_ms=server_ms) as wire:
        wire.policy(Policy(lookup_timeout_ms=policy_ms))
        answer = await wire.lookup(**question, adapter_id="sql")
        assert (answer.reason_code, ids(answer), answer.adapter_id) == ("TIMEOUT", [], "")
        assert answer.lookup_latency_us >= 20_000
        assert calls(wire, "TIMEOUT") == 1
    assert len(store.cut) == 1


async def test_a_policys_budget_may_be_longer() -> None:
    """A policy's budget replaces the server's also where it is the longer one."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store, lookup_timeout_ms=1) as wire:
        wire.policy(Policy(lookup_timeout_ms=600_000))
        lookup = asyncio.ensure_future(wire.lookup(h("p")))
        await store.called(1)
        await asyncio.sleep(0.02)
        store.gate.set()
        assert (await lookup).reason_code == "NO_HINT"


async def test_a_budget_covers_the_second_question() -> None:
    """The budget is one for the whole index stage: asking for the presence does not begin a new one."""
    store = GatedStore()
    async with serving(store, lookup_timeout_ms=50) as wire:
        original = store.lookup_exact

        async def then_shut(*args: Any, **more: Any) -> ExactEvidence:
            evidence = await original(*args, **more)
            store.gate.clear()
            return evidence

        store.lookup_exact = then_shut  # type: ignore[method-assign]
        assert (await wire.lookup(h("p"))).reason_code == "TIMEOUT"
    assert store.cut == ["presence"]


async def test_a_fast_answer_is_not_cut() -> None:
    """A budget that is not used up changes nothing."""
    async with serving(GatedStore(), lookup_timeout_ms=60_000) as wire:
        wire.policy(Policy(lookup_timeout_ms=60_000))
        await wire.report("A", exact(h("p"), 64))
        assert (await wire.lookup(h("p"))).reason_code == "PREFIX_MATCH"


async def test_an_answer_that_came_too_late_is_not_told() -> None:
    """An answer that is there only after the deadline is a timeout: its scores never leak."""

    class Stalling(GatedStore):
        async def lookup_exact(self, *args: Any, **more: Any) -> ExactEvidence:
            evidence = await super().lookup_exact(*args, **more)
            time_is_up = asyncio.get_running_loop().time() + 0.03
            while asyncio.get_running_loop().time() < time_is_up:
                pass  # a loop that is busy cannot be interrupted
            return evidence

    async with serving(Stalling(), lookup_timeout_ms=20) as wire:
        await wire.report("A", exact(h("p"), 64))
        answer = await wire.lookup(h("p"))
        assert (answer.reason_code, ids(answer)) == ("TIMEOUT", [])


@pytest.mark.parametrize("remaining", [0.0, -1.0])
@pytest.mark.parametrize("policy", [Policy(), Policy(require_chain=True)])
async def test_a_deadline_that_has_passed(remaining: float, policy: Policy) -> None:
    """A request that arrives too late is a timeout before anything else is looked at."""
    store = GatedStore()
    lookups = lookups_on(store, Policies({TENANT: policy}))
    answer, _ = await lookups.answer(LookupRequest(TENANT, "m1", "vllm", prefix_hash=h("p")), remaining)
    assert answer.reason == TIMEOUT
    assert store.calls == []


async def test_the_callers_deadline_tightens_the_budget() -> None:
    """A caller's deadline ends the wait before the policy's budget does."""
    store = GatedStore()
    store.gate.clear()
    lookups = lookups_on(store, Policies({TENANT: Policy(lookup_timeout_ms=600_000)}))
    answer, _ = await lookups.answer(LookupRequest(TENANT, "m1", "vllm", prefix_hash=h("p")), 0.02)
    assert answer.reason == TIMEOUT


async def test_a_caller_that_goes_away() -> None:
    """The work of a caller that has gone is cut, and counted as a timeout."""
    store = GatedStore()
    store.gate.clear()
    async with serving(store) as wire:
        call = wire.stub.LookupRoute(
            pb.LookupRouteRequest(tenant_id=TENANT, model_id="m1", hash_scheme="vllm", prefix_hash=h("p"))
        )
        await store.called(1)
        call.cancel()
        await until(lambda: calls(wire, "TIMEOUT"))
    assert store.cut == ["lookup_exact"]


@pytest.mark.parametrize("question", QUESTIONS, ids=["exact", "chain"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("away"), INDEX_UNAVAILABLE),
        (StoreFull("full"), INDEX_UNAVAILABLE),
        (StoreCorrupt("what"), INDEX_UNAVAILABLE),
        (StoreError("hm"), INDEX_UNAVAILABLE),
        (WalkTooLong("far"), TIMEOUT),
    ],
)
async def test_an_index_that_cannot_answer(question: dict[str, bytes], error: StoreError, reason: str) -> None:
    """Every error of the index is an empty answer without the adapter's echo, counted by its reason."""
    store = GatedStore()
    store.error = error
    async with serving(store) as wire:
        answer = await wire.lookup(**question, adapter_id="sql")
        assert (answer.reason_code, ids(answer), answer.adapter_id) == (reason, [], "")
        assert calls(wire, reason) == 1
        assert wire.counted("store_errors_total", {"rpc": "LookupRoute", "reason": error.reason}) == 1


@pytest.mark.parametrize("error", [ValueError("secret prompt"), TimeoutError("not the budget's")])
async def test_an_error_that_nobody_foresaw(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else goes wrong is an empty answer and a log line without the error's text."""
    store = GatedStore()
    store.error = error
    async with serving(store, lookup_timeout_ms=60_000) as wire:
        answer = await wire.lookup(h("p"))
        assert (answer.reason_code, ids(answer)) == ("INDEX_UNAVAILABLE", [])
        assert calls(wire, "INDEX_UNAVAILABLE") == 1
        assert wire.counted("unexpected_errors_total", {"rpc": "LookupRoute"}) == 1
    logged = [vars(record) for record in caplog.records]
    assert any("unexpected_error" in str(record) for record in logged)
    assert not any(str(error) in str(record) for record in logged)


async def test_what_needs_no_index_does_not_wait_for_it() -> None:
    """Answers that the index has no part in come while it is away."""
    store = GatedStore()
    store.error = StoreUnavailable("away")
    async with serving(store) as wire:
        wire.policy(Policy(require_chain=True))
        assert (await wire.lookup(h("p"))).reason_code == POLICY_REQUIRES_CHAIN
        assert (await wire.lookup(tenant_id="inferencecache.io/probe")).reason_code == "NO_HINT"
        assert (await wire.lookup(**asks(hs(1)), hash_scheme="")).reason_code in {"NO_HINT", POLICY_REQUIRES_CHAIN}
    assert store.calls == []


async def test_the_presence_is_asked_only_where_it_matters() -> None:
    """A request whose scope somebody serves costs one question, one whose scope is empty two."""
    store = GatedStore()
    async with serving(store) as wire:
        await wire.report("A", exact(h("p"), 64))
        await wire.lookup(h("p"))
        await wire.lookup(h("novel"))
        await wire.lookup(h("p"), model_id="m2")
    assert [name for name, _ in store.calls[1:]] == ["lookup_exact", "lookup_exact", "lookup_exact", "presence"]


async def test_a_long_prompt_is_prepared_beside_other_lookups() -> None:
    """Token ids too many to hash in passing are hashed on a thread, with the same answer."""
    tokens = range(2 * INLINE_TOKENS)
    async with serving(GatedStore()) as wire:
        await wire.report("A", chain(block_hashes(tokens, 16)))
        answer = await wire.lookup(token_ids=tokens)
        assert [score.matched_tokens for score in answer.replica_scores] == [2 * INLINE_TOKENS]


async def test_a_long_prompt_keeps_the_budget() -> None:
    """The budget of a policy also ends the preparation of a prompt."""
    store = GatedStore()
    async with serving(store, tuning=Tuning(block_size=1)) as wire:
        wire.policy(Policy(lookup_timeout_ms=1))
        answer = await wire.lookup(token_ids=range(700_000))
        assert answer.reason_code == "TIMEOUT"
    assert store.calls == []
