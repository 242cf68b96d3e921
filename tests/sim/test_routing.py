from __future__ import annotations

from inference_cache._pb import inferencecache_pb2 as pb
from inference_cache.sim.engine import Engine, Prefill
from inference_cache.sim.gateway import ranked
from inference_cache.sim.routing import LeastLoaded, LoadRule, RoundRobin, Yardstick
from inference_cache.sim.trace import Request

RULE = LoadRule(slack_ms=100, blind_slack_ms=10)


def make_engines(count: int = 3) -> list[Engine]:
    return [Engine(f"e{n}", 1000, Prefill(fixed_ms=0, token_ms=1)) for n in range(count)]


def warm(engine: Engine, *hash_ids: int) -> None:
    engine.cache.store([(hash_id, 32) for hash_id in hash_ids])


def busy(engine: Engine, tokens: int) -> None:
    engine.submit(Request(0, tokens, 0, ()), 0)


async def test_round_robin_takes_turns() -> None:
    """Every engine gets its turn, whatever it does."""
    engines, routing = make_engines(), RoundRobin()
    chosen = [await routing.choose(Request(0, 1, 0, ()), engines, 0) for _ in range(4)]
    assert [engine.replica_id for engine in chosen] == ["e0", "e1", "e2", "e0"]


async def test_least_loaded_takes_the_shortest_queue() -> None:
    """The engine with the least prefill ahead is chosen."""
    engines = make_engines()
    busy(engines[0], 50)
    busy(engines[1], 20)
    busy(engines[2], 70)
    assert await LeastLoaded().choose(Request(0, 1, 0, ()), engines, 0) is engines[1]


async def test_idle_engines_share_the_work() -> None:
    """Of equally loaded engines the one with fewer requests so far is chosen, not always the first."""
    engines = make_engines()
    busy(engines[0], 5)
    engines[0].finish()
    assert await LeastLoaded().choose(Request(9, 1, 0, ()), engines, 9) is engines[1]


async def test_the_yardstick_knows_the_true_caches() -> None:
    """The longest cached prefix wins, as it is in the engines' caches at that moment."""
    engines, yardstick = make_engines(), Yardstick(RULE)
    prompt = Request(0, 1536, 0, (1, 2, 3))
    warm(engines[1], 1)
    warm(engines[2], 1, 2)
    assert await yardstick.choose(prompt, engines, 0) is engines[2]
    warm(engines[0], 1, 2, 3)
    assert await yardstick.choose(prompt, engines, 0) is engines[0]


async def test_the_yardstick_settles_ties_by_the_queue() -> None:
    """Of equally long matches the one with the shortest queue wins."""
    engines = make_engines()
    warm(engines[0], 1)
    warm(engines[2], 1)
    busy(engines[0], 30)
    assert await Yardstick(RULE).choose(Request(0, 512, 0, (1,)), engines, 0) is engines[2]


async def test_the_yardstick_obeys_the_load_rule() -> None:
    """An overloaded holder is passed over for the next best one."""
    engines = make_engines()
    warm(engines[0], 1, 2)
    warm(engines[1], 1)
    busy(engines[0], 101)
    prompt = Request(0, 1024, 0, (1, 2))
    assert await Yardstick(RULE).choose(prompt, engines, 0) is engines[1]


def test_a_match_is_worth_waiting_and_a_blind_pick_less() -> None:
    """The load rule allows a holder a longer queue than an engine that holds nothing of the prompt."""
    engines = make_engines()
    for engine in engines[1:]:  # all have taken one request, so only the queues differ
        busy(engine, 5)
        engine.finish()
    busy(engines[0], 50)
    assert RULE.first_fit([(engines[0], 512)], engines, 0) is engines[0]
    assert RULE.first_fit([(engines[0], 0)], engines, 0) is engines[1]
    busy(engines[0], 51)
    assert RULE.first_fit([(engines[0], 512)], engines, 0) is engines[1]


def test_a_blind_pick_gets_no_more_than_its_share() -> None:
    """An index that knows few engines yet picks those; a gateway does not fill them while others idle."""
    engines = make_engines()
    busy(engines[0], 5)
    engines[0].finish()
    assert RULE.first_fit([(engines[0], 0)], engines, 9) is engines[1]
    assert RULE.first_fit([(engines[0], 512)], engines, 9) is engines[0]
    for engine in engines[1:]:
        busy(engine, 5)
        engine.finish()
    assert RULE.first_fit([(engines[0], 0)], engines, 9) is engines[0]


def test_without_a_hint_the_shortest_queue_is_taken() -> None:
    """No hint is no failure: the request goes where it would go without the service."""
    engines = make_engines()
    busy(engines[0], 1)
    busy(engines[1], 2)
    assert RULE.first_fit([], engines, 0) is engines[2]


def test_hints_keep_their_order_and_equal_matches_go_by_the_queue() -> None:
    """A gateway follows the ranking, uses the queue among equals, and ignores replicas that it does not know."""
    engines = make_engines()
    busy(engines[0], 30)
    scores = [
        pb.ReplicaScore(replica_id="gone", matched_tokens=900),
        pb.ReplicaScore(replica_id="e2", matched_tokens=640),
        pb.ReplicaScore(replica_id="e0", matched_tokens=64),
        pb.ReplicaScore(replica_id="e1", matched_tokens=64),
    ]
    assert list(ranked(scores, engines, 0)) == [(engines[2], 640), (engines[1], 64), (engines[0], 64)]
