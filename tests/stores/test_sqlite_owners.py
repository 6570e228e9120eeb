"""What a supervisor leaves beside the database goes with its row, and not before: a commit may fail."""

from __future__ import annotations

import fcntl
import os

import pytest

from supervisor.stores.base import StoreAway
from supervisor.stores.bells import Bells
from supervisor.stores.sqlite import SqliteStore
from tests.stores.shelf import SqliteShelf, put, take_one


@pytest.fixture
def shelf(tmp_path):
    shelf = SqliteShelf(tmp_path)
    yield shelf
    shelf.close()


@pytest.fixture
def store(shelf):
    return shelf.joined("one")


@pytest.fixture
def fail_next_commit(monkeypatch):
    """Makes the next commit of a store fail, and those after it work."""

    def make(store):
        def fail():
            monkeypatch.undo()
            raise StoreAway("disk I/O error")

        monkeypatch.setattr(store, "_commit", fail)

    return make


def die_as(path, owner):
    """A process that joins as `owner`, and dies."""
    child = os.fork()
    if child == 0:
        SqliteStore(path).join(owner, "host", os.getpid())
        os._exit(0)
    os.waitpid(child, 0)


def on_the_list(store):
    return sorted(store.column("owner", "supervisors"))


def beside(store):
    return sorted(entry.name for entry in store.path.with_name("jobs.db.bells").iterdir())


def test_a_dead_owner_is_forgotten_although_the_first_try_was_rolled_back(store, fail_next_commit):
    die_as(store.path, "dead")
    fail_next_commit(store)
    with pytest.raises(StoreAway), store.transaction():
        store.lapsed(10)
    assert on_the_list(store) == ["dead", "one"]
    store.lapsed(10)
    assert on_the_list(store) == ["one"]
    assert beside(store) == ["one.lock", "one.sock"]


def test_who_is_dead_and_forgotten_is_told_once_and_not_if_that_was_rolled_back(store, fail_next_commit):
    told = []
    store.on_owner_gone = told.append
    die_as(store.path, "dead")
    fail_next_commit(store)
    with pytest.raises(StoreAway), store.transaction():
        store.lapsed(10)
    assert told == []
    for _ in range(2):
        store.lapsed(10)
    assert told == ["dead"]


def test_an_owner_leaves_although_the_first_try_was_rolled_back(shelf, store, fail_next_commit):
    put(store)
    take_one(store)
    other = shelf.joined("two")
    fail_next_commit(store)
    with pytest.raises(StoreAway), store.transaction():
        store.leave()
    assert beside(other) == ["one.lock", "one.sock", "two.lock", "two.sock"]
    store.leave()
    assert beside(other) == ["two.lock", "two.sock"]
    assert [lapsed.owner_gone for lapsed in other.lapsed(10)] == [True]


@pytest.fixture
def other_bells(store):
    bells = Bells(store.bells._folder)
    yield bells
    bells.leave()


def test_what_an_owner_left_that_died_before_its_row_was_there_is_taken_down(store, other_bells):
    child = os.fork()
    if child == 0:
        other_bells.join("unborn")
        os._exit(0)
    os.waitpid(child, 0)
    other_bells.join("joining")
    store.lapsed(10)
    assert beside(store) == ["joining.lock", "joining.sock", "one.lock", "one.sock"]


def test_a_lock_taken_down_before_it_was_held_is_made_again(store, other_bells, monkeypatch):
    """Who looked for the dead saw the file before its maker had locked it."""
    flock = fcntl.flock

    def too_late(fd, how):
        monkeypatch.undo()
        store.bells.remove("joining")
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    other_bells.join("joining")
    assert not store.bells.is_gone("joining")
    assert beside(store) == ["joining.lock", "joining.sock", "one.lock", "one.sock"]
