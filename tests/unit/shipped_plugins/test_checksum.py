import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor import Job, Reject
from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "checksum.py"


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    yield import_file(PLUGIN)
    forget(PLUGIN.parent)


@pytest.fixture
def checksum(plugin: ModuleType) -> Callable[[Any], dict[str, Any]]:
    return lambda payload: plugin.checksum(Job(1, "checksum", payload))


@pytest.mark.parametrize("algorithm", ["md5", "sha256", "blake2b"])
def test_checksum_returns_digest_and_size(checksum: Any, tmp_path: Path, algorithm: str) -> None:
    file = tmp_path / "report.bin"
    file.write_bytes(b"abc" * 100_000)
    assert checksum({"path": str(file), "algorithm": algorithm}) == {
        "path": str(file),
        "algorithm": algorithm,
        "digest": hashlib.new(algorithm, b"abc" * 100_000).hexdigest(),
        "size": 300_000,
    }


def test_the_default_algorithm_is_sha256(checksum: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert checksum({"path": str(tmp_path / "empty")})["digest"] == hashlib.sha256().hexdigest()


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (None, "path: expected the path of a file, got None"),
        ({"path": 7}, "path: expected the path of a file, got 7"),
        ({"path": "missing"}, "path: 'missing' is no file"),
        ({"path": "/"}, "path: '/' is no file"),
        ({"path": "nul\x00"}, "is no file"),
        ({"path": "x", "algorithm": "crc"}, "algorithm: expected one of blake2b, "),
        ({"path": "x", "algorithm": ["md5"]}, "algorithm: expected one of"),
        ({"path": "x", "algorithm": "shake_128"}, "algorithm: expected one of"),
    ],
)
def test_a_payload_that_no_retry_can_change_is_rejected(checksum: Any, payload: Any, expected: str) -> None:
    with pytest.raises(Reject, match=expected):
        checksum(payload)


def test_a_file_without_permission_is_left_to_a_retry(
    checksum: Any, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(plugin, "open", refuse, raising=False)
    with pytest.raises(PermissionError):
        checksum({"path": "report.pdf"})
