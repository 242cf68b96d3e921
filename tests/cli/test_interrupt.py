"""Ctrl-C before a server has handlers of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from inference_cache.cli.interrupt import ends_quietly


@pytest.mark.parametrize("module", ["commands", "serve_needs"])
def test_ctrl_c_while_loading_ends_without_a_word(module: str) -> None:
    """Whichever of the two big imports is under way."""
    name = {"commands": "inference_cache.cli.commands", "serve_needs": "inference_cache.app"}[module]
    interrupted = f"""
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from inference_cache.cli.main import main
sys.argv = ["inference-cache", "serve"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_other_commands_hear_of_ctrl_c_themselves() -> None:
    """Outside of the block everything is as before, and in it for who ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ends_quietly():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with ends_quietly():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
