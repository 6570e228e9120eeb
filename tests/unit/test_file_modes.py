"""Private files, and links that others may have put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from supervisor.config.file_permissions import open_to_others
from supervisor.dead_letters.file_sink import FileSink
from supervisor.errors import StoreError
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.write_lock import FairWriteLock

ALICE = 65_432  # nobody's number


@pytest.fixture
def owned_by_alice(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Paths that seem to belong to her."""
    hers: set[Path] = set()
    lstat = os.lstat

    def look(path: Path) -> os.stat_result:
        seen = list(lstat(path))
        if path in hers:
            seen[stat.ST_UID] = ALICE
        return os.stat_result(seen)

    monkeypatch.setattr(os, "lstat", look)
    return hers


def test_dead_letters_follow_no_link_of_another_user(tmp_path: Path, owned_by_alice: set[Path]) -> None:
    path, target = tmp_path / "dead.jsonl", tmp_path / "elsewhere"
    path.symlink_to(target)
    owned_by_alice.add(path)
    sink = FileSink(str(path))
    with pytest.raises(OSError, match=f"is a symbolic link of user {ALICE}; expected a file"):
        sink.publish([{"id": 1}])
    assert not target.exists()
    owned_by_alice.clear()
    assert list(sink.publish([{"id": 1}])) == [1]
    sink.close()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_file_of_dead_letters_is_private_after_each_rotation(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    sink = FileSink(str(path))
    before = os.umask(0)
    try:
        for number in (1, 2):
            sink.publish([{"id": number}])
            path.rename(tmp_path / f"dead.jsonl.{number}")
        sink.publish([{"id": 3}])
    finally:
        os.umask(before)
        sink.close()
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600] * 3


@pytest.mark.parametrize("what", ["a folder of hers", "a link", "a dangling link", "a file"])
def test_a_notifier_uses_no_folder_of_another_user(tmp_path: Path, owned_by_alice: set[Path], what: str) -> None:
    folder = tmp_path / "jobs.db.notifiers"
    (tmp_path / "hers").mkdir()
    match what:
        case "a folder of hers":
            folder.mkdir()
            owned_by_alice.add(folder)
        case "a link":
            folder.symlink_to(tmp_path / "hers")
        case "a dangling link":
            folder.symlink_to(tmp_path / "nothing")
        case "a file":
            folder.touch()
    with pytest.raises(StoreError, match=r"jobs\.db\.notifiers: expected a folder of this user's"):
        Notifier(folder).join("one")
    assert list((tmp_path / "hers").iterdir()) == []


def test_locks_follow_no_links(tmp_path: Path) -> None:
    folder, target = tmp_path / "jobs.db.notifiers", tmp_path / "target"
    folder.mkdir()
    (folder / "gone.lock").symlink_to(target)
    target.touch()
    assert not Notifier(folder).is_gone("gone"), "a lock that can be taken means that its owner is gone"
    target.unlink()
    (tmp_path / "jobs.db-gate").symlink_to(target)
    lock = FairWriteLock(tmp_path / "jobs.db", 1.0)
    with lock:
        pass
    lock.close()
    assert not target.exists()


def test_files_that_are_open_to_others_are_named(tmp_path: Path) -> None:
    closed, open_ = tmp_path / "closed.db", tmp_path / "it's open.db"
    for path, mode in ((closed, 0o600), (open_, 0o640)):
        path.touch()
        path.chmod(mode)
    (line,) = open_to_others([closed, open_, tmp_path / "not there"])
    assert line.startswith(f"{open_} (mode 0640) is open to others: chmod go-rwx '")
