"""The owner's own row in a PostgreSQL store, its lock and its notifications."""

from __future__ import annotations

import logging

import orjson

from supervisor.errors import StoreError
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.fencing import RandomPart
from supervisor.stores.postgres.connection import NOW, Connection
from supervisor.stores.postgres.notifier import Notifier
from supervisor.stores.postgres.owner_lock import OwnerLock
from supervisor.stores.postgres.row_locks import SUPERVISORS, RowLocks
from supervisor.stores.records import Presence, microseconds
from supervisor.stores.sinks import Sinks, sinks_of, sinks_text
from supervisor.stores.supervisors import NEW_ID

_logger = logging.getLogger(__name__)

ANNOUNCE = f"""
  update {{s}}.supervisors set owner_lock = $2, state = $3, seen_at = {NOW}, unseen_after = {NOW} + $4, idle = $5, workers = $6,
    sinks = $7, about = $8
  where owner = $1 returning id"""
# It inserts nothing if another row has the next id of the sequence, or this owner; that id is used up then.
REGISTER = f"""
  insert into {{s}}.supervisors(owner, owner_lock, state, seen_at, unseen_after, idle, workers, sinks, about, host, pid)
  values ($1, $2, $3, {NOW}, {NOW} + $4, $5, $6, $7, $8, $9, $10) on conflict do nothing returning id"""
KEEP_LEASES = f"""
  update {{s}}.jobs set owner = $1 where state = {IN_FLIGHT} and owner = $2
    and not exists (select from {{s}}.supervisors where id = $2)"""
SINKS = "select distinct sinks from {s}.supervisors"
LEAVE = f"update {{s}}.supervisors set state = '{LEFT}', workers = '[]' where id = $1"
FORGET = f"""
  delete from {{s}}.supervisors where id = $1
    and not exists (select 1 from {{s}}.jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""

_UNSEEN_AT_FIRST = 3600.0
_MIN_UNSEEN = 5.0
_UNSEEN_TTLS = 3
"""An owner without leases is no longer listed if it was not seen for _UNSEEN_AT_FIRST seconds while it starts; afterwards for
_UNSEEN_TTLS times the ttl of its leases, and at least _MIN_UNSEEN seconds."""


class Ownership:
    """The owner of a supervisor. `id` is that of its row in `supervisors`, which leases refer to; None until it has joined. `sinks`
    are the names of its sinks."""

    def __init__(
        self, connection: Connection, locks: RowLocks, lock: OwnerLock, notifier: Notifier, random_part: RandomPart
    ) -> None:
        self._connection, self._locks, self._lock, self._notifier = connection, locks, lock, notifier
        self.random_part = random_part
        self.id: int | None = None
        self._id_before: int | None = None  # before this transaction
        connection.on_rollback(self._rolled_back)
        self._who: tuple[str, str, int] | None = None
        self.sinks: Sinks = frozenset()
        self._unseen = _UNSEEN_AT_FIRST
        connection.before_close(self._release)

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        fd = self._lock.take(owner)
        self.id, self._id_before, self._who, self.sinks = None, None, (owner, host, pid), sinks
        with self._connection.transaction():
            self._announce(self._who, Presence("starting"))
        self._notifier.bind()
        return fd

    def leave(self) -> None:
        """Remove the row of the owner. If it still has leases, mark it as left: the row is kept until they are recovered."""
        if self.id is None:
            self._release()
            return
        with self._connection.transaction():
            if not self._locks.to_skip(SUPERVISORS, [self.id]):
                self._connection.later(LEAVE, self.id)
                self._connection.later(FORGET, self.id)
            self._connection.after_commit(self._left)

    def announce(self, presence: Presence) -> None:
        if self.id is None or self._who is None:
            raise StoreError("announce: join first")
        if presence.ttl is not None:
            self._unseen = max(_MIN_UNSEEN, _UNSEEN_TTLS * presence.ttl)
        with self._connection.transaction():
            if not self._locks.to_skip(SUPERVISORS, [self.id]):
                self._announce(self._who, presence)

    def owed(self) -> Sinks:
        """Return the sinks that a dead letter made here is owed to: without own sinks, those of all supervisors of the store, gone
        ones too, since a lease of theirs may be recovered here."""
        return self.sinks or frozenset().union(*map(sinks_of, self._connection.column(SINKS)))

    def _left(self) -> None:
        self.id = self._id_before = None
        self._release()

    def _release(self) -> None:
        self._notifier.unbind()
        self._lock.release()

    def _announce(self, who: tuple[str, str, int], presence: Presence) -> None:
        """Write the owner's row. If it is gone (removed by others, or a backup was restored, in which its id may be that of another
        owner), insert one with a new id. The owner keeps the leases that nobody else can have."""
        workers = orjson.dumps(list(presence.workers)).decode()
        owner, *at = who
        state, unseen = presence.state, microseconds(self._unseen)
        lists, about = (workers, sinks_text(self.sinks)), orjson.dumps(presence.about).decode()
        row = (owner, self._lock.address, state, unseen, presence.idle, *lists, about)
        id = self._connection.value(ANNOUNCE, *row)
        while id is None:
            id = self._connection.value(REGISTER, *row, *at) or self._connection.value(ANNOUNCE, *row)
        if self.id is not None and id != self.id:
            self._connection.run(KEEP_LEASES, id, self.id)
        self.id = int(id)
        self._connection.after_commit(self._registered)

    def _registered(self) -> None:
        if self._id_before not in (None, self.id):
            _logger.warning(NEW_ID, self._connection.url)
        self._id_before = self.id

    def _rolled_back(self) -> None:
        self.id = self._id_before
