"""The owner's own row in a PostgreSQL store, its lock and its notifications."""

from __future__ import annotations

import orjson

from supervisor.errors import StoreError
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.fencing import RandomPart
from supervisor.stores.postgres.connection import NOW, Connection
from supervisor.stores.postgres.notifier import Notifier
from supervisor.stores.postgres.owner_lock import OwnerLock
from supervisor.stores.postgres.row_locks import SUPERVISORS, RowLocks
from supervisor.stores.records import Presence, microseconds

ANNOUNCE = f"""
  insert into {{s}}.supervisors as it(id, owner, host, pid, owner_lock, state, seen_at, unseen_after, idle, workers)
    overriding system value
  values (coalesce($1::bigint, nextval(pg_get_serial_sequence($10, 'id'))), $2, $3, $4, $5, $6, {NOW}, {NOW} + $7, $8, $9)
  on conflict(owner) do update set owner_lock = excluded.owner_lock, state = excluded.state, seen_at = excluded.seen_at,
    unseen_after = excluded.unseen_after, idle = excluded.idle, workers = excluded.workers
  returning id"""
LEAVE = f"update {{s}}.supervisors set state = '{LEFT}', workers = '[]' where id = $1"
FORGET = f"""
  delete from {{s}}.supervisors where id = $1
    and not exists (select 1 from {{s}}.jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""

_UNSEEN_AT_FIRST = 3600.0
_MIN_UNSEEN = 5.0
_UNSEEN_TTLS = 3
"""An owner without leases that was not seen for so long is off the list: seconds while it starts; afterwards so many times the ttl
of its leases, and at least so many seconds."""


class Ownership:
    """`id` is the owner's row in `supervisors`, which leases name; None until it has joined."""

    def __init__(
        self, connection: Connection, locks: RowLocks, lock: OwnerLock, notifier: Notifier, random_part: RandomPart
    ) -> None:
        self._connection, self._locks, self._lock, self._notifier = connection, locks, lock, notifier
        self.random_part = random_part
        self.id: int | None = None
        self._who: tuple[str, str, int] | None = None
        self._unseen = _UNSEEN_AT_FIRST
        connection.before_close(self._release)

    def join(self, owner: str, host: str, pid: int) -> int | None:
        fd = self._lock.take(owner)
        self.id, self._who = None, (owner, host, pid)
        with self._connection.transaction():
            self.id = self._announce(self._who, Presence("starting"))
        self._notifier.bind()
        return fd

    def leave(self) -> None:
        """An owner with leases left stays on the list, as one that has left, until they are recovered."""
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

    def _left(self) -> None:
        self.id = None
        self._release()

    def _release(self) -> None:
        self._notifier.unbind()
        self._lock.release()

    def _announce(self, who: tuple[str, str, int], presence: Presence) -> int:
        workers = orjson.dumps(list(presence.workers)).decode()
        unseen, table = microseconds(self._unseen), f"{self._connection.names.schema}.supervisors"
        its = (self._lock.address, presence.state, unseen, presence.idle, workers, table)
        return int(self._connection.value(ANNOUNCE, self.id, *who, *its))
