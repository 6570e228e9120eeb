"""Leases of other owners that have expired, and owners that are gone."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from supervisor.stores.codes import IN_FLIGHT, LEFT, PENDING
from supervisor.stores.records import ExpiredLease
from supervisor.stores.sqlite.connection import Connection, Select
from supervisor.stores.sqlite.owner_lock import OwnerLock
from supervisor.stores.sqlite.ownership import Ownership
from supervisor.stores.sqlite.policies import Policies

# The query steps from owner to owner in the index, so its cost depends on the number of owners, not of leases.
OWNERS_WITH_LEASES = Select(
    "found.id, supervisors.owner, supervisors.state",
    f"""from (
      with recursive steps(id) as (
        select min(owner) from jobs where state = {IN_FLIGHT}
        union all
        select (select min(owner) from jobs where state = {IN_FLIGHT} and owner > steps.id) from steps where id is not null)
      select id from steps where id is not null) as found
    left join supervisors on supervisors.id = found.id""",
)
OWNERS_WITHOUT_LEASES = Select(
    "id, owner, state, seen_at",
    f"""from supervisors where id is not ?
      and not exists (select 1 from jobs where state = {IN_FLIGHT} and owner = supervisors.id)""",
)
OWNERS = "select json_group_array(owner) from supervisors"
EXPIRED = Select(
    """lease_until, started_at, id, token, handler, queue, '', null, retries, priority, tier, due_at, created_at, policy,
      expired_count, options""",
    f"""from (
      select * from jobs
      where state = {IN_FLIGHT} and owner = ? and lease_until <= ? and (lease_until, id) > (?, ?)
      order by lease_until, id limit ?)""",
)
OFFER_DEAD_LETTERS = f"update dead_letters set due_at = ? where state = {PENDING} and owner = ?"

_LEASE = slice(2, None)
"""The columns of EXPIRED from which a lease is made."""
_EVER = 2**62
_FORGOTTEN_AFTER = 86_400_000_000
"""Microseconds after which an owner without leases that was not seen is removed."""


class Recovery:
    def __init__(self, connection: Connection, policies: Policies, owner: Ownership, lock: OwnerLock) -> None:
        self._connection, self._policies, self._owner, self._lock = connection, policies, owner, lock
        self._on_gone: Callable[[str], None] = lambda owner: None

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone

    def expired_leases(self, limit: int, after: ExpiredLease | None = None) -> list[ExpiredLease]:
        """Return the expired leases, and remove the owners that are gone and have no lease left."""
        found: list[ExpiredLease] = []
        with_files = self._lock.owners()
        with self._connection.snapshot():
            for id, owner, state in self._connection.rows(OWNERS_WITH_LEASES):
                if id != self._owner.id:
                    gone = owner is not None and (state == LEFT or self._lock.is_gone(owner))
                    found += self._expired_of(id, owner or f"owner {id}", gone, limit, after)
            without = self._connection.rows(OWNERS_WITHOUT_LEASES, self._owner.id)
            long_ago = self._connection.now() - _FORGOTTEN_AFTER
            unlisted = with_files.difference(self._connection.json(OWNERS))
        # These owners died before their row was there, or their recovery was killed after it had removed the row.
        if unlisted:
            with self._connection.transaction():
                self._connection.after_commit(lambda: self._lock.remove_dead(unlisted, self._on_gone))
        for id, owner, state, seen_at in without:
            gone = state == LEFT or self._lock.is_gone(owner)
            if gone or seen_at < long_ago:
                self._forget(id, owner if gone else None)
        return sorted(found, key=attrgetter("place"))[:limit]

    def _expired_of(
        self, id: int, owner: str, gone: bool, limit: int, after: ExpiredLease | None
    ) -> list[ExpiredLease]:
        if after is not None and gone and not after.owner_gone:
            return []
        behind = (after.deadline, after.lease.id) if after is not None and after.owner_gone == gone else (-_EVER, 0)
        expired_at = _EVER if gone else self._connection.now()
        rows = self._connection.rows(EXPIRED, id, expired_at, *behind, limit)
        leases = self._policies.leases_from([row[_LEASE] for row in rows])
        return [
            ExpiredLease(lease, deadline, started_at is not None, owner, gone)
            for lease, (deadline, started_at, *_) in zip(leases, rows, strict=True)
        ]

    def _forget(self, id: int, gone: str | None) -> None:
        """Remove the owner, and make the dead letters that it had claimed due at once. The file of its lock proves that it is
        `gone`, so the file must not be removed before the row."""
        with self._connection.transaction():
            if gone is not None:
                self._connection.after_commit(lambda: self._remove(gone))
            self._connection.run("delete from supervisors where id = ?", id)
            self._connection.run(OFFER_DEAD_LETTERS, self._connection.now(), id)

    def _remove(self, owner: str) -> None:
        """The files are removed last: as long as they are there, a later recovery calls this again."""
        self._on_gone(owner)
        self._lock.remove(owner)
