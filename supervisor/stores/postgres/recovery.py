"""Leases of other owners that have expired, and owners that are gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from supervisor.errors import StoreError
from supervisor.stores.codes import IN_FLIGHT, LEFT, PENDING
from supervisor.stores.postgres.connection import NOW, Connection, array
from supervisor.stores.postgres.owner_lock import is_gone
from supervisor.stores.postgres.ownership import Ownership
from supervisor.stores.postgres.policies import leases_from
from supervisor.stores.postgres.row_locks import RowLocks
from supervisor.stores.records import ExpiredLease

FORGOTTEN_AFTER = 3_600_000_000
"""Microseconds for which the row of an owner without leases is kept after it is no longer listed: programs that it has left on its
machine can be ended only there, by the next supervisor that runs there."""
MAX_LOOKED_AT = 1_000
"""The maximum of leases that are checked for locks: more at once belong to a lost machine, whose owners hold no locks."""

OWNERS = f"""
  select id, owner, state, owner_lock, {NOW} > unseen_after + {FORGOTTEN_AFTER},
    exists (select 1 from {{s}}.jobs where jobs.state = {IN_FLIGHT} and jobs.owner = supervisors.id)
  from {{s}}.supervisors where id is distinct from $1 order by id"""
EXPIRED = f"""
  select lease_until, started_at, owner, id, token, handler, queue, '', null, retries, priority, tier, due_at, created_at, policy,
    expired_count, options
  from (
    select *, coalesce(owner <> all($2::bigint[]), true) as lives from {{s}}.jobs
    where state = {IN_FLIGHT} and owner is distinct from $1) as jobs
  where (lease_until <= {NOW} or not lives) and (lives, lease_until, id) > ($3::boolean, $4::bigint, $5::bigint)
  order by lives, lease_until, id limit $6"""
FORGET = """
  delete from {s}.supervisors
  where id = any(array(select id from {s}.supervisors where id = $1 for update skip locked))"""
OFFER_DEAD_LETTERS = f"""
  update {{s}}.dead_letters set due_at = {NOW} where job_id = any(array(
    select job_id from {{s}}.dead_letters where state = {PENDING} and owner = $1 for no key update skip locked))"""

_LEASE = slice(3, None)
"""The columns of EXPIRED from which a lease is made."""
_FIRST = (False, -(2**63), -(2**63))


class Recovery:
    def __init__(self, connection: Connection, locks: RowLocks, owner: Ownership) -> None:
        self._connection, self._locks, self._owner = connection, locks, owner
        self._on_gone: Callable[[str], None] = lambda owner: None

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """Return the expired leases, and remove the owners that are gone and have no lease left.

        A lease is left out while another session has locked its row, if its owner may live and wait for the same lock. Once
        the row is free, supervisors watch the lease anew; before they recover it, the owner can extend or settle it."""
        with self._connection.transaction():
            owners = {row[0]: row[1:] for row in self._connection.rows(OWNERS, self._owner.id)}
            gone = {id for id, (_, state, lock, *_) in owners.items() if state == LEFT or is_gone(lock)}
            behind = _FIRST if after is None else after.place
            rows = self._connection.rows(EXPIRED, self._owner.id, array(gone), *behind, limit)
            if len(rows) < min(limit, MAX_LOOKED_AT):
                ids = {id: owner for _, _, owner, id, *_ in rows}
                locked = self._locks.jobs_locked_by_others([id for id, owner in ids.items() if owner not in gone])
                rows = [row for row, id in zip(rows, ids, strict=True) if id not in locked]
            for id, (name, _, _, long_ago, has_leases) in owners.items():
                if not has_leases and id in gone:
                    self._connection.after_commit(partial(self._end, id, name))
                elif not has_leases and long_ago:
                    self._forget(id)
        names = {id: name for id, (name, *_) in owners.items()}
        leases = leases_from(row[_LEASE] for row in rows)
        return [
            ExpiredLease(lease, deadline, started_at is not None, names.get(id, f"owner {id}"), id in gone)
            for lease, (deadline, started_at, id, *_) in zip(leases, rows, strict=True)
        ]

    def _end(self, id: int, gone: str) -> None:
        """Report an owner that is gone, and then remove it in a transaction of its own: if that is not done, or this process is killed
        before, a later recovery does both again."""
        self._on_gone(gone)
        with suppress(StoreError), self._connection.transaction():
            self._forget(id)

    def _forget(self, id: int) -> None:
        """Remove the owner, and make the dead letters that it had claimed due at once; rows that are locked wait for the next
        time."""
        self._connection.later(FORGET, id)
        self._connection.later(OFFER_DEAD_LETTERS, id)
