from __future__ import annotations

import pytest
from typer.testing import CliRunner

import inference_cache
from inference_cache.cli.commands import build_app
from inference_cache.config import all_settings

runner = CliRunner()


def test_help_names_every_command() -> None:
    """Somebody who knows nothing finds the commands from the first line they type."""
    answer = runner.invoke(build_app(), ["--help"])
    assert answer.exit_code == 0
    for command in ("serve", "lookup", "state", "policy", "demo", "simulate", "version"):
        assert f"  {command} " in answer.output


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_is_that_of_the_package(argument: str) -> None:
    """A bug report can say which version it is about."""
    answer = runner.invoke(build_app(), [argument])
    assert answer.exit_code == 0
    assert answer.output == f"inference-cache {inference_cache.__version__}\n"


def test_serve_help_names_every_setting_in_full() -> None:
    """Each setting has its option, with its default; none is cut short."""
    answer = runner.invoke(build_app(), ["serve", "--help"])
    words = " ".join(answer.output.split())
    assert answer.exit_code == 0
    for item in all_settings():
        assert f"{item.flag} " in words
        assert f"(default {item.default or 'empty'}" in words


@pytest.mark.parametrize(
    "command",
    ["serve", "lookup", "state", "demo"]
    + [f"policy {name}" for name in ("apply", "get", "diff")]
    + [f"simulate {name}" for name in ("engine", "gateway")],
)
def test_help_has_an_example(command: str) -> None:
    """A person can copy a line that works."""
    assert f"  inference-cache {command}" in runner.invoke(build_app(), [*command.split(), "--help"]).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--log-level", "loud"], ["--log-level", "INFERENCE_CACHE_LOG_LEVEL"]),
        (["--snapshot-bind-address", ":8081"], ["--snapshot-bind-address", "--insecure-disable-auth"]),
        (["--default-ttl", "30"], ["--default-ttl", "INFERENCE_CACHE_DEFAULT_TTL"]),
    ],
)
def test_unusable_setting_is_one_sentence_and_status_2(arguments: list[str], words: list[str]) -> None:
    """A wrong setting ends in a usage error on stderr that names flag and variable, not in a trace."""
    answer = runner.invoke(build_app(), ["serve", *arguments])
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr


@pytest.mark.parametrize("command", ["demo", "simulate engine", "simulate gateway"])
def test_unusable_server_is_status_2_before_anything_starts(command: str) -> None:
    """A typing error is no server that is away."""
    answer = runner.invoke(build_app(), [*command.split(), "--server", "http://127.0.0.1:9090"])
    assert answer.exit_code == 2
    assert "HOST:PORT" in answer.stderr


def test_unusable_variable_is_status_2_too() -> None:
    """The environment is held to the same rules as the flags."""
    answer = runner.invoke(build_app(), ["serve"], env={"INFERENCE_CACHE_SWEEP_PERIOD": "soon"})
    assert answer.exit_code == 2
    assert "INFERENCE_CACHE_SWEEP_PERIOD" in answer.stderr
