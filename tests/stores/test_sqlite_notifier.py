"""Sockets and locks of owners beside the file, and the fair lock of its writers."""

from __future__ import annotations

import errno
import os
import select
from contextlib import closing

import pytest

from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite import notifier
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.stores.sqlite.write_lock import FairWriteLock, FileLock
from tests.stores.at_once import Meanwhile
from tests.system.command import wait_for


def notified(notifier: Notifier) -> bool:
    return bool(select.select([notifier.fd()], [], [], 0)[0])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "jobs.db.notify"


class Owner:
    """The lock and the socket of an owner."""

    def __init__(self, folder, name):
        self.name, self.lock, self.notifier = name, OwnerLock(folder), Notifier(folder)
        self.lock.take(name)
        self.notifier.bind(name)

    def leave(self):
        self.notifier.unbind()
        self.lock.remove(self.name)
        self.lock.release()


@pytest.fixture
def owner(folder):
    return Owner(folder, "one")


def test_without_an_owner_nothing_is_made(folder):
    Notifier(folder).notify()
    assert not folder.exists()


def test_jobs_are_enqueued_without_a_descriptor_left_to_notify_others(tmp_path, monkeypatch):
    def no_socket(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with closing(SqliteStore(tmp_path / "jobs.db", create=True)) as store:
        store.join("one", "host", 1)
        monkeypatch.setattr(notifier, "socket", no_socket)
        assert store.enqueue([EnqueueRow("mail", "null")]) == [1]
        store.notify()
        store.leave()


def test_a_path_longer_than_a_socket_address_is_shortened(tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    owner = Owner(deep / "notify", "one")
    Notifier(deep / "notify").notify()
    assert notified(owner.notifier)
    owner.leave()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, StoreUnavailable), (errno.EACCES, StoreBroken)])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_without_room_for_a_lock_makes_the_store_unavailable(tmp_path, monkeypatch, call, number, expected):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    store = SqliteStore(tmp_path / "jobs.db", create=True)
    with monkeypatch.context() as full:
        full.setattr(os, call, refuse)
        with pytest.raises(StoreUnavailable, match=os.strerror(number)) as refused:
            store.join("one", "host", 4711)
    assert refused.type is expected
    store.join("one", "host", 4711)
    assert not notified(store.notifier)
    store.leave()
    store.close()


def test_the_socket_of_a_dead_owner_is_removed(folder, owner):
    owner.notifier.unbind()
    Notifier(folder).notify()
    assert [path.name for path in folder.iterdir()] == ["one.lock"]
    owner.leave()


def test_a_supervisor_that_wakes_before_the_commit_looks_after_it(tmp_path, monkeypatch):
    """It is notified while the new row is made durable, so that waking takes no time of its own."""
    client = SqliteStore(tmp_path / "jobs.db", create=True)
    store = SqliteStore(tmp_path / "jobs.db")
    store.join("one", "host", 4711)
    commit, seen = client.connection._commit, []

    def look() -> None:
        with store.transaction():
            seen.append(store.look(None, 1).waiting["default"].fresh)

    looking: list[Meanwhile] = []

    def commit_slowly() -> None:
        assert notified(store.notifier)
        looking.append(Meanwhile(look))
        until_a_writer_waits(tmp_path / "jobs.db")
        assert seen == []
        commit()

    monkeypatch.setattr(client.connection, "_commit", commit_slowly)
    client.enqueue([EnqueueRow("noop", "null")])
    looking[0].join()
    assert seen == [1]
    store.leave()
    client.close()
    store.close()


