"""The `inference-cache` command.

Loading the sub-commands takes a good part of a second, in which Ctrl-C should end the process without a trace. So
nothing is loaded here before that is seen to.
"""

from __future__ import annotations

from inference_cache.cli.interrupt import ends_quietly


def main() -> None:
    """Run the command line."""
    with ends_quietly():
        from inference_cache.cli.commands import build_app  # noqa: PLC0415 - see above
    build_app()()
