from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.cli.canned import Canned


@pytest.fixture
def canned() -> Iterator[Canned]:
    prepared = Canned()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((prepared.handler(),))
    prepared.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield prepared
    server.stop(None).wait()
