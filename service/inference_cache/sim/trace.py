"""Prompts of a chat service, in the format of the Mooncake trace.

One JSON object a line: ``timestamp`` (ms since the trace's start), ``input_length`` and ``output_length`` (tokens)
and ``hash_ids``, one integer for each begun 512 tokens of the prompt. An id names the whole prefix up to its end:
equal ids, equal prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson

from inference_cache.errors import ConfigError

BLOCK_TOKENS = 16
"""Tokens of one KV-cache block."""
ID_BLOCKS = 32
"""Blocks that one id of the trace stands for."""
ID_TOKENS = ID_BLOCKS * BLOCK_TOKENS
"""Tokens that one id of the trace stands for; the last id of a prompt may stand for fewer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt of a trace.

    Attributes:
        arrival_ms: when it arrives, in simulated milliseconds.
        input_tokens: the prompt's length.
        output_tokens: the answer's length.
        hash_ids: the prompt's prefix in steps of :data:`ID_TOKENS` tokens.
    """

    arrival_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Full blocks of the prompt; only these are ever cached."""
        return min(self.input_tokens // BLOCK_TOKENS, len(self.hash_ids) * ID_BLOCKS)

    def spans(self) -> list[tuple[int, int]]:
        """Return ``(hash id, its full blocks in this prompt)`` from head to tail, ids without a full block left out."""
        left = self.blocks
        spans = []
        for hash_id in self.hash_ids:
            if left <= 0:
                break
            spans.append((hash_id, min(ID_BLOCKS, left)))
            left -= ID_BLOCKS
        return spans


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """Read the first ``limit`` requests of a trace file (``None`` = all), in the order of their arrival.

    Raises:
        ConfigError: the file cannot be read, a line is not a request, or there is none.
    """
    try:
        with path.open("rb") as lines:
            requests = list(islice(_parse_all(lines, path), limit))
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror or error}") from error
    if not requests:
        raise ConfigError(f"--trace {path}: no requests in it")
    return sorted(requests, key=lambda request: request.arrival_ms)


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """Write requests in the format that :func:`read_trace` reads."""
    with path.open("wb") as out:
        out.writelines(format_line(request) for request in requests)


def format_line(request: Request) -> bytes:
    """Return one request as a line of the trace format."""
    fields = {
        "timestamp": round(request.arrival_ms),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": request.hash_ids,
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def parse_line(line: bytes) -> Request:
    """Parse one line.

    Raises:
        ValueError: it is not a request; the text says why.
    """
    fields = orjson.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the caller catches one kind
    hash_ids = fields.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(type(one) is int for one in hash_ids):
        raise ValueError("hash_ids must be a list of integers")
    arrival = fields.get("timestamp")
    if not isinstance(arrival, int | float) or isinstance(arrival, bool) or arrival < 0:
        raise ValueError("timestamp must be a number of milliseconds, 0 or more")
    return Request(
        arrival_ms=arrival,
        input_tokens=_count(fields, "input_length"),
        output_tokens=_count(fields, "output_length"),
        hash_ids=tuple(hash_ids),
    )


def _count(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more")
    return value


def _parse_all(lines: Iterable[bytes], path: Path) -> Iterator[Request]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse_line(line)
        except ValueError as error:
            raise ConfigError(f"--trace {path}, line {number}: {error}") from error
