"""The PostgreSQL store: supervisors and clients on any number of machines share one queue, in a schema of its own."""

from __future__ import annotations

import orjson

from supervisor.stores.codes import IN_FLIGHT, LEFT
from supervisor.stores.postgres.claim import NOW
from supervisor.stores.postgres.notifier import Listener
from supervisor.stores.postgres.owner_lock import Lifeline
from supervisor.stores.postgres.schema import bring_up
from supervisor.stores.postgres.transfer import Moving
from supervisor.stores.protocol import Capabilities, Presence, StoreError
from supervisor.stores.records import microseconds

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
UNSEEN_LEAST = 5.0
"""Seconds without a sign after which an owner without leases is off the list: while it starts, and afterwards (or three
times the ttl of its leases)."""


class PostgresStore(Moving):
    """Implements `supervisor.stores.protocol.Store`. Without `listen` nothing is left in the session from one transaction to the
    next, so that it works behind a transaction-mode pooler; nobody wakes this store then."""

    capabilities = Capabilities()

    def __init__(self, url: str, *, schema: str = "supervisor", listen: bool = True, create: bool = False) -> None:
        super().__init__(url, schema=schema, listen=listen)
        self._arguments = {"url": url, "schema": schema, "listen": listen}
        self.on_owner_gone = lambda owner: None
        self._who: tuple[str, str, int] | None = None
        self._lifeline: Lifeline | None = None
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
        self._hang_up()
        super().close()

    # a supervisor's life

    def join(self, owner: str, host: str, pid: int) -> int | None:
        """The descriptor holds the name by which others on this machine know that the owner lives."""
        if self._lifeline is None:
            self._lifeline = Lifeline(f"{self.url} {self.schema} {owner}")
        self._who = (owner, host, pid)
        with self.transaction():
            self.owner_id = None
            self.owner_id = self._announce("starting", 0, "[]")
        if self._listen and self._listener is None:
            self._listener = Listener(self._address, self.channel, self._server_process)
        return self._lifeline.fileno()

    def leave(self) -> None:
        """An owner with leases left stays on the list, as one that has left, until they are recovered."""
        if self.owner_id is None:
            self._hang_up()
            return
        with self.transaction():
            if not self.to_pass_by("supervisors", "id", [self.owner_id]):
                self.later(LEAVE, LEFT, self.owner_id)
                self.later(FORGET, self.owner_id)
            self.after_commit(self._left)

    def _left(self) -> None:
        self.owner_id = None
        self._hang_up()

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            lifeline.close()

    def announce(self, presence: Presence) -> None:
        if self.owner_id is None:
            raise StoreError("announce: join first")
        if presence.ttl is not None:
            self._unseen = max(UNSEEN_LEAST, 3 * presence.ttl)
        with self.transaction():
            if self.to_pass_by("supervisors", "id", [self.owner_id]):
                return
            self._announce(presence.state, presence.idle, orjson.dumps(list(presence.workers)).decode())

    def _announce(self, state: str, idle: int, workers: str) -> int:
        assert self._who is not None
        place = None if self._lifeline is None else self._lifeline.place
        table = f"{self.quoted}.supervisors"
        unseen = microseconds(self._unseen)
        return int(self.value(ANNOUNCE, self.owner_id, *self._who, place, state, unseen, idle, workers, table))

    # wake-ups

    def ring(self) -> None:
        """A supervisor may call it from any thread."""
        if self._listener is not None:
            self._listener.ring_others()
        elif self.owner_id is None:
            self.run("select pg_notify($1, '')", self.channel)

    def bell(self) -> int | None:
        return None if self._listener is None else self._listener.bell

    def hush(self) -> None:
        if self._listener is not None:
            self._listener.hush()

    def _server_process(self) -> int | None:
        link = self._link
        return None if link is None else link.pgconn.backend_pid
