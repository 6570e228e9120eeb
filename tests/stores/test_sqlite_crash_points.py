"""A process that is killed before any one of its statements has done all of its work, or nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RetentionSettings
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.store import SqliteStore
from tests.stores.factories import (
    SqliteFactory,
    again,
    dead,
    dead_letters,
    make_dead,
    promote,
    put,
    success,
    take,
    take_one,
)

TABLES = ("jobs", "counts", "attempts", "dead_letters", "queues", "supervisors", "policies", "sqlite_sequence")
EVERYTHING = RetentionSettings(succeeded=0.0, cancelled=0.0, failed=0.0)
Act = Callable[[SqliteStore], Any]


def settle(store: SqliteStore) -> None:
    won, lost, failed = store.leases([id for id, _ in store.held()])
    store.settle([success(won), again(lost), dead(failed)])


def recover(store: SqliteStore) -> None:
    store.recover(
        [
            again(expired_leases.lease)._replace(seen=expired_leases.deadline)
            for expired_leases in store.expired_leases(10)
        ]
    )


def accept(store: SqliteStore) -> None:
    store.mark_accepted(dead_letters(store), "a")


ACTS: dict[str, Act] = {
    "enqueue": lambda store: put(store, "a", "b"),
    "promote": lambda store: promote(store, 10),
    "claim": take,
    "settle": settle,
    "recover": recover,
    "accept": accept,
    "cancel": lambda store: store.cancel([1, 4, 7]),
    "redrive": lambda store: store.redrive(None, force=True),
    "purge": lambda store: store.purge(force=True),
    "prune": lambda store: store.prune(EVERYTHING, 10),
    "pause": lambda store: store.pause("default", True),
    "leave": lambda store: store.leave(),
}
COMMITS = {"accept": 2}
"""One each, but of these."""


def killed_before(statement: int, act: Callable[[Callable[[], None]], None]) -> bool:
    """Whether a process that calls `act` was killed before this `statement`, counted from 0; False if it made fewer. Statements are
    counted from the moment when `act` calls its argument."""
    child = os.fork()
    if child == 0:
        act(lambda: die_before(statement))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def die_before(statement: int) -> None:
    execute, made = Connection.execute, iter(range(statement))

    def dying(*arguments: Any) -> Any:
        if next(made, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*arguments)

    Connection.execute = dying  # type: ignore[method-assign]


def contents(factory: SqliteFactory) -> dict[str, Any]:
    factory.check()
    store = factory.open()
    return {table: store.connection.execute(f"select * from {table}").fetchall() for table in TABLES}


def fill(factory: SqliteFactory) -> None:
    """Put jobs of every state into the store; three are in flight for the owner "killed", one for an owner that is gone."""
    dying, gone = factory.joined("killed"), factory.joined("gone")
    put(dying, "a", "b", "c", delay=1.0)
    make_dead(dying, "dead", "dead")
    put(dying, "won")
    dying.settle([success(take_one(dying))])
    put(dying, "d", "e", "f")
    take(dying)
    put(gone, "g")
    take(gone)
    put(dying, "h", "i")
    factory.clock.step(60)
    factory.kill(dying)
    factory.kill(gone)


def copied(factory: SqliteFactory, folder: Path) -> SqliteFactory:
    copy = SqliteFactory(folder)
    copy.clock = factory.clock
    shutil.copytree(factory.folder, folder, ignore=shutil.ignore_patterns("*.sock"))
    return copy


def act_as_the_killed(factory: SqliteFactory, name: str, count_from_here: Callable[[], None]) -> None:
    store = factory.joined("killed")
    count_from_here()
    ACTS[name](store)


def make(factory: SqliteFactory, count_from_here: Callable[[], None]) -> None:
    count_from_here()
    factory.open()


@pytest.mark.parametrize("name", ACTS)
def test_a_process_killed_between_any_two_statements_has_done_all_or_nothing_of(tmp_path: Path, name: str) -> None:
    (tmp_path / "filled").mkdir()
    filled = SqliteFactory(tmp_path / "filled")
    fill(filled)
    found: list[dict[str, Any]] = []
    statement, died = 0, True
    while died:
        factory = copied(filled, tmp_path / f"killed-{statement}")
        died = killed_before(statement, lambda count, factory=factory: act_as_the_killed(factory, name, count))  # type: ignore[misc]
        left = contents(factory)
        if not found or left != found[-1]:
            found.append(left)
        factory.close()
        statement += 1
    assert statement > 3
    assert len(found) == 1 + COMMITS.get(name, 1), "nothing was done, or all of it"


def test_a_process_killed_while_it_makes_a_store_leaves_one_that_can_be_opened(tmp_path: Path) -> None:
    statement, died = 0, True
    while died:
        (folder := tmp_path / f"killed-{statement}").mkdir()
        factory = SqliteFactory(folder)
        died = killed_before(statement, lambda count, factory=factory: make(factory, count))  # type: ignore[misc]
        store = factory.joined("next")
        assert put(store, "a") == [1]
        assert [lease.id for lease in take(store)] == [1]
        factory.check()
        factory.close()
        statement += 1
    assert statement > 20
