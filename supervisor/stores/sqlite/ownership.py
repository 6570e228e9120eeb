"""The owner's own row in a SQLite store, and its lock and socket beside the file."""

from __future__ import annotations

import logging

import orjson

from supervisor.errors import StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.fencing import RandomPart
from supervisor.stores.records import Presence
from supervisor.stores.sinks import Sinks, sinks_of, sinks_text
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.notifier import Notifier
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.supervisors import NEW_ID
from supervisor.text.os_errors import not_writable

_logger = logging.getLogger(__name__)

ANNOUNCE = "update supervisors set state = ?, seen_at = ?, idle = ?, workers = ?, sinks = ?, about = ? where owner = ?"
REGISTER = """
  insert into supervisors(state, seen_at, idle, workers, sinks, about, owner, host, pid) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
SINKS = "select json_group_array(distinct cast(sinks as text)) from supervisors"
ID = "select id from supervisors where owner = ?"
KEEP_LEASES = f"""
  update jobs set owner = ?1 where state = {IN_FLIGHT} and owner = ?2
    and not exists (select 1 from supervisors where id = ?2)"""
LEAVE = f"update supervisors set state = '{LEFT}', workers = '[]' where id = ?"
FORGET = f"""
  delete from supervisors where id = ?
    and not exists (select 1 from jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""


class Ownership:
    """The owner of a supervisor. `id` is that of its row in `supervisors`, which leases refer to; None until it has joined. `sinks`
    are the names of its sinks."""

    def __init__(self, connection: Connection, lock: OwnerLock, notifier: Notifier, random_part: RandomPart) -> None:
        self._connection, self._lock, self._notifier = connection, lock, notifier
        self.random_part = random_part
        self.id: int | None = None
        self._id_before: int | None = None  # before this transaction
        connection.on_rollback(self._rolled_back)
        self._who: tuple[str, str, int] | None = None
        self.sinks: Sinks = frozenset()

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int:
        self.id, self._id_before, self._who, self.sinks = None, None, (owner, host, pid), sinks
        fd = self._take_files(owner)
        with self._connection.transaction():
            self._announce(self._who, Presence("starting"))
        return fd

    def leave(self) -> None:
        """Remove the row of the owner. If it still has leases, mark it as left: the row is kept until they are recovered."""
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

    def owed(self) -> Sinks:
        """Return the sinks that a dead letter made here is owed to: without own sinks, those of all supervisors of the store, gone
        ones too, since a lease of theirs may be recovered here."""
        return self.sinks or frozenset().union(*map(sinks_of, self._connection.json(SINKS)))

    def _announce(self, who: tuple[str, str, int], presence: Presence) -> None:
        """Write the owner's row. If it is gone (removed by others, or a backup was restored, in which its id may be that of another
        owner), insert one with a new id. The owner keeps the leases that nobody else can have."""
        workers = orjson.dumps(list(presence.workers)).decode()
        lists, about = (workers, sinks_text(self.sinks)), orjson.dumps(presence.about).decode()
        row, owner = (presence.state, self._connection.now(), presence.idle, *lists, about), who[0]
        if not self._connection.run(ANNOUNCE, *row, owner):
            self._connection.run(REGISTER, *row, *who)
        id = int(self._connection.value(ID, owner))
        if self.id is not None and id != self.id:
            self._connection.run(KEEP_LEASES, id, self.id)
        self.id = id
        self._connection.after_commit(self._registered)

    def _registered(self) -> None:
        if self._id_before not in (None, self.id):
            _logger.warning(NEW_ID, self._connection.path)
        self._id_before = self.id

    def _rolled_back(self) -> None:
        self.id = self._id_before

    def _left(self) -> None:
        self.id = self._id_before = None
        self._remove_files()

    def _take_files(self, owner: str) -> int:
        try:
            fd = self._lock.take(owner)
            self._notifier.bind(owner)
        except OSError as error:
            self._lock.release()
            if isinstance(error, PermissionError):
                raise StoreBroken(not_writable([self._lock.folder])) from error
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
