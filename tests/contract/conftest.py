"""The stores that must all keep the same contract."""

from __future__ import annotations

import pytest

from inference_cache.store.base import Store
from inference_cache.store.model import ModelStore
from tests.contract.build import NOW, Client


@pytest.fixture(params=["model"])
def store() -> Store:
    """Return an empty store of each kind in turn."""
    return ModelStore(lambda: NOW)


@pytest.fixture
def client(store: Store) -> Client:
    """Return one model of the store."""
    return Client(store)
