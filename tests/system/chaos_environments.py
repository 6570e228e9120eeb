"""What the chaos takes place on: a store, the places at which supervisors sit, and the tricks that can be played there."""

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
from tests.system.chaos_disks import fill
from tests.system.machines import Machine, Network

Ask = Callable[[str], list[Any]]
Undo = Callable[[], object]
Span = tuple[float, float]

SKEW = 7200.0


@dataclass(frozen=True)
class Stand:
    """Where a supervisor sits: `config` is the name of its config, `under` the command that execs it, and its clock is
    `skew` seconds ahead."""

    config: str = "supervisor"
    under: Sequence[str] = ()
    skew: float = 0.0


@dataclass(frozen=True)
class Trick:
    """How often, and for how many seconds; `play` is given a number in [0, 1) that chooses, and gives (whose stand it hits, or
    None for all; how it is undone), or None if it can't be played now."""

    size: int
    seconds: Span
    play: Callable[[float], tuple[int | None, Undo] | None]


class Ground(Protocol):
    stands: Sequence[Stand]
    tricks: Mapping[str, Trick]

    url: str
    """As a client on this machine has it."""

    def configs(self) -> Mapping[str, str]:
        """The store of each config, by its name."""

    @contextmanager
    def moment(self) -> Iterator[Ask]:
        """Asks about one moment of the store. Raises Unseen while it can't be looked into."""
        raise NotImplementedError

    def left(self, living: int = 0) -> list[str]:
        """What there is beside the jobs that no supervisor needs, if so many live."""


class Unseen(Exception):
    """The store can't be looked into now."""


def nothing() -> None:
    pass


class Files:
    """A SQLite file on the small disk `disk`; two supervisors."""

    stands = (Stand(), Stand())
    url = "sqlite:///disk/jobs.db"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tricks = {
            "lock database": Trick(4, (0.1, 2.5), self._lock),
            "fill disk": Trick(4, (0.3, 2.0), lambda _: self._fill("disk")),
            "fill letters": Trick(4, (1.0, 5.0), lambda _: self._fill("letters")),
        }

    def configs(self) -> Mapping[str, str]:
        return {"supervisor": self.url}

    @contextmanager
    def moment(self) -> Iterator[Ask]:
        try:
            with closing(sqlite3.connect(f"file:{self._folder}/disk/jobs.db?mode=ro", uri=True, timeout=5)) as db:
                db.execute("begin")
                yield lambda sql: db.execute(sql).fetchall()
        except sqlite3.OperationalError as error:  # no room on the disk, or somebody has locked it
            raise Unseen(str(error)) from error

    def left(self, living: int = 0) -> list[str]:
        """A living one has a bell and a lock."""
        found = sorted(path.name for path in (self._folder / "disk").glob("*.bells/*" if living else "*.bells"))
        return found if len(found) != 2 * living else []

    def _lock(self, _: float) -> tuple[None, Undo] | None:
        db = sqlite3.connect(self._folder / "disk" / "jobs.db", timeout=0.3, isolation_level=None)
        try:
            db.execute("begin immediate")
        except sqlite3.OperationalError:
            db.close()
            return None
        return None, db.close

    def _fill(self, disk: str) -> tuple[None, Undo] | None:
        return fill(self._folder / disk / "filler")


class Machines:
    """A PostgreSQL server; four supervisors: two behind cables of their own, two on this machine, one of these with a clock of
    its own."""

    def __init__(self, folder: Path, network: Network, server: Server, skewed: Sequence[str]) -> None:
        self._folder, self._server, self.url = folder, server, server.url
        self._far: list[Machine] = [network.machine("first"), network.machine("second")]
        self._busy = False
        self.stands = (
            *(Stand("far", machine.under) for machine in self._far),
            Stand(under=skewed, skew=SKEW),
            Stand(),
        )
        self.tricks = {
            "fill letters": Trick(3, (1.0, 5.0), lambda _: fill(self._folder / "letters" / "filler")),
            "restart server": Trick(2, (0.1, 2.0), lambda _: self._stop(signal.SIGINT)),
            "crash server": Trick(2, (0.1, 2.0), lambda _: self._stop(signal.SIGQUIT)),
            "freeze server": Trick(3, (0.2, 4.0), lambda _: self._freeze()),
            "cut connections": Trick(5, (0.0, 0.0), lambda _: self._cut_connections()),
            "cut cable": Trick(8, (0.3, 8.0), self._cut_cable),
        }

    def configs(self) -> Mapping[str, str]:
        return {"supervisor": self.url, "far": f"{self._server.far_url}?connect_timeout=2"}

    @contextmanager
    def moment(self) -> Iterator[Ask]:
        try:
            with self._server.connect() as link:
                link.execute("set search_path = supervisor")
                link.execute("begin isolation level repeatable read read only")
                yield lambda sql: link.execute(sql).fetchall()
        except psycopg.OperationalError as error:
            raise Unseen(str(error)) from error

    def left(self, living: int = 0) -> list[str]:
        with self.moment() as ask:
            found = [f"{owner} {state}" for owner, state in ask("select owner, state from supervisors")]
        return found if len(found) != living else []

    def _stop(self, how: signal.Signals) -> tuple[None, Undo] | None:
        if self._busy:
            return None
        self._busy = True
        self._server.stop(how)
        return None, self._start

    def _start(self) -> None:
        self._server.start()
        self._busy = False

    def _freeze(self) -> tuple[None, Undo] | None:
        if self._busy:
            return None
        self._busy = True
        self._server.freeze()
        return None, self._thaw

    def _thaw(self) -> None:
        self._server.thaw()
        self._busy = False

    def _cut_connections(self) -> tuple[None, Undo] | None:
        if self._busy:
            return None
        with suppress(psycopg.OperationalError), self._server.connect() as admin:
            self._server.cut(admin)
        return None, nothing

    def _cut_cable(self, whom: float) -> tuple[int, Undo] | None:
        number = int(whom * len(self._far))
        machine = self._far[number]
        if not machine.joined:
            return None
        machine.cut()
        return number, machine.join
