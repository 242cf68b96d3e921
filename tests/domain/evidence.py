"""Evidence in few words, so that a test of the ranking shows its numbers and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from inference_cache.domain.models import ChainEvidence, ExactEvidence, Holder, Presence, ReplicaStats, Run
from inference_cache.domain.policy import Policy
from inference_cache.domain.ranking import Score
from inference_cache.domain.requests import LookupRequest
from inference_cache.domain.routing import Answer, Query, decide, plan
from inference_cache.domain.tuning import Tuning

NOW = 1_700_000_000_000
"""The time at which these tests happen, in ms; any would do."""
MINUTE = 60_000
OPEN = Policy(minimum_matched_tokens=0, routing_floor_score=0.0, affinity_routing=False)
"""No floors and no fallback: the bare ranking shows."""
KNOWN = Presence(index=True, tenant=True, model=True)


def stats(*, hit_rate: float = 0.0, pressure: float = 0.0, age_ms: int = 0) -> ReplicaStats:
    """Return statistics of that age."""
    return ReplicaStats(hit_rate=hit_rate, pressure=pressure, reported_ms=NOW - age_ms, alive_ms=NOW)


def holder(
    replica_id: str, tokens: int, *, age_ms: int = 0, tier: int = 1, stats: ReplicaStats | None = None
) -> Holder:
    """Return a holding of that age."""
    return Holder(replica_id, tokens, NOW - age_ms, tier, stats)


def run(replica_id: str, blocks: int, *, age_ms: int = 0, tier: int = 1, stats: ReplicaStats | None = None) -> Run:
    """Return a leading run whose oldest block is of that age."""
    return Run(replica_id, blocks, NOW - age_ms, tier, stats)


def serving(count: int, *known: str) -> tuple[str, ...]:
    """Return ids of that many serving replicas, the known ones among them."""
    return tuple(sorted([*known, *(f"~decoy-{at}" for at in range(count - len(known)))]))


def exact(total: int, *holders: Holder) -> ExactEvidence:
    """Return evidence for one block of which ``total`` replicas could be holders."""
    return ExactEvidence(holders, serving(total, *(one.replica_id for one in holders)))


def chain(total: int, *runs: Run) -> ChainEvidence:
    """Return evidence for a chain of which ``total`` replicas could hold a part."""
    return ChainEvidence(runs, serving(total, *(one.replica_id for one in runs)))


def ask(
    *,
    prefix_hash: bytes = b"",
    tokens: int = 0,
    hashes: list[bytes] | None = None,
    counts: list[int] | None = None,
    token_ids: Sequence[int] = (),
    text: str = "",
    ttft_ms: int = 0,
    tenant: str = "tenant",
    model: str = "model",
    scheme: str = "vllm",
    adapter: str = "",
) -> LookupRequest:
    """Return a request; tenant, model and scheme are known ones unless said."""
    return LookupRequest(
        tenant_id=tenant,
        model_id=model,
        hash_scheme=scheme,
        adapter_id=adapter,
        prefix_hash=prefix_hash,
        prefix_token_count=tokens,
        block_hashes=hashes or [],
        block_token_counts=counts or [],
        token_ids=token_ids,
        prompt_text=text,
        ttft_ms=ttft_ms,
    )


def ask_exact(tokens: int = 0, **more: object) -> LookupRequest:
    """Return a request for one hash."""
    return ask(prefix_hash=b"prefix-a", tokens=tokens, **more)  # type: ignore[arg-type]


def ask_chain(*counts: int, **more: object) -> LookupRequest:
    """Return a request for a chain of blocks with these counts."""
    hashes = [b"block%03d" % at for at in range(len(counts))]
    return ask(hashes=hashes, counts=list(counts), **more)  # type: ignore[arg-type]


def query(request: LookupRequest, policy: Policy = OPEN, tuning: Tuning | None = None) -> Query:
    """Return the query of a request that needs the index."""
    step = plan(request, policy, tuning or Tuning())
    assert isinstance(step, Query)
    return step


def refused(request: LookupRequest, policy: Policy = OPEN, tuning: Tuning | None = None) -> Answer:
    """Return the answer of a request that the index is not asked about."""
    step = plan(request, policy, tuning or Tuning())
    assert isinstance(step, Answer)
    return step


def answer(
    request: LookupRequest,
    evidence: ChainEvidence | ExactEvidence,
    policy: Policy = OPEN,
    tuning: Tuning | None = None,
    presence: Presence = KNOWN,
) -> Answer:
    """Return what a request is answered on this evidence."""
    return decide(query(request, policy, tuning), evidence, presence, NOW, tuning or Tuning())


def points(scores: tuple[Score, ...]) -> dict[str, float]:
    """Return scores by replica, best first."""
    return {score.replica_id: score.score for score in scores}
