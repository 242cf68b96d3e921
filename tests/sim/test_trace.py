from __future__ import annotations

from pathlib import Path

import pytest

from inference_cache.errors import ConfigError
from inference_cache.sim.blocks import HASH_BYTES, id_hashes, prompt_hashes
from inference_cache.sim.trace import Request, parse_line, read_trace, write_trace

LINE = b'{"timestamp": 27482, "input_length": 1040, "output_length": 52, "hash_ids": [46, 47, 2353]}\n'


def test_a_line_of_the_format_is_read_field_by_field() -> None:
    """A recorded line becomes a request with nothing lost."""
    assert parse_line(LINE) == Request(27482, 1040, 52, (46, 47, 2353))


def test_only_full_blocks_of_a_prompt_count() -> None:
    """An id stands for 32 blocks of 16 tokens; the last one for as many as the prompt's length leaves."""
    assert parse_line(LINE).spans() == [(46, 32), (47, 32), (2353, 1)]
    assert Request(0, 1030, 0, (46, 47, 2353)).spans() == [(46, 32), (47, 32)]
    assert Request(0, 15, 0, (1,)).spans() == []


def test_a_length_beyond_the_ids_adds_no_blocks() -> None:
    """Tokens that no id names are nobody's blocks."""
    assert Request(0, 5000, 0, (1, 2)).blocks == 64


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """The writer and the reader speak one format."""
    requests = [Request(0, 600, 5, (1, 2)), Request(12, 100, 0, (3,))]
    write_trace(tmp_path / "trace.jsonl", requests)
    assert read_trace(tmp_path / "trace.jsonl") == requests


def test_a_limit_reads_the_head_and_no_further(tmp_path: Path) -> None:
    """A slice does not depend on what comes after it, not even on its being readable."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(LINE + b"not json\n")
    assert len(read_trace(path, limit=1)) == 1


def test_requests_are_played_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    """A trace that is out of order is put in order."""
    path = tmp_path / "trace.jsonl"
    write_trace(path, [Request(9, 16, 0, (1,)), Request(3, 16, 0, (2,))])
    assert [request.arrival_ms for request in read_trace(path)] == [3, 9]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 2"),
        (b"[1]", "not a JSON object"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        (b'{"timestamp": true, "input_length": 1, "output_length": 1, "hash_ids": []}', "timestamp"),
        (b'{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []}', "timestamp"),
        (b'{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}', "input_length"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1.5, "hash_ids": []}', "output_length"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    """A line that is no request says which line and what is wrong with it."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(LINE + line + b"\n")
    with pytest.raises(ConfigError, match="line 2: ") as caught:
        read_trace(path)
    assert reason in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\n\n"])
def test_a_missing_or_empty_trace_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """No requests, no comparison."""
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="--trace"):
        read_trace(path)


def test_equal_prefixes_and_only_those_have_equal_hashes() -> None:
    """Block hashes follow from an id and the index within it, so they identify the prefix."""
    one = prompt_hashes(Request(0, 1536, 0, (1, 2, 3)))
    other = prompt_hashes(Request(0, 1536, 0, (1, 2, 4)))
    assert one[:64] == other[:64]
    assert not set(one[64:]) & set(other[64:])
    assert len(set(one)) == 96
    assert {len(each) for each in one} == {HASH_BYTES}
    assert id_hashes(1, 3) == one[:3]
