"""A directory of manifests as a writer: all or nothing, at start and on change, never because somebody else wrote."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from inference_cache.errors import PolicyError
from inference_cache.policies import files
from inference_cache.policies.directory import PolicyDirectory
from inference_cache.policies.files import mark_of, read_directory
from tests.domain.policy_cases import BAD_MANIFESTS, cache_policy
from tests.policies.conftest import DEFAULT, Host, hosts, ttl
from tests.support.servers import Server

POLICY = """\
apiVersion: inferencecache.io/v1alpha1
kind: CachePolicy
metadata: {name: p, namespace: %s}
spec: {evictionTTL: %s}
"""


def manifest(ttl_text: str, namespace: str = "t") -> str:
    """Return a policy that gives a namespace a TTL."""
    return POLICY % (namespace, ttl_text)


def config_map(directory: Path, version: str, **contents: str) -> None:
    """Put files into place as a mounted ConfigMap does: into a new folder, then by swapping one link."""
    folder = directory / f"..{version}"
    folder.mkdir(parents=True)
    for name, text in contents.items():
        (folder / f"{name}.yaml").write_text(text)
    (directory / "..data_tmp").symlink_to(folder.name)
    before = (directory / "..data").resolve() if (directory / "..data").exists() else None
    (directory / "..data_tmp").rename(directory / "..data")
    for name in contents:
        if not (directory / f"{name}.yaml").is_symlink():
            (directory / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")
    for link in directory.glob("*.yaml"):
        if link.stem not in contents:
            link.unlink()
    if before is not None:
        shutil.rmtree(before)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty directory for manifests."""
    (tmp_path / "policies").mkdir()
    return tmp_path / "policies"


def move(source: Path, target: Path) -> None:
    """Rename a directory."""
    source.rename(target)


def watcher(host: Host, home: Path) -> PolicyDirectory:
    """Return what watches the directory for a server."""
    return PolicyDirectory(home, host.sync, host.live, host.metrics)


async def test_it_is_written_at_start_and_on_change(host: Host, home: Path) -> None:
    """One look each is enough, and a look at an unchanged directory does nothing."""
    directory = watcher(host, home)
    (home / "a.yaml").write_text(manifest("1s"))
    await directory.look()
    assert (host.ttl_ms(), host.generation, host.live.held.snapshot.source) == (1000, 1, "directory")
    await directory.look()
    (home / "b.yml").write_text(manifest("2s", "u"))
    await directory.look()
    assert (host.ttl_ms(), host.ttl_ms("u"), host.generation) == (1000, 2000, 2)
    (home / "a.yaml").unlink()
    await directory.look()
    assert (host.ttl_ms(), host.ttl_ms("u"), host.generation) == (DEFAULT.ttl_ms, 2000, 3)
    assert host.counted("policy_directory_in_force") == 1
    assert directory.detail() == "policy directory: in force"


async def test_what_somebody_else_wrote_stays(host: Host, home: Path) -> None:
    """Not the next look and not a restart brings the directory back; a change of it does."""
    (home / "a.yaml").write_text(manifest("1s"))
    directory = watcher(host, home)
    await directory.look()
    await host.sync.push(ttl(5000), "api")
    await directory.look()
    await watcher(host, home).look()
    assert (host.ttl_ms(), host.generation) == (5000, 2)
    assert host.counted("policy_directory_in_force") == 0
    assert directory.detail() == "policy directory: not in force, generation 2 came from api on host-0"
    (home / "a.yaml").write_text(manifest("2s"))
    await directory.look()
    assert (host.ttl_ms(), host.generation, directory.in_force) == (2000, 3, True)


async def test_a_comment_is_no_change(host: Host, home: Path) -> None:
    """The digest is of the meaning."""
    (home / "a.yaml").write_text(manifest("1s"))
    directory = watcher(host, home)
    await directory.look()
    await host.sync.push(ttl(5000), "api")
    (home / "a.yaml").write_text("# why\n" + manifest("1000ms"))
    await directory.look()
    assert host.ttl_ms() == 5000


