"""The environments of the chaos test: a store, the hosts on which supervisors run, and the faults that only occur there."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.stores.postgres_server import Server
from tests.system.disks import fill
from tests.system.machines import Machine, Network

Query = Callable[[str], list[Any]]
Undo = Callable[[], object]
Span = tuple[float, float]

SKEW = 7200.0


@dataclass(frozen=True)
class HostOptions:
    """`config` is the name of the supervisor's config, `under` a command that execs it; its clock is `skew` seconds ahead."""

    config: str = "supervisor"
    under: Sequence[str] = ()
    skew: float = 0.0


@dataclass(frozen=True)
class EnvironmentFault:
    """`frequency` is relative to that of other faults, `seconds` the span from which its length is chosen.

    `inject` takes a number in [0, 1) that chooses among hosts. It returns the host that the fault hits (None: all) and how to
    undo it, or None if the fault can't be injected now.
    """

    frequency: int
    seconds: Span
    inject: Callable[[float], tuple[int | None, Undo] | None]


class Environment(Protocol):
    hosts: Sequence[HostOptions]
    faults: Mapping[str, EnvironmentFault]

    url: str
    """The store, as a client on this machine reaches it."""

    def configs(self) -> Mapping[str, str]:
        """Return the URL of the store in each config, by the name of the config."""

    @contextmanager
    def snapshot(self) -> Iterator[Query]:
        """Run queries on one moment of the store. Raises Unreadable while the store can't be read."""
        raise NotImplementedError

    def leftovers(self, supervisors: int = 0) -> list[str]:
        """Return what the store keeps besides jobs, if that is not what so many running supervisors need."""


class Unreadable(Exception):
    """The store can't be read now."""


def nothing() -> None:
    pass


def fill_disk(folder: Path) -> tuple[None, Undo] | None:
    filler = folder / "filler"
    if filler.exists():
        return None
    fill(filler)
    return None, filler.unlink


class SqliteEnvironment:
    """Two supervisors on a SQLite file on the small disk `disk`."""

    hosts = (HostOptions(), HostOptions())
    url = "sqlite:///disk/jobs.db"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.faults = {
            "lock database": EnvironmentFault(4, (0.1, 2.5), self._lock),
            "fill disk": EnvironmentFault(4, (0.3, 2.0), lambda _: fill_disk(folder / "disk")),
            "fill sink": EnvironmentFault(4, (1.0, 5.0), lambda _: fill_disk(folder / "sink")),
        }

    def configs(self) -> Mapping[str, str]:
        return {"supervisor": self.url}

    @contextmanager
    def snapshot(self) -> Iterator[Query]:
        try:
            with closing(sqlite3.connect(f"file:{self._folder}/disk/jobs.db?mode=ro", uri=True, timeout=5)) as db:
                db.execute("begin")
                yield lambda sql: db.execute(sql).fetchall()
        except sqlite3.OperationalError as error:  # the disk is full, or the database locked
            raise Unreadable(str(error)) from error

    def leftovers(self, supervisors: int = 0) -> list[str]:
        """Each running supervisor has a notifier and a lock."""
        found = sorted(path.name for path in (self._folder / "disk").glob("*.notify/*" if supervisors else "*.notify"))
        return found if len(found) != 2 * supervisors else []

    def _lock(self, _: float) -> tuple[None, Undo] | None:
        db = sqlite3.connect(self._folder / "disk" / "jobs.db", timeout=0.3, isolation_level=None)
        try:
            db.execute("begin immediate")
        except sqlite3.OperationalError:
            db.close()
            return None
        return None, db.close


class PostgresEnvironment:
    """Four supervisors on a PostgreSQL server: two on machines of their own behind a cable each, two on this machine, one of
    these with a clock of its own."""

    def __init__(self, folder: Path, network: Network, server: Server, skewed: Sequence[str]) -> None:
        self._server, self.url = server, server.url
        self._machines: list[Machine] = [network.machine("first"), network.machine("second")]
        self._server_is_down = False
        self.hosts = (
            *(HostOptions("far", machine.under) for machine in self._machines),
            HostOptions(under=skewed, skew=SKEW),
            HostOptions(),
        )
        self.faults = {
            "fill sink": EnvironmentFault(3, (1.0, 5.0), lambda _: fill_disk(folder / "sink")),
            "restart server": EnvironmentFault(2, (0.1, 2.0), lambda _: self._stop(signal.SIGINT)),
            "crash server": EnvironmentFault(2, (0.1, 2.0), lambda _: self._stop(signal.SIGQUIT)),
            "freeze server": EnvironmentFault(3, (0.2, 4.0), lambda _: self._freeze()),
            "cut connections": EnvironmentFault(5, (0.0, 0.0), lambda _: self._cut_connections()),
            "cut cable": EnvironmentFault(8, (0.3, 8.0), self._cut_cable),
        }

    def configs(self) -> Mapping[str, str]:
        return {"supervisor": self.url, "far": f"{self._server.far_url}?connect_timeout=2"}

    @contextmanager
    def snapshot(self) -> Iterator[Query]:
        try:
            with self._server.connect() as connection:
                connection.execute("set search_path = supervisor")
                connection.execute("begin isolation level repeatable read read only")
                yield lambda sql: connection.execute(sql).fetchall()
        except psycopg.OperationalError as error:
            raise Unreadable(str(error)) from error

    def leftovers(self, supervisors: int = 0) -> list[str]:
        with self.snapshot() as query:
            found = [f"{owner} {state}" for owner, state in query("select owner, state from supervisors")]
        return found if len(found) != supervisors else []

    def _stop(self, how: signal.Signals) -> tuple[None, Undo] | None:
        if self._server_is_down:
            return None
        self._server_is_down = True
        self._server.stop(how)
        return None, self._start

    def _start(self) -> None:
        self._server.start()
        self._server_is_down = False

    def _freeze(self) -> tuple[None, Undo] | None:
        if self._server_is_down:
            return None
        self._server_is_down = True
        self._server.freeze()
        return None, self._thaw

    def _thaw(self) -> None:
        self._server.thaw()
        self._server_is_down = False

    def _cut_connections(self) -> tuple[None, Undo] | None:
        if self._server_is_down:
            return None
        with suppress(psycopg.OperationalError), self._server.connect() as admin:
            self._server.cut(admin)
        return None, nothing

    def _cut_cable(self, host_choice: float) -> tuple[int, Undo] | None:
        host = int(host_choice * len(self._machines))
        machine = self._machines[host]
        if not machine.joined:
            return None
        machine.cut()
        return host, machine.join
