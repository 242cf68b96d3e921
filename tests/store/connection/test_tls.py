from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trustme

from inference_cache.store.connection.tls import Tls, TlsSettings
from tests.support.authority import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return an authority with one certificate."""
    return Keys(tmp_path)


def test_files_are_read_again_when_they_changed(keys: Keys) -> None:
    """The same files make the same context; replaced ones make another."""
    tls = Tls(TlsSettings(authorities=str(keys.authorities)))
    first = tls.context()
    assert tls.context() is first
    keys.publish(keys.authority, trustme.CA())
    second = tls.context()
    assert second is not first
    assert len(second.get_ca_certs()) == 2


def test_files_that_cannot_be_used_change_nothing(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is empty, half written or gone leaves the last good certificates in force, and is told."""
    both = shutil.copy(keys.certificate, keys.directory / "mine.pem")
    tls = Tls(TlsSettings(authorities=str(keys.authorities), certificate=str(both)))
    first = tls.context()
    whole = Path(both).read_bytes()
    for damage in (b"", whole[: len(whole) // 2], None):
        if damage is None:
            Path(both).unlink()
        else:
            Path(both).write_bytes(damage)
        caplog.clear()
        assert tls.context() is first
        assert "cannot be used" in caplog.text
