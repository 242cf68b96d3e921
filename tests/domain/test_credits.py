"""A delivered prefix match credits what it matched, as deep as it matched, at who was named."""

from __future__ import annotations

from inference_cache.domain.credits import Delivery, credits_of, delivery
from inference_cache.domain.models import ChainEvidence, Credit, ExactEvidence, ModelKey, Partition, Path
from inference_cache.domain.ranking import Score
from tests.domain.evidence import holder, run

PATH = Path(ModelKey("t", "m"), Partition("vllm"), ((b"s1", 2, 3), (b"s2", 0, 4)), 7)


def test_each_replica_is_credited_as_deep_as_it_reaches() -> None:
    """In places that its run passes to their end, in the last one to where it stops."""
    found = delivery(
        ChainEvidence((run("a", 7), run("b", 4), run("c", 3)), path=PATH), [Score("a"), Score("b"), Score("c")]
    )
    assert found is not None
    assert list(credits_of(found)) == [
        Credit(b"s1", "a", 5, 7),
        Credit(b"s2", "a", 4, 7),
        Credit(b"s1", "b", 5, 7),
        Credit(b"s2", "b", 1, 7),
        Credit(b"s1", "c", 5, 7),
    ]


def test_who_was_not_named_is_not_credited() -> None:
    """The floors' victims saved nobody anything."""
    found = delivery(ChainEvidence((run("a", 7), run("b", 4)), path=PATH), [Score("b")])
    assert found == Delivery(PATH, (("b", 4),))
    assert delivery(ChainEvidence((run("a", 7),), path=PATH), []) is None


def test_a_place_that_is_passed_twice_is_credited_twice() -> None:
    """A block repeated in the request counts per occurrence."""
    path = Path(PATH.model, PATH.partition, ((b"s", 0, 1), (b"s", 0, 1)), 1)
    assert list(credits_of(Delivery(path, (("a", 2),)))) == [Credit(b"s", "a", 1, 1)] * 2


def test_an_exact_match_needs_tokens() -> None:
    """A holder of a block without tokens is delivered and not credited."""
    path = Path(PATH.model, PATH.partition, ((b"s", 4, 1),), 1)
    evidence = ExactEvidence((holder("a", 0), holder("b", 1), holder("c", -1)), path=path)
    found = delivery(evidence, [Score("a"), Score("b"), Score("c")])
    assert found is not None
    assert list(credits_of(found)) == [Credit(b"s", "b", 5, 1)]


def test_without_a_path_nothing_is_credited() -> None:
    """Tenants that do not count hits ask for no path."""
    assert delivery(ChainEvidence((run("a", 7),)), [Score("a")]) is None


def test_a_delivery_is_never_more_credits_than_its_size() -> None:
    """What waits is bounded by what it can become."""
    found = Delivery(PATH, (("a", 7), ("b", 1)))
    assert len(list(credits_of(found))) <= found.size == 4
