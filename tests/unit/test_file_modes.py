"""Files of the owner alone, and links that others may have put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from supervisor.config.file_permissions import open_to_others
from supervisor.dead_letters.file_sink import FileSink
from supervisor.errors import StoreError
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.write_lock import FairWriteLock

ALICE = 65_432  # nobody's number


@pytest.fixture
def owned_by_alice(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Paths that look as if they were hers."""
    hers: set[Path] = set()
    lstat = os.lstat

    def look(path: Path) -> os.stat_result:
        seen = list(lstat(path))
        if path in hers:
            seen[stat.ST_UID] = ALICE
        return os.stat_result(seen)

    fstat = os.fstat

    def look_at_open(fd: int) -> os.stat_result:
        seen = list(fstat(fd))
        if Path(f"/proc/self/fd/{fd}").readlink() in hers:
            seen[stat.ST_UID] = ALICE
        return os.stat_result(seen)

    monkeypatch.setattr(os, "lstat", look)
    monkeypatch.setattr(os, "fstat", look_at_open)
    return hers


def test_letters_follow_no_link_of_somebody_else(tmp_path: Path, owned_by_alice: set[Path]) -> None:
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


def test_letters_follow_no_link_of_somebody_else_to_a_folder(tmp_path: Path, owned_by_alice: set[Path]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "hers").symlink_to(tmp_path / "mine")
    (tmp_path / "link").symlink_to("hers")
    owned_by_alice.add(tmp_path / "hers")
    sink = FileSink(str(tmp_path / "link" / "dead.jsonl"))
    with pytest.raises(OSError, match=f"hers is a symbolic link of user {ALICE}"):
        sink.publish([{"id": 1}])
    assert not list((tmp_path / "mine").iterdir())
    owned_by_alice.clear()
    assert list(sink.publish([{"id": 1}])) == [1]
    sink.close()
    assert (tmp_path / "mine" / "dead.jsonl").read_bytes() == b'{"id":1}\n'


def test_letters_go_to_no_file_of_somebody_else(tmp_path: Path, owned_by_alice: set[Path]) -> None:
    path = tmp_path / "dead.jsonl"
    path.touch()
    owned_by_alice.add(path)
    sink = FileSink(str(path))
    with pytest.raises(OSError, match=f"is a file of user {ALICE}; expected a file of this user"):
        sink.publish([{"id": 1}])
    assert path.read_bytes() == b""
    path.unlink()
    owned_by_alice.clear()
    assert list(sink.publish([{"id": 1}])) == [1]
    sink.close()


def test_links_in_a_circle_are_an_error_of_the_file_sink(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        FileSink(str(tmp_path / "a")).publish([{"id": 1}])


def test_letters_are_the_owners_alone_after_each_rotation(tmp_path: Path) -> None:
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
def test_locks_are_made_in_no_folder_of_another_user(tmp_path: Path, owned_by_alice: set[Path], what: str) -> None:
    folder = tmp_path / "jobs.db.notify"
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
    with pytest.raises(StoreError, match=r"jobs\.db\.notify: expected a folder of this user's"):
        OwnerLock(folder).take("one")
    assert list((tmp_path / "hers").iterdir()) == []


def test_locks_follow_no_links(tmp_path: Path) -> None:
    folder, target = tmp_path / "jobs.db.notify", tmp_path / "target"
    folder.mkdir()
    (folder / "gone.lock").symlink_to(target)
    target.touch()
    assert not OwnerLock(folder).is_gone("gone"), "a lock that can be taken says that its owner is dead"
    target.unlink()
    (tmp_path / "jobs.db-queue.lock").symlink_to(target)
    write_lock = FairWriteLock(tmp_path / "jobs.db", 1.0)
    with write_lock:
        pass
    write_lock.close()
    assert not target.exists()


def test_files_that_are_open_to_others_are_named(tmp_path: Path) -> None:
    closed, open_ = tmp_path / "closed.db", tmp_path / "it's open.db"
    for path, mode in ((closed, 0o600), (open_, 0o640)):
        path.touch()
        path.chmod(mode)
    (line,) = open_to_others([closed, open_, tmp_path / "not there"])
    assert line.startswith(f"{open_} (mode 0640) is open to others: chmod go-rwx '")
