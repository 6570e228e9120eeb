"""The owner's own row in a SQLite store, and its lock and socket beside the file."""

from __future__ import annotations

import orjson

from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.fencing import RandomPart
from supervisor.stores.records import Presence
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.owner_lock import OwnerLock

ANNOUNCE = """
  insert into supervisors(id, owner, host, pid, state, seen_at, idle, workers) values (?, ?, ?, ?, ?, ?, ?, ?)
  on conflict do update set state = excluded.state, seen_at = excluded.seen_at, idle = excluded.idle,
    workers = excluded.workers"""
LEAVE = f"update supervisors set state = '{LEFT}', workers = '[]' where id = ?"
FORGET = f"""
  delete from supervisors where id = ?
    and not exists (select 1 from jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""


class Ownership:
    """`id` is the owner's row in `supervisors`, which leases name; None until it has joined."""

    def __init__(self, connection: Connection, lock: OwnerLock, notifier: Notifier, random_part: RandomPart) -> None:
        self._connection, self._lock, self._notifier = connection, lock, notifier
        self.random_part = random_part
        self.id: int | None = None
        self._who: tuple[str, str, int] | None = None

    def join(self, owner: str, host: str, pid: int) -> int:
        self.id, self._who = None, (owner, host, pid)
        fd = self._take_files(owner)
        with self._connection.transaction():
            self._announce(self._who, Presence("starting"))
            self.id = int(self._connection.value("select id from supervisors where owner = ?", owner))
        return fd

    def leave(self) -> None:
        """An owner with leases left stays on the list, as one that has left, until they are recovered."""
        if self.id is None:
            self._remove_files()
            return
        with self._connection.transaction():
            self._connection.run(LEAVE, self.id)
            self._connection.run(FORGET, self.id)
            self._connection.after_commit(self._left)

    def announce(self, presence: Presence) -> None:
        if self.id is None or self._who is None:
            raise StoreError("announce: join first")
        with self._connection.transaction():
            self._announce(self._who, presence)

    def _announce(self, who: tuple[str, str, int], presence: Presence) -> None:
        workers = orjson.dumps(list(presence.workers)).decode()
        now = self._connection.now()
        self._connection.run(ANNOUNCE, self.id, *who, presence.state, now, presence.idle, workers)

    def _left(self) -> None:
        self.id = None
        self._remove_files()

    def _take_files(self, owner: str) -> int:
        try:
            fd = self._lock.take(owner)
            self._notifier.bind(owner)
        except OSError as error:
            self._lock.release()
            if isinstance(error, PermissionError):
                expected = "expected a folder for this user to write to"
                raise StoreBroken(f"{self._lock.folder}: {error.strerror}; {expected}") from error
            raise StoreUnavailable(f"{self._lock.folder}: {error.strerror}") from error
        return fd

    def _remove_files(self) -> None:
        if self._who is None:
            return
        owner, _, _ = self._who
        self._notifier.unbind()
        self._lock.remove(owner)
        self._lock.release()
        self._who = None
