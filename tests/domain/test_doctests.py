from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

from inference_cache import domain

MODULES = [importlib.import_module(f"{domain.__name__}.{info.name}") for info in pkgutil.iter_modules(domain.__path__)]
DOCTESTED = [module for module in MODULES if any(test.examples for test in doctest.DocTestFinder().find(module))]


@pytest.mark.parametrize("module", DOCTESTED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    """An example that a reader finds in a docstring gives what it says."""
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
