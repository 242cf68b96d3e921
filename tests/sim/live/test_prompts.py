from __future__ import annotations

from itertools import islice

from inference_cache.sim.live.prompts import SEEDS, endless
from inference_cache.sim.trace import Request, format_line, parse_line

ROUND = 2000


def test_rounds_and_seeds_share_no_prefix() -> None:
    """A second round is new text, not the first one again, and two gateways do not say the same."""
    first, second = ({one for r in part for one in r.hash_ids} for part in _rounds(3))
    other = {one for request in islice(endless(4), ROUND) for one in request.hash_ids}
    assert not first & second
    assert not (first | second) & other


def test_one_seed_says_the_same_every_time() -> None:
    """A gateway that is started again plays the same chats."""
    assert list(islice(endless(5), 50)) == list(islice(endless(5), 50))


def test_prompts_of_the_last_seed_fit_into_the_trace_format() -> None:
    """Ids stay integers that JSON and the hashes take."""
    request = next(endless(SEEDS - 1))
    assert parse_line(format_line(request)).hash_ids == request.hash_ids
    assert max(request.hash_ids) < 2**63


def _rounds(seed: int) -> tuple[list[Request], list[Request]]:
    prompts = endless(seed)
    return list(islice(prompts, ROUND)), list(islice(prompts, ROUND))
