"""The SQLite store: one file, any number of clients and supervisors on one machine, nothing else to install."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson

from supervisor.errors import StoreError
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.records import Presence
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.transfer import Transfer
from supervisor.stores.sqlite.write_lock import beside

ANNOUNCE = """insert into supervisors(id, owner, host, pid, state, seen_at, idle, workers) values (?, ?, ?, ?, ?, ?, ?, ?)
  on conflict do update set state = excluded.state, seen_at = excluded.seen_at, idle = excluded.idle,
    workers = excluded.workers"""


class SqliteStore(Transfer):
    """Implements `supervisor.stores.protocol.Store`. `clock` gives seconds since the epoch."""

    def __init__(
        self, path: Path, *, create: bool = False, synchronous: str = "full", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(path, create=create, synchronous=synchronous, clock=clock)
        self.url = f"sqlite:///{self.path}"
        self.notifier = Notifier(beside(self.path, ".bells"))
        commands = BatchedCommands(self, self.transaction, self.notify)
        self.cancel, self.retry, self.redrive = commands.cancel, commands.retry, commands.redrive
        self.delete, self.purge, self.prune, self.pause = (
            commands.delete,
            commands.purge,
            commands.prune,
            commands.pause,
        )
        self.on_owner_gone: Callable[[str], None] = lambda owner: None
        self._who: tuple[str, str, int] | None = None

    def reader(self) -> SqliteStore:
        sibling = SqliteStore(self.path, synchronous=self._synchronous, clock=self._clock)
        sibling.run("pragma query_only = on")
        return sibling

    def notify(self) -> None:
        self.notifier.notify()

    def join(self, owner: str, host: str, pid: int) -> int | None:
        lock = self.notifier.join(owner)
        self._who = (owner, host, pid)
        with self.transaction():
            self.run(ANNOUNCE, None, *self._who, "starting", self.now(), 0, "[]")
            self.owner_id = int(self.value("select id from supervisors where owner = ?", owner))
        return lock

    def leave(self) -> None:
        """An owner with leases left stays on the list, as one that has left, until they are recovered."""
        if self.owner_id is None:
            self.notifier.leave()
            return
        with self.transaction():
            self.run("update supervisors set state = ?, workers = '[]' where id = ?", LEFT, self.owner_id)
            self.run(f"{_FORGET} and not exists {_ITS_LEASES}", self.owner_id)
            self.after_commit(self._left)

    def _left(self) -> None:
        self.owner_id = None
        self.notifier.leave()

    def notification_fd(self) -> int | None:
        return self.notifier.descriptor()

    def clear_notifications(self) -> None:
        self.notifier.clear_notifications()

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        self.on_owner_gone = on_gone

    def announce(self, presence: Presence) -> None:
        if self.owner_id is None or self._who is None:
            raise StoreError("announce: join first")
        workers = orjson.dumps(list(presence.workers)).decode()
        with self.transaction():
            self.run(ANNOUNCE, self.owner_id, *self._who, presence.state, self.now(), presence.idle, workers)


_FORGET = "delete from supervisors where id = ?"
_ITS_LEASES = f"(select 1 from jobs where state = {IN_FLIGHT} and owner = supervisors.id)"
