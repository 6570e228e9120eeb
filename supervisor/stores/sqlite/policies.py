"""The policies of claimed jobs in SQLite, each of them once."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from supervisor.jobs import LEASE_HANDLER, LEASE_ID, LEASE_POLICY, LEASE_QUEUE, LEASE_TOKEN, Lease, Policy
from supervisor.stores.records import Resolve, overlaid, policy_of, policy_text
from supervisor.stores.sqlite.connection import Connection

MAX_RESOLVED = 10_000

KEEP_POLICY = "insert into policies(id, policy) values (?, ?) on conflict do nothing"


class Policies:
    """The policies of claimed jobs: a table has each of them once, and the rows have its id. The id comes from the policy itself, and
    each claim writes the policies that are missing: a store that goes back in time loses rows, and must not reuse their ids."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._policies: dict[int, Policy] = {}
        self._ids: dict[Policy, int] = {}
        self._resolved: dict[tuple[str, str], int] = {}  # by (queue, handler), as `_resolve` had them
        self._resolve: Resolve | None = None

    def assign(
        self, rows: Iterable[list[Any]], random_part: int, resolve: Resolve
    ) -> tuple[list[Lease], dict[int, list[int]]]:
        """Return the leases of these rows of CANDIDATES, and the ids of the jobs by that of their policy. Hot path."""
        if resolve != self._resolve:  # the settings were loaded again
            self._resolve = resolve
            self._resolved.clear()
            self._ids.clear()
        ids: dict[int, list[int]] = {}
        leases, make, queue, handler, claims = list[Lease](), tuple.__new__, None, None, None
        for row in rows:
            if row[LEASE_HANDLER] != handler or row[LEASE_QUEUE] != queue:
                queue, handler = row[LEASE_QUEUE], row[LEASE_HANDLER]
                id = self._resolved.get((queue, handler)) or self._resolve_for(queue, handler, resolve)
                policy, its = self._policies[id], ids.setdefault(id, [])
            if row[LEASE_TOKEN] != claims:
                claims, token = row[LEASE_TOKEN], row[LEASE_TOKEN] | random_part
            # The leases share these objects, since it takes longer to compare or to hash others.
            row[LEASE_HANDLER], row[LEASE_QUEUE], row[LEASE_TOKEN] = handler, queue, token
            its.append(row[LEASE_ID])
            row[LEASE_POLICY] = policy if (options := row.pop()) is None else overlaid(policy, options)
            leases.append(make(Lease, row))
        for id in ids:
            self._connection.run(KEEP_POLICY, id, policy_text(self._policies[id]))
        return leases, ids

    def leases_from(self, rows: Iterable[list[Any]]) -> list[Lease]:
        """Make leases from rows with the columns of Lease, where `policy` is an id, followed by the options. The code is simple,
        since this is a hot path."""
        leases: list[Lease] = []
        policies, make = self._policies, tuple.__new__
        for row in rows:
            options = row.pop()
            policy = policies.get(row[LEASE_POLICY]) or self.get(row[LEASE_POLICY])
            row[LEASE_POLICY] = policy if options is None else overlaid(policy, options)
            leases.append(make(Lease, row))
        return leases

    def get(self, id: int | None) -> Policy:
        """Return the policy with this id, or the default if a row has none (it was set in flight by plain SQL)."""
        if id is None:
            return Policy()
        if id not in self._policies:
            text = self._connection.value("select policy from policies where id = ?", id)
            if text is None:
                return Policy()
            self._policies[id] = policy_of(text)
        return self._policies[id]

    def id_of(self, text: str) -> int:
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1
        self._connection.run(KEEP_POLICY, digest, text)
        # A store of version 1 has numbered its policies.
        return int(self._connection.value("select id from policies where policy = ?", text))

    def _resolve_for(self, queue: str, handler: str, resolve: Resolve) -> int:
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.clear()
            self._ids.clear()
        policy = resolve(handler, queue)
        id = self._ids.get(policy)  # thousands of queues share few policies
        if id is None:
            id = self._ids[policy] = self.id_of(policy_text(policy))
            self._policies[id] = policy
        self._resolved[queue, handler] = id
        return id
