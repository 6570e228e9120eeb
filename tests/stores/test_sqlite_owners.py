"""The files of a supervisor beside the database are removed with its row, and not before: a commit may fail."""

from __future__ import annotations

import errno
import fcntl
import os
import signal

import pytest

from supervisor.errors import StoreUnavailable
from supervisor.stores.records import Waiting
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.recovery import OWNERS
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.factories import SqliteFactory, dead_letters, make_dead, put, release, take, take_one, waiting


@pytest.fixture
def factory(tmp_path):
    factory = SqliteFactory(tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def store(factory):
    return factory.joined("one")


@pytest.fixture
def fail_next_commit(monkeypatch):
    """Make the next commit of a store fail, and those after it work."""

    def make(store):
        def fail():
            monkeypatch.undo()
            raise StoreUnavailable("disk I/O error")

        monkeypatch.setattr(store.connection, "_commit", fail)

    return make


def die_as(path, owner, claim=0):
    """Run a process that joins as `owner`, claims so many jobs, and exits without leaving."""
    child = os.fork()
    if child == 0:
        try:
            store = SqliteStore(path)
            store.join(owner, "host", os.getpid())
            take(store, claim)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def on_the_list(store):
    return sorted(store.connection.json(OWNERS))


def beside(store):
    return sorted(entry.name for entry in store.path.with_name("jobs.db.notify").iterdir())


def test_a_dead_owner_is_forgotten_although_the_first_attempt_was_rolled_back(store, fail_next_commit):
    die_as(store.path, "dead")
    fail_next_commit(store)
    with pytest.raises(StoreUnavailable), store.transaction():
        store.expired_leases(10)
    assert on_the_list(store) == ["dead", "one"]
    store.expired_leases(10)
    assert on_the_list(store) == ["one"]
    assert beside(store) == ["one.lock", "one.sock"]


def test_a_dead_owner_is_reported_once_and_not_if_that_was_rolled_back(store, fail_next_commit):
    gone = []
    store.watch_owners(gone.append)
    die_as(store.path, "dead")
    fail_next_commit(store)
    with pytest.raises(StoreUnavailable), store.transaction():
        store.expired_leases(10)
    assert gone == []
    for _ in range(2):
        store.expired_leases(10)
    assert gone == ["dead"]


def test_an_owner_leaves_although_the_first_attempt_was_rolled_back(factory, store, fail_next_commit):
    put(store)
    take_one(store)
    other = factory.joined("two")
    fail_next_commit(store)
    with pytest.raises(StoreUnavailable), store.transaction():
        store.leave()
    assert beside(other) == ["one.lock", "one.sock", "two.lock", "two.sock"]
    store.leave()
    assert beside(other) == ["two.lock", "two.sock"]
    assert [expired_leases.owner_gone for expired_leases in other.expired_leases(10)] == [True]


@pytest.fixture
def other_lock(store):
    lock = OwnerLock(store.owner_lock.folder)
    yield lock
    lock.remove("joining")
    lock.release()


def test_files_of_an_owner_that_died_before_its_row_was_there_are_removed(store, other_lock):
    child = os.fork()
    if child == 0:
        other_lock.take("dead")
        os._exit(0)
    os.waitpid(child, 0)
    other_lock.take("joining")
    store.expired_leases(10)
    assert beside(store) == ["joining.lock", "one.lock", "one.sock"]


def test_a_lock_removed_before_it_was_held_is_made_again(store, other_lock, monkeypatch):
    """A process that looked for dead owners saw the file before its maker had locked it."""
    flock = fcntl.flock

    def too_late(fd, how):
        monkeypatch.undo()
        store.owner_lock.remove("joining")
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    other_lock.take("joining")
    assert not store.owner_lock.is_gone("joining")
    assert beside(store) == ["joining.lock", "one.lock", "one.sock"]


def recover_and_hang(path, owner, clock, report, batches):
    """Start a process that recovers so many small batches, and hangs in the middle of another."""
    child = os.fork()
    if child == 0:
        try:
            store = SqliteStore(path, clock=clock)
            store.join(owner, "host", os.getpid())
            for _ in range(batches):
                assert release_expired(store, 50)
            with store.transaction():
                assert release_expired(store, 50)
                os.write(report, b".")
                signal.pause()
        finally:
            os._exit(1)
    return child


def release_expired(store, limit):
    expired_leases = store.expired_leases(limit)
    assert store.recover([release(one.lease)._replace(seen=one.deadline) for one in expired_leases]) == []
    return len(expired_leases)


def test_recovery_killed_in_the_middle_again_and_again_releases_each_job_once(factory, store):
    jobs = 2000
    put(store, *["mail"] * jobs)
    die_as(store.path, "dead", claim=jobs)
    reported, report = os.pipe()
    for killed in range(8):
        child = recover_and_hang(store.path, f"killed-{killed}", factory.clock, report, killed % 4)
        assert os.read(reported, 1) == b"."
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(reported), os.close(report)
    assert len(store.expired_leases(jobs)) == jobs - 2 * (1 + 2 + 3) * 50
    while release_expired(store, 500):
        pass
    assert store.connection.json("select json_group_array(distinct expired_count) from jobs") == [1]
    assert waiting(store) == {"default": Waiting(jobs, 0)}
    assert on_the_list(store) == ["one"]


def test_only_the_dead_letters_of_an_owner_that_is_gone_are_offered_at_once(factory, store):
    put(store)
    take_one(store)  # owners are forgotten although others have leases
    first, second = make_dead(store, "a", "b")
    other = factory.joined("two")
    assert [it.id for it in (*dead_letters(store, 1), *dead_letters(other, 1))] == [first, second]
    factory.kill(other)
    store.expired_leases(10)
    assert [it.id for it in dead_letters(store)] == [second]


def test_a_join_that_fails_holds_no_lock(factory, monkeypatch):
    def bind(owner):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = factory.open()
    monkeypatch.setattr(store.notifier, "bind", bind)
    with pytest.raises(StoreUnavailable, match=r"jobs\.db\.notify: No space left on device"):
        store.join("one", "host", 4711)
    assert store.owner_lock.is_gone("one")