def test_every_link_to_a_file_leads_to_the_same_sockets_and_locks(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to("real/jobs.db")
    client = SqliteStore(tmp_path / "link.db", create=True)
    store = SqliteStore(tmp_path / "real" / "jobs.db")
    store.join("one", "host", 4711)
    client.enqueue([EnqueueRow("noop", "1")])
    assert notified(store.notifier)
    assert client.owner_lock.is_gone("one") is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.db", "real"]
    store.leave()
    store.close()
    client.close()


def test_links_that_lead_nowhere_are_named_as_such(tmp_path):
    (tmp_path / "a.db").symlink_to("b.db")
    (tmp_path / "b.db").symlink_to("a.db")
    with pytest.raises(StoreError, match="levels of symbolic links"):
        SqliteStore(tmp_path / "a.db", create=True)


def test_a_file_that_is_no_socket_is_left_alone_or_removed_but_never_fatal(folder, owner):
    (folder / "two.sock").mkdir()
    (folder / "note.txt").touch()
    Notifier(folder).notify()
    assert notified(owner.notifier)
    (folder / "two.sock").rmdir()
    (folder / "note.txt").unlink()
    owner.leave()


def test_an_owner_is_gone_only_if_that_is_proved(folder):
    owner, other = OwnerLock(folder), OwnerLock(folder)
    fd = owner.take("one")
    assert not other.is_gone("one")
    assert not other.is_gone("unknown")
    inherited = os.dup(fd)
    owner.release()
    assert not other.is_gone("one")
    os.close(inherited)
    assert other.is_gone("one")
    owner.remove("one")


def test_a_look_at_a_lock_changes_nothing(folder, owner):
    for _ in range(3):
        assert not OwnerLock(folder).is_gone("one")
    owner.leave()
    assert not folder.exists()


def test_writers_exclude_each_other(tmp_path):
    path = tmp_path / "jobs.db"
    one, two = FairWriteLock(path, 10.0), FairWriteLock(path, 0.01)
    with one, pytest.raises(StoreUnavailable), two:
        pass
    with two:
        pass
    one.close(), two.close()
    assert list(tmp_path.iterdir()) == []


def test_lock_files_that_cannot_be_made_cost_no_more_than_fairness(tmp_path):
    write_lock = FairWriteLock(tmp_path / "nowhere" / "jobs.db", 0.0)
    with write_lock:
        pass
    write_lock.close()


def until_a_writer_waits(path):
    """Wait until a writer is the next, in the queue of the fair write lock."""
    queue = FileLock(path.with_name(f"{path.name}-queue.lock"))

    def is_taken():
        if queue.try_take():
            queue.release()
            return False
        return True

    wait_for(is_taken, every=0.001)
    queue.close()


def test_a_waiting_writer_is_next(tmp_path):
    """A writer that comes back at once finds the queue lock taken while another waits."""
    path = tmp_path / "jobs.db"
    busy, waiting = FairWriteLock(path, 10.0), FairWriteLock(path, 10.0)
    order: list[str] = []
    busy.__enter__()

    def wait() -> None:
        with waiting:
            order.append("waiting")

    thread = Meanwhile(wait)
    until_a_writer_waits(path)
    busy.__exit__(None, None, None)
    with busy:
        order.append("busy")
    thread.join()
    assert order == ["waiting", "busy"]
    for write_lock in (busy, waiting):
        write_lock.close()


class Clock:
    """A clock that only naps move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_writer_that_is_stopped_in_the_queue_is_passed(tmp_path, monkeypatch):
    """It has no lock of SQLite. The others wait for it once, and then only briefly, until it leaves the queue."""
    monkeypatch.setattr("supervisor.stores.sqlite.write_lock.time", clock := Clock())
    path = tmp_path / "jobs.db"
    stopped, other, third = (FairWriteLock(path, 1.0) for _ in range(3))
    waited = []

    def write() -> None:
        began = clock.now
        with other:
            waited.append(round(clock.now - began, 2))
            with pytest.raises(StoreUnavailable), third:
                pass

    assert stopped._queue_lock.try_take()
    write(), write()
    stopped._queue_lock.release()
    write()
    assert stopped._queue_lock.try_take()
    write()
    assert waited == [0.5, 0.05, 0.0, 0.5]
    for write_lock in (stopped, other, third):
        write_lock.close()


def test_closing_spares_the_files_of_a_process_that_writes(tmp_path):
    path = tmp_path / "jobs.db"
    one, two = FairWriteLock(path, 1.0), FairWriteLock(path, 1.0)
    with one:
        two.close()
        assert (tmp_path / "jobs.db-write.lock").exists()
    two.close()
    assert list(tmp_path.iterdir()) == []
    with one:
        assert (tmp_path / "jobs.db-write.lock").exists()
    one.close()
