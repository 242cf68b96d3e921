"""A replica that sent statistics once and is silent now is not advertised, where the operator says so."""

from __future__ import annotations

import pytest

from inference_cache.domain.policy import Policy
from inference_cache.domain.tuning import Tuning
from tests.rpc.wire import AFFINITY_OFF, FLOORS_OFF, MINUTE, Wire, asks, chain, exact, hs, ids

A, B, C = hs(*"abc")
STATS = {"hit_rate": 0.5}


@pytest.fixture
def tuning() -> Tuning:
    """Return a server's tuning by which silence of more than five minutes counts."""
    return Tuning(liveness_ttl_ms=5 * MINUTE)


async def test_a_silent_replica_is_left_out_until_it_lives_again(wire: Wire) -> None:
    """Its blocks are there and young enough for the tenant's TTL; a sign of life brings them back."""
    wire.policy(FLOORS_OFF)
    await wire.report("quiet", chain([A, B]), stats=STATS, age_ms=6 * MINUTE)
    await wire.report("loud", chain([A, B]), stats=STATS, age_ms=4 * MINUTE)
    assert ids(await wire.lookup(**asks([A, B]))) == ids(await wire.lookup(A)) == ["loud"]
    await wire.event("REPLICA_UPDATED", "quiet")
    assert sorted(ids(await wire.lookup(**asks([A, B])))) == sorted(ids(await wire.lookup(A))) == ["loud", "quiet"]


async def test_a_report_is_a_sign_of_life(wire: Wire) -> None:
    """Who reports blocks lives, whatever its statistics say."""
    wire.policy(FLOORS_OFF)
    await wire.report("r", stats=STATS, age_ms=20 * MINUTE)
    await wire.report("r", exact(A, 64), age_ms=6 * MINUTE)
    assert (await wire.lookup(A)).reason_code != "PREFIX_MATCH"
    await wire.report("r", exact(B, 64))
    assert (await wire.lookup(A)).reason_code == "PREFIX_MATCH"


async def test_who_never_sent_statistics_is_never_silent(wire: Wire) -> None:
    """A producer that only reports blocks is judged by the TTL alone."""
    wire.policy(FLOORS_OFF)
    await wire.report("r", exact(A, 64), age_ms=20 * MINUTE)
    await wire.event("REPLICA_UPDATED", "r", age_ms=20 * MINUTE)
    assert (await wire.lookup(A)).reason_code == "PREFIX_MATCH"


async def test_the_silent_do_not_dilute(wire: Wire) -> None:
    """Of three replicas two are silent: the third one's match is worth all its tokens."""
    await wire.report("r", exact(A, 64))
    for replica in ("q1", "q2"):
        await wire.report(replica, exact(B, 64), stats=STATS, age_ms=6 * MINUTE)
    (score,) = (await wire.lookup(A)).replica_scores
    assert score.score == pytest.approx(64, rel=0.01)


async def test_affinity_and_warmth_pass_the_silent_over(wire: Wire) -> None:
    """Neither the stable replica of a miss nor a warm one is somebody silent."""
    for replica in ("q1", "q2", "q3"):
        await wire.report(replica, exact(B, 64), stats=STATS, age_ms=6 * MINUTE)
    wire.policy(AFFINITY_OFF)
    assert (await wire.lookup(C)).reason_code == "NO_HINT"
    wire.policy(Policy())
    assert (await wire.lookup(**asks([C, A]))).reason_code == "NO_HINT"
    await wire.report("r", exact(B, 64))
    answer = await wire.lookup(**asks([C, A]))
    assert (answer.reason_code, ids(answer)) == ("AFFINITY_HINT", ["r"])


async def test_what_the_silent_hold_is_known(wire: Wire) -> None:
    """A wrong key is told by what is held, not by who is alive."""
    await wire.report("q", exact(B, 64), stats=STATS, age_ms=6 * MINUTE)
    assert (await wire.lookup(B)).reason_code == "NO_HINT"
    assert (await wire.lookup(B, model_id="other")).reason_code == "UNKNOWN_MODEL"
    assert (await wire.lookup(B, hash_scheme="other")).reason_code == "UNKNOWN_HASH_SCHEME"
