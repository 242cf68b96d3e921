"""Generate the committed gRPC stubs from the contract, or check that they are up to date.

    python scripts/generate_proto.py            write service/inference_cache/_pb
    python scripts/generate_proto.py --check    exit 1 when what is committed differs

The stubs are committed so that an installation needs no compiler and a review of a contract change
shows its effect. They live in the package ``inference_cache._pb`` while the contract's own path stays
``inferencecache/v1alpha1/inferencecache.proto``, which is the name reflection shows; the one import that
this breaks is rewritten here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools  # type: ignore[import-untyped]
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"
CONTRACT = "inferencecache/v1alpha1/inferencecache.proto"
TARGET = ROOT / "service" / "inference_cache" / "_pb"
STUBS = ("inferencecache_pb2.py", "inferencecache_pb2.pyi", "inferencecache_pb2_grpc.py", "inferencecache_pb2_grpc.pyi")
INIT = '"""Generated from proto/ by scripts/generate_proto.py; do not edit."""\n'

_GENERATED_IMPORT = "from inferencecache.v1alpha1 import inferencecache_pb2"
_PACKAGE_IMPORT = "from inference_cache._pb import inferencecache_pb2"


def generate(target: Path) -> None:
    """Write the stubs into a directory, making it an importable package.

    Args:
        target: where to write; created when missing.

    Raises:
        SystemExit: the compiler refused the contract; it has said why on stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _compile(Path(scratch))
        made = (Path(scratch) / CONTRACT).parent
        target.mkdir(parents=True, exist_ok=True)
        for name in STUBS:
            (target / name).write_text(_in_package((made / name).read_text()))
    (target / "__init__.py").write_text(INIT)


def differences(target: Path) -> list[str]:
    """Return the names of files in a directory that are not what the contract generates."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        return [
            name
            for name in ("__init__.py", *STUBS)
            if not (target / name).is_file() or (target / name).read_text() != (Path(scratch) / name).read_text()
        ]


def _compile(out: Path) -> None:
    plugins = Path(sys.executable).parent
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTO_ROOT}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet:{out}",
            CONTRACT,
        ]
    )
    if status:
        raise SystemExit(status)


def _in_package(text: str) -> str:
    text = text.replace(_GENERATED_IMPORT, _PACKAGE_IMPORT)
    return text.replace("inferencecache.v1alpha1.inferencecache_pb2", "inference_cache._pb.inferencecache_pb2")


def main() -> int:
    """Run as a command; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate the gRPC stubs from the contract.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 on a difference")
    if not parser.parse_args().check:
        generate(TARGET)
        return 0
    stale = differences(TARGET)
    for name in stale:
        print(f"{TARGET.relative_to(ROOT) / name} differs from the contract: run make proto", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
