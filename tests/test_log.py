from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from inference_cache import log

LOGGER = logging.getLogger("inference_cache.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(style: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    log.configure(level, style, stream)
    return stream


def test_json_is_one_object_a_line_with_typed_fields() -> None:
    """A collector reads time, level, event and fields without parsing a sentence."""
    stream = written("json")
    log.event(LOGGER, logging.INFO, "startup", version="1", port=9090)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "event": "startup",
        "logger": "inference_cache.test",
        "version": "1",
        "port": 9090,
    }


def test_text_is_one_readable_line() -> None:
    """A person sees level, event and fields; a newline in a value cannot forge a second line."""
    stream = written("text")
    log.event(LOGGER, logging.WARNING, "odd", detail="a\nb")
    assert stream.getvalue().count("\n") == 1
    assert 'warning odd detail="a\\nb"' in stream.getvalue()


def test_level_holds_for_every_logger() -> None:
    """Events below the level do not appear, whoever logs them."""
    stream = written("json", "warning")
    log.event(LOGGER, logging.INFO, "quiet")
    logging.getLogger("library").info("quiet too")
    logging.getLogger("library").error("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_exception_keeps_its_trace(style: str) -> None:
    """An unexpected error can be found in the log."""
    stream = written(style)
    try:
        raise ValueError("broken")  # noqa: TRY301 - the trace of a real exception is wanted
    except ValueError:
        LOGGER.exception("failed")
    assert "Traceback" in stream.getvalue()


@pytest.mark.parametrize(("style", "said"), [("json", '"worker":3'), ("text", " worker=3")])
def test_a_worker_says_in_every_line_which_one_it_is(style: str, said: str) -> None:
    """The processes of one server write to one stream, libraries and all."""
    stream = io.StringIO()
    log.configure("info", style, stream, worker=3)
    log.event(LOGGER, logging.INFO, "startup")
    logging.getLogger("somebody.else").warning("words")
    assert [said in line for line in stream.getvalue().splitlines()] == [True, True]
