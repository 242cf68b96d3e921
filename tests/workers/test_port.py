from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from inference_cache.settings import Address
from inference_cache.workers.port import Port, reserve


@contextmanager
def reserved(host: str = "127.0.0.1", port: int = 0) -> Iterator[Port]:
    with closing(reserve(Address(host, port))) as held:
        yield held


def listener(address: Address, *, share: bool) -> socket.socket:
    """Listen as a gRPC server does."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(share))
    try:
        made.bind((address.host or "127.0.0.1", address.port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_those_who_share_may_listen_and_others_may_not() -> None:
    """The workers get the port, before and while others of them listen; nobody else does at any time."""
    with reserved() as port:
        assert port.address.port
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                listener(port.address, share=False)
            with closing(listener(port.address, share=True)), closing(listener(port.address, share=True)):
                with pytest.raises(OSError, match="in use"):
                    listener(port.address, share=False)
                with pytest.raises(OSError, match=f"cannot listen on {port.address}"):
                    reserve(port.address)


def test_a_port_is_reserved_once() -> None:
    """Of two servers that start together one fails, also while neither has a worker yet; later the port is free."""
    with reserved() as port, pytest.raises(OSError, match=f"cannot listen on {port.address}: Address already in use"):
        reserve(port.address)
    reserve(port.address).close()


@pytest.mark.parametrize("share", [False, True])
def test_whoever_listens_already_is_noticed(share: bool) -> None:
    """A server that would share with strangers must still not be joined."""
    with closing(listener(Address("127.0.0.1", 0), share=share)) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            reserve(address)


def test_the_reservation_takes_no_connection() -> None:
    """What only holds the name must never be given a client, or the client would wait for ever."""
    with reserved() as port:
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port.address.port))
        with closing(listener(port.address, share=True)) as worker:
            clients = [socket.create_connection(("127.0.0.1", port.address.port)) for _ in range(32)]
            for each in clients:
                worker.accept()[0].close()
                each.close()


def test_lingering_connections_of_a_predecessor_are_no_hindrance() -> None:
    """A server that restarts at once finds old connections in TIME_WAIT, which bind nobody."""
    with closing(listener(Address("127.0.0.1", 0), share=False)) as old:
        address = Address("127.0.0.1", old.getsockname()[1])
        with closing(socket.create_connection(("127.0.0.1", address.port))) as client:
            old.accept()[0].close()  # the server closes first
            assert client.recv(1) == b""
    reserve(address).close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "localhost"])
def test_every_spelling_of_a_host_is_held(host: str) -> None:
    """Every interface, or every address of a name, is held on one port."""
    with reserved(host) as port, pytest.raises(OSError, match="in use"):
        listener(Address("127.0.0.1", port.address.port), share=False)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_an_error_that_names_it(host: str) -> None:
    """A mistake in the address reads as one."""
    with pytest.raises(OSError, match=f"cannot listen on {host}:9090: "):
        reserve(Address(host, 9090))
