"""Benchmarks of the index and of the server on it; ``python -m loadtest.bench --help``.

A figure is a ratio against a baseline of the same run, or a cost on the server's side: machines differ and are busy,
and neither says much about the code.
"""
