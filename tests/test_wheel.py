from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.servers import Server

ROOT = Path(__file__).resolve().parent.parent
PROBE = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import inference_cache
from inference_cache.domain.models import Batch, ModelKey, Partition
from inference_cache.store.connection import open_connection
from inference_cache.store.redis import RedisStore

async def main():
    store = RedisStore(await open_connection(sys.argv[2]), key_prefix="wheel")
    model, batch = ModelKey("t", "m"), Batch(Partition("vllm"), b"k" * 8, ((0, 1),), ((0, 16, 0),))
    await store.ingest(model, "pod", [batch], reported_ms=store.now_ms(), ttl_ms=60_000)
    found = await store.lookup_chain(model, batch.partition, batch.keys, expired_at_ms=0)
    print(inference_cache.__file__, [run.replica_id for run in found.runs])
    await store.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a freshly built wheel."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = target.glob("*.whl")
    return made


def test_wheel_carries_every_script_and_the_types(wheel: Path) -> None:
    """What is not Python is packed too: each Lua file, the marker for type checkers, the licence."""
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {f"inference_cache/_lua/{path.relative_to(ROOT / 'lua')}" for path in (ROOT / "lua").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    assert "inference_cache/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "loadtest/"))]


def test_installed_wheel_runs_its_scripts(wheel: Path, valkey: Server, tmp_path: Path) -> None:
    """A copy that knows nothing of the repository finds its Lua, and stores and looks up with it."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "site"), valkey.url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"{tmp_path / 'site' / 'inference_cache' / '__init__.py'} ['pod']"
