"""The Lua commands keep to their contract blocks, their flags and the names that Python knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference_cache.domain.models import ModelKey, Partition
from inference_cache.errors import ConfigError
from inference_cache.store.keys import Keys
from inference_cache.store.replies import STATUS_WORDS
from inference_cache.store.scripts import directory, load, names, parse_contract
from tests.support.servers import Server

READ_ONLY = {
    "lookup_chain",
    "lookup_exact",
    "state",
    "catalog_presence",
    "catalog_list",
    "policy_get",
}
REMOVING = {
    *(
        "evict",
        "clear",
        "free",
        "expire",
        "rebuild",
        "trim",
        "credit",
        "renew",
        "lease",
        "catalog_put",
        "catalog_victim",
        "policy_put",
    ),
}
"""What must run on a full Redis: it removes, or may be the policy that makes room."""
EMPTY_BLOCK = "--[[\nKEYS\n  1 totals   key\n]]"


def body(name: str) -> str:
    """Return a command's own text without its contract block."""
    return re.sub(r"--\[\[.*?\]\]", "", (directory() / f"{name}.lua").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("name", names())
def test_every_command_is_accepted_by_each_server(name: str, valkey: Server, redis7: Server) -> None:
    """SCRIPT LOAD compiles the expanded text and calls it by the digest that the loader computed."""
    for server in (valkey, redis7):
        assert server.ask("SCRIPT", "LOAD", load(name).text) == load(name).sha.encode()


@pytest.mark.parametrize("name", names())
def test_the_body_uses_what_the_contract_declares_and_no_more(name: str) -> None:
    """The highest KEYS and ARGV index in the body is the number that the contract block declares."""
    contract, text = load(name).contract, body(name)
    keys = {int(index) for index in re.findall(r"KEYS\[(\d+)\]", text)}
    args = {int(index) for index in re.findall(r"ARGV\[(\d+)\]", text)}
    assert max(keys) == len(contract.keys) == 1
    assert max(args, default=0) == len(contract.args)
    assert contract.variadic == bool(re.search(r"ARGV\[(?!\d+\])", text))


@pytest.mark.parametrize("name", names())
def test_arguments_are_named_before_the_first_function(name: str) -> None:
    """Nobody indexes KEYS or the numbered ARGV inside a function: the head of the body names them all."""
    functions = re.findall(r"^local function .*?^end", body(name), flags=re.DOTALL | re.MULTILINE)
    for function in functions:
        assert not re.search(r"KEYS\[", function), function
        assert not re.search(r"ARGV\[\d+\]", function), function


def test_flags_say_who_may_write_and_when() -> None:
    """Lookups never write; what removes runs on a full Redis; what adds is refused there."""
    for name in names():
        expected = {"no-writes"} if name in READ_ONLY else {"allow-oom"} if name in REMOVING else set()
        assert load(name).flags == expected, name
        assert load(name).read_only == (name in READ_ONLY)


def test_every_status_word_is_known_to_the_table_of_replies() -> None:
    """A word that a script may answer with and Python does not know would be an unreadable reply."""
    text = "".join(path.read_text() for path in directory().rglob("*.lua"))
    words = set(re.findall(r"'([A-Z][A-Z]+)'", text))
    commands = set(re.findall(r"call\('([A-Z]+)'", text)) | set(re.findall(r"many\('([A-Z]+)'", text))
    options = {"GT", "LIMIT", "WITHSCORES", "COUNT", "PX", "NX"}
    assert words - commands - options == {word.decode() for word in STATUS_WORDS}


def test_scripts_derive_the_keys_that_python_names(valkey: Server) -> None:
    """lua/lib/keys.lua and store/keys.py agree on root, tag and partition."""
    keys = Keys("pre:fix")
    model, partition = ModelKey("te{n}ant", "mo/d:el"), Partition("s%", "a")
    include = "".join((directory() / "lib" / f"{lib}.lua").read_text() for lib in ("prelude", "keys"))
    probe = (
        include
        + """
        local M, P = model_keys(KEYS[1]), partition_keys(model_root(KEYS[1]), ARGV[1])
        local serving, count = scope_keys(M.root, scheme_of(ARGV[1]))
        return { M.root, M.totals, M.slots, P.blocks, P.held .. 7, slot_key(M.root, 7), serving, count }
    """
    )
    got = valkey.ask("EVAL", probe, 1, keys.totals(model), keys.partition(partition))
    root = f"pre:fix:1:{{{keys.tag(model)}}}"
    part = f"{root}:P:{keys.partition(partition)}"
    assert [name.decode() for name in got] == [
        root,
        f"{root}:totals",
        f"{root}:slots",
        f"{part}:blocks",
        f"{part}:held:7",
        f"{root}:slot:7",
        f"{root}:S:s%25:serving",
        f"{root}:S:s%25:count",
    ]


def test_an_error_is_reported_by_file_and_line() -> None:
    """Positions in Redis' messages count lines of the expanded text; they are turned into files."""
    script = load("ingest")
    file, line = script.lines[-1]
    assert file == "lua/ingest.lua"
    message = f"ERR user_script:{len(script.lines)}: attempt to call a nil value"
    assert script.locate(message) == f"ERR lua/ingest.lua:{line}: attempt to call a nil value"
    assert script.locate("ERR user_script:99999: odd") == "ERR user_script:99999: odd"
    assert any(origin[0] == "lua/lib/prelude.lua" for origin in script.lines)


def test_a_fragment_is_included_once() -> None:
    """Two fragments that need the prelude bring it once."""
    text = load("evict").text
    assert text.count("local call = redis.call") == 1
    assert "@include" not in text


def test_a_contract_block_is_demanded_and_read_in_order() -> None:
    """A command without a block, or with a gap in its numbers, is refused by name."""
    assert parse_contract("x", EMPTY_BLOCK).keys == ("totals",)
    with pytest.raises(ConfigError, match=r"x\.lua has no contract block"):
        parse_contract("x", "return 1")
    with pytest.raises(ConfigError, match=r"x\.lua: KEYS\[2\] is out of order"):
        parse_contract("x", EMPTY_BLOCK.replace("1 totals", "2 totals"))


def test_every_fragment_is_used() -> None:
    """No fragment is dead text."""
    used = {Path(file).stem for name in names() for file, _ in load(name).lines if "/lib/" in file}
    assert used == {path.stem for path in (directory() / "lib").glob("*.lua")}
