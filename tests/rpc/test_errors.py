"""Every error of ours has its status on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from inference_cache.errors import InferenceCacheError, InputError, StoreError, StoreUnavailable
from inference_cache.rpc.convert import STATUS, status_of


def tree(root: type[InferenceCacheError]) -> Iterator[type[InferenceCacheError]]:
    """Return a class and everything below it that belongs to the project."""
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith("inference_cache"):
            yield from tree(child)


def test_every_error_has_a_row() -> None:
    """An error class without a row of its own would be answered as its parent by accident."""
    assert set(tree(InferenceCacheError)) == set(STATUS)


@pytest.mark.parametrize("kind", STATUS)
def test_details_never_quote_the_error(kind: type[InferenceCacheError]) -> None:
    """The detail is a sentence of ours with the fixed word, never the error's own text."""
    error = kind("redis://user:password@host")
    error_reason = getattr(kind, "reason", None)
    code, detail = status_of(error if not isinstance(error, InputError) else InputError("a_word"))
    assert isinstance(code, grpc.StatusCode)
    assert "password" not in detail
    assert detail.startswith(STATUS[kind][1])
    if error_reason is not None:
        assert detail.endswith(f"({error_reason})")


def test_a_class_of_tomorrow_is_answered_as_its_parent() -> None:
    """A subclass that another module brings is answered like the nearest class of the table."""

    class Elsewhere(StoreUnavailable):
        reason = "elsewhere"

    assert status_of(Elsewhere("x")) == (grpc.StatusCode.UNAVAILABLE, f"{STATUS[StoreUnavailable][1]} (elsewhere)")
    assert issubclass(Elsewhere, StoreError)