async def test_two_servers_with_one_directory_write_it_once(valkey: Server, key_prefix: str, home: Path) -> None:
    """The second finds it recorded, whatever was pushed in between."""
    (home / "a.yaml").write_text(manifest("1s"))
    async with hosts(valkey.url, key_prefix, 2, follow=False) as (one, other):
        await watcher(one, home).look()
        await one.sync.push(ttl(5000), "api")
        late = watcher(other, home)
        await late.look()
        await other.sync.refresh()
        assert (other.ttl_ms(), other.generation, late.in_force) == (5000, 2, False)
        assert other.counted("policy_pushes_total", source="directory", result="same") == 1


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("b.yaml", "kind: [", "b.yaml"),
        ("b.yaml", manifest("-1s"), "b.yaml"),
        ("b.yaml", manifest("1s").replace("spec: {", "spec: {unknown: 1, "), "unknown"),
        ("b.json", "{", "b.json"),
    ],
)
async def test_a_broken_change_leaves_the_last_good_set(
    host: Host, home: Path, name: str, text: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is applied, it is told where to look, and mending it is enough."""
    (home / "a.yaml").write_text(manifest("1s"))
    directory = watcher(host, home)
    await directory.look()
    (home / "a.yaml").write_text(manifest("2s"))
    (home / name).write_text(text)
    for _ in range(3):
        await directory.look()
    assert (host.ttl_ms(), host.generation) == (1000, 1)
    assert host.counted("policy_directory_errors_total") == 1
    assert host.counted("policy_directory_in_force") == 0
    assert named in directory.detail()
    assert [record.message for record in caplog.records].count("policy_directory_unusable") == 1
    (home / name).unlink()
    await directory.look()
    assert (host.ttl_ms(), host.generation, directory.in_force) == (2000, 2, True)


async def test_every_broken_manifest_is_told_and_changes_nothing(
    host: Host, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of each rule reaches the operator's log, and the last good set is still in force after it."""
    good = cache_policy("eviction: LFU").replace("namespace: a", "namespace: good")
    (home / "a.yaml").write_text(manifest("1s"))
    directory = watcher(host, home)
    await directory.look()
    for case, (text, problem) in BAD_MANIFESTS.items():
        (home / "b.yaml").write_text(f"{good}---\n{text}")
        caplog.clear()
        await directory.look()
        told = [one for record in caplog.records for one in vars(record)["event_fields"]["problems"]]
        assert any(one.startswith(f"b.yaml, document 2: {problem}") for one in told), case
        assert "not in force, b.yaml, document 2: " in directory.detail(), case
        assert (host.ttl_ms(), host.generation, directory.in_force) == (1000, 1, False), case
    assert host.counted("policy_directory_errors_total") == len(BAD_MANIFESTS)


async def test_a_vanished_directory_changes_nothing(host: Host, home: Path) -> None:
    """An unmounted volume is a broken change, not an empty set."""
    (home / "a.yaml").write_text(manifest("1s"))
    directory = watcher(host, home)
    await directory.look()
    move(home, home.with_name("elsewhere"))
    await directory.look()
    assert (host.ttl_ms(), host.generation) == (1000, 1)
    assert "not in force" in directory.detail()
    move(home.with_name("elsewhere"), home)
    await directory.look()
    assert directory.in_force


async def test_an_emptied_directory_clears(host: Host, home: Path) -> None:
    """Who deletes the last manifest means it; a directory that was empty from the start wipes nothing."""
    await host.sync.push(ttl(5000), "api")
    directory = watcher(host, home)
    await directory.look()
    assert (host.ttl_ms(), directory.in_force) == (5000, False)
    (home / "a.yaml").write_text(manifest("1s"))
    await directory.look()
    (home / "a.yaml").unlink()
    await directory.look()
    assert (host.ttl_ms(), host.generation, directory.in_force) == (DEFAULT.ttl_ms, 3, True)


async def test_the_swap_of_a_config_map_is_seen(host: Host, home: Path) -> None:
    """Every version comes into force as a whole, though the files' own links never change."""
    directory = watcher(host, home)
    for at in range(1, 5):
        config_map(home, f"v{at}", a=manifest(f"{at}s"), b=manifest(f"{at}s", "u"))
        await directory.look()
        assert (host.ttl_ms(), host.ttl_ms("u"), host.generation) == (at * 1000, at * 1000, at)
    config_map(home, "v5", b=manifest("5s", "u"))
    await directory.look()
    assert (host.ttl_ms(), host.ttl_ms("u")) == (DEFAULT.ttl_ms, 5000)


async def test_no_reading_mixes_two_versions(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap between two files is noticed, and all are read again."""
    config_map(home, "v1", a=manifest("1s"), b=manifest("1s", "u"))
    swapped: list[Path] = []
    plain: Any = Path.open

    def slow(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "b.yaml" and not swapped:
            swapped.append(path)
            config_map(home, "v2", a=manifest("2s"), b=manifest("2s", "u"))
        return plain(path, *args, **options)

    monkeypatch.setattr(Path, "open", slow)
    reading = read_directory(home)
    assert swapped
    assert reading.files == {"a.yaml": manifest("2s").encode(), "b.yaml": manifest("2s", "u").encode()}
    assert reading.mark == mark_of(home)


async def test_what_is_no_manifest_file_is_not_read(home: Path) -> None:
    """Hidden files, folders, pipes and other endings are left alone."""
    (home / "a.yaml").write_text("a")
    (home / ".b.yaml").write_text("b")
    (home / "c.txt").write_text("c")
    (home / "d.yaml").mkdir()
    os.mkfifo(home / "e.yaml")
    assert read_directory(home).files == {"a.yaml": b"a"}


async def test_a_directory_has_bounds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, or too much in them, is an error and not a full memory."""
    for name in "abc":
        (home / f"{name}.yaml").write_text("x" * 10)
    monkeypatch.setattr(files, "MAX_SET_BYTES", 29)
    with pytest.raises(PolicyError, match="more than 29 bytes"):
        read_directory(home)
    monkeypatch.setattr(files, "MAX_FILES", 2)
    with pytest.raises(PolicyError, match="more than 2 files"):
        read_directory(home)


async def test_a_broken_link_is_an_error_that_names_it(home: Path) -> None:
    """A file that should be there and is not would otherwise silently drop its policies."""
    (home / "a.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(PolicyError, match=r"a\.yaml: No such file"):
        read_directory(home)


async def test_it_is_written_when_redis_comes(own_valkey: Server, home: Path) -> None:
    """A server that starts without Redis hands its directory in later."""
    own_valkey.kill()
    (home / "a.yaml").write_text(manifest("1s"))
    async with hosts(own_valkey.url, "p", 1, follow=False) as (host,):
        directory = watcher(host, home)
        await directory.look()
        assert directory.detail() == "policy directory: not in force, not stored yet"
        assert host.counted("policy_pushes_total", source="directory", result="failed") == 1
        own_valkey.start()
        running = asyncio.create_task(directory.run())
        async with asyncio.timeout(30):
            await host.until_ttl_ms(1000)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert directory.in_force
