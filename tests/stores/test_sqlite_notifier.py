"""Bells and locks beside the file, and the turnstile."""

from __future__ import annotations

import errno
import os
import select
import threading

import pytest

from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.stores.sqlite.write_lock import FairWriteLock


def notified(notifier: Notifier) -> bool:
    return bool(select.select([notifier.descriptor()], [], [], 0)[0])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "jobs.db.bells"


def test_nobody_to_ring(folder):
    Notifier(folder).notify()
    assert not folder.exists()


def test_a_path_longer_than_a_socket_address(tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    owner = Notifier(deep / "bells")
    owner.join("one")
    Notifier(deep / "bells").notify()
    assert notified(owner)
    owner.leave()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, StoreUnavailable), (errno.EACCES, StoreBroken)])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_with_no_room_for_the_bell_is_a_store_that_is_away(folder, monkeypatch, call, number, expected):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    notifier = Notifier(folder)
    with monkeypatch.context() as full:
        full.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailable, match=os.strerror(number)) as refused:
            notifier.join("one")
    assert refused.type is expected
    notifier.join("one")
    assert not notified(notifier)
    notifier.leave()


def test_the_bell_of_a_dead_owner_is_taken_down(folder):
    owner = Notifier(folder)
    owner.join("one")
    owner._socket.close()
    Notifier(folder).notify()
    assert [path.name for path in folder.iterdir()] == ["one.lock"]
    owner._socket = None
    owner.leave()


def test_whoever_wakes_before_the_commit_looks_after_it(tmp_path, monkeypatch):
    """The bell rings while the new row is made durable, so that waking takes no time of its own."""
    client = SqliteStore(tmp_path / "jobs.db", create=True)
    store = SqliteStore(tmp_path / "jobs.db")
    store.join("one", "host", 4711)
    commit, seen = client._commit, []

    def look() -> None:
        with store.transaction():
            seen.append(store.look(None, 1).waiting["default"].fresh)

    looking = threading.Thread(target=look)

    def commit_slowly() -> None:
        assert notified(store.notifier)
        looking.start()
        looking.join(0.1)
        assert seen == []
        commit()

    monkeypatch.setattr(client, "_commit", commit_slowly)
    client.enqueue([EnqueueRow("noop", "null")])
    looking.join()
    assert seen == [1]
    store.leave()
    client.close()
    store.close()


def test_by_whatever_link_a_file_is_opened_its_bells_and_locks_are_the_same(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to("real/jobs.db")
    client = SqliteStore(tmp_path / "link.db", create=True)
    store = SqliteStore(tmp_path / "real" / "jobs.db")
    store.join("one", "host", 4711)
    client.enqueue([EnqueueRow("noop", "1")])
    assert notified(store.notifier)
    assert client.notifier.is_gone("one") is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.db", "real"]
    store.leave()
    store.close()
    client.close()


def test_links_that_lead_nowhere_are_said_to(tmp_path):
    (tmp_path / "a.db").symlink_to("b.db")
    (tmp_path / "b.db").symlink_to("a.db")
    with pytest.raises(StoreError, match="levels of symbolic links"):
        SqliteStore(tmp_path / "a.db", create=True)


def test_what_is_no_bell_is_left_alone_or_taken_down_but_never_fatal(folder):
    owner = Notifier(folder)
    owner.join("one")
    (folder / "two.sock").mkdir()
    (folder / "note.txt").touch()
    Notifier(folder).notify()
    assert notified(owner)
    (folder / "two.sock").rmdir()
    (folder / "note.txt").unlink()
    owner.leave()


def test_gone_is_only_who_provably_is(folder):
    owner, other = Notifier(folder), Notifier(folder)
    lock = owner.join("one")
    assert not other.is_gone("one")
    assert not other.is_gone("unknown")
    inherited = os.dup(lock)
    os.close(lock)
    assert not other.is_gone("one")
    os.close(inherited)
    assert other.is_gone("one")
    owner._lock = None
    owner.leave()


def test_asking_changes_nothing(folder):
    owner = Notifier(folder)
    owner.join("one")
    for _ in range(3):
        assert not Notifier(folder).is_gone("one")
    owner.leave()
    assert not folder.exists()


def test_turns_exclude_each_other(tmp_path):
    path = tmp_path / "jobs.db"
    one, two = FairWriteLock(path, 10.0), FairWriteLock(path, 0.01)
    with one, pytest.raises(StoreUnavailable), two:
        pass
    with two:
        pass
    one.close(), two.close()
    assert list(tmp_path.iterdir()) == []


def test_lock_files_that_cannot_be_had_cost_no_more_than_fairness(tmp_path):
    turnstile = FairWriteLock(tmp_path / "nowhere" / "jobs.db", 0.0)
    with turnstile:
        pass
    turnstile.close()


@pytest.mark.timeout(10)
def test_whoever_waits_is_next(tmp_path):
    """One that comes back at once finds the gate shut while another waits for its turn."""
    path = tmp_path / "jobs.db"
    busy, waiting = FairWriteLock(path, 10.0), FairWriteLock(path, 10.0)
    order: list[str] = []
    busy.__enter__()

    def wait() -> None:
        with waiting:
            order.append("waiting")

    thread = threading.Thread(target=wait)
    thread.start()
    hasty = FairWriteLock(path, 0.0)
    while True:
        try:
            hasty._take(hasty._entry_lock, 0.0)
        except StoreUnavailable:
            break
        hasty._entry_lock.release()
    busy.__exit__(None, None, None)
    with busy:
        order.append("busy")
    thread.join()
    assert order == ["waiting", "busy"]
    for turnstile in (busy, waiting, hasty):
        turnstile.close()


def test_closing_spares_the_files_of_whoever_is_in_a_turn(tmp_path):
    path = tmp_path / "jobs.db"
    one, two = FairWriteLock(path, 1.0), FairWriteLock(path, 1.0)
    with one:
        two.close()
        assert (tmp_path / "jobs.db-turn").exists()
    two.close()
    assert list(tmp_path.iterdir()) == []
    with one:
        assert (tmp_path / "jobs.db-turn").exists()
    one.close()
