"""The PostgreSQL store: supervisors and clients on any number of machines share one queue, in a schema of its own."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from supervisor.errors import StoreError
from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.operator_commands import BatchedCommands
from supervisor.stores.postgres.claim import NOW
from supervisor.stores.postgres.notifier import Listener
from supervisor.stores.postgres.owner_lock import OwnerLock
from supervisor.stores.postgres.schema import bring_up
from supervisor.stores.postgres.transfer import Transfer
from supervisor.stores.records import Presence, microseconds

ANNOUNCE = f"""insert into {{s}}.supervisors as it(id, owner, host, pid, place, state, seen_at, unseen_after, idle, workers)
    overriding system value
  values (coalesce($1::bigint, nextval(pg_get_serial_sequence($10, 'id'))), $2, $3, $4, $5, $6, {NOW}, {NOW} + $7, $8, $9)
  on conflict(owner) do update set place = excluded.place, state = excluded.state, seen_at = excluded.seen_at,
    unseen_after = excluded.unseen_after, idle = excluded.idle, workers = excluded.workers
  returning id"""
LEAVE = "update {s}.supervisors set state = $1, workers = '[]' where id = $2"
FORGET = f"""delete from {{s}}.supervisors where id = $1
  and not exists (select 1 from {{s}}.jobs where state = {IN_FLIGHT} and owner = supervisors.id)"""

UNSEEN_AT_FIRST = 3600.0
MIN_UNSEEN = 5.0
"""Seconds without a sign after which an owner without leases is off the list: while it starts, and afterwards (or three
times the ttl of its leases)."""


class PostgresStore(Transfer):
    """Implements `supervisor.stores.protocol.Store`. Without `listen` nothing is left in the session from one transaction to the
    next, so that it works behind a transaction-mode pooler; nobody wakes this store then."""

    def __init__(self, url: str, *, schema: str = "supervisor", listen: bool = True, create: bool = False) -> None:
        super().__init__(url, schema=schema, listen=listen)
        self._arguments = {"url": url, "schema": schema, "listen": listen}
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
        self._owner_lock: OwnerLock | None = None
        self._listener: Listener | None = None
        self._unseen = UNSEEN_AT_FIRST
        try:
            bring_up(self, create=create)
        except BaseException:
            self.close()
            raise

    def reader(self) -> PostgresStore:
        return PostgresStore(**self._arguments)  # type: ignore[arg-type]

    def close(self) -> None:
        self._close_listener()
        super().close()

    # a supervisor's life

    def join(self, owner: str, host: str, pid: int) -> int | None:
        """The descriptor holds the name by which others on this machine know that the owner lives."""
        if self._owner_lock is None:
            self._owner_lock = OwnerLock(f"{self.url} {self.schema} {owner}")
        self._who = (owner, host, pid)
        with self.transaction():
            self.owner_id = None
            self.owner_id = self._announce("starting", 0, "[]")
        if self._listen and self._listener is None:
            self._listener = Listener(self._address, self.channel, self._server_process)
        return self._owner_lock.fileno()

    def leave(self) -> None:
        """An owner with leases left stays on the list, as one that has left, until they are recovered."""
        if self.owner_id is None:
            self._close_listener()
            return
        with self.transaction():
            if not self.to_pass_by("supervisors", "id", [self.owner_id]):
                self.later(LEAVE, LEFT, self.owner_id)
                self.later(FORGET, self.owner_id)
            self.after_commit(self._left)

    def _left(self) -> None:
        self.owner_id = None
        self._close_listener()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        owner_lock, self._owner_lock = self._owner_lock, None
        if owner_lock is not None:
            owner_lock.close()

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        self.on_owner_gone = on_gone

    def announce(self, presence: Presence) -> None:
        if self.owner_id is None:
            raise StoreError("announce: join first")
        if presence.ttl is not None:
            self._unseen = max(MIN_UNSEEN, 3 * presence.ttl)
        with self.transaction():
            if self.to_pass_by("supervisors", "id", [self.owner_id]):
                return
            self._announce(presence.state, presence.idle, orjson.dumps(list(presence.workers)).decode())

    def _announce(self, state: str, idle: int, workers: str) -> int:
        assert self._who is not None
        place = None if self._owner_lock is None else self._owner_lock.place
        table = f"{self.quoted}.supervisors"
        unseen = microseconds(self._unseen)
        return int(self.value(ANNOUNCE, self.owner_id, *self._who, place, state, unseen, idle, workers, table))

    # wake-ups

    def notify(self) -> None:
        """A supervisor may call it from any thread."""
        if self._listener is not None:
            self._listener.notify_others()
        elif self.owner_id is None:
            self.run("select pg_notify($1, '')", self.channel)

    def notification_fd(self) -> int | None:
        return None if self._listener is None else self._listener.fd

    def clear_notifications(self) -> None:
        if self._listener is not None:
            self._listener.clear_notifications()

    def _server_process(self) -> int | None:
        connection = self._connection
        return None if connection is None else connection.pgconn.backend_pid
