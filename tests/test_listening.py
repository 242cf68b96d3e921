from __future__ import annotations

import socket

import pytest

from inference_cache.listening import why_not
from inference_cache.settings import Address


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_taken_port_is_told_as_one(host: str) -> None:
    """By address or by name."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert why_not(Address(host, taken.getsockname()[1])) == "Address already in use"


def test_an_address_of_another_machine_is_told_as_one() -> None:
    """Nobody looks for a process on a port when the host is wrong."""
    assert why_not(Address("192.0.2.1", 9090)) == "Cannot assign requested address"


def test_a_name_that_means_nothing_is_told_in_the_resolvers_words() -> None:
    """It is no matter of ports either."""
    said = why_not(Address("nowhere.invalid", 9090))
    assert said
    assert "Errno" not in said


def test_what_can_be_had_by_now_was_taken_before() -> None:
    """A listener failed, so somebody had the port."""
    assert why_not(Address("127.0.0.1", 0)).startswith("taken by another process")
