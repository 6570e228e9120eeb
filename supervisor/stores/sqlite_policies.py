"""Policies in SQLite: kept once each in `policies`, named by the rows, and looked up inside the claim itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.jobs import Lease, Policy
from supervisor.stores.base import Resolve
from supervisor.stores.shapes import overlaid, policy_of, policy_text
from supervisor.stores.sqlite_db import Database, packed

LEASE = """jobs.id, token, handler, queue, coalesce(cast(payload as text), ''), cast(headers as text), retries, priority,
  tier, due_at, created_at, policy, options"""
BY_ID = "json_each(?) as it cross join jobs on jobs.id = it.value"

SET_POLICY = """update jobs set policy = (select policy from policy_of where queue = jobs.queue and handler = jobs.handler)
  where id in (select value from json_each(?))"""


class Policies(Database):
    """The temporary table `policy_of` maps (queue, handler) to a policy, as the last `resolve` had it."""

    _resolve: Resolve | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._policies: dict[int, Policy] = {}
        super().__init__(*arguments, **options)

    def forget(self) -> None:
        super().forget()
        self._policies.clear()
        self._resolve = None

    def resolve_by(self, resolve: Resolve) -> None:
        """Forget what another `resolve` said: the settings were read again."""
        if resolve != self._resolve:
            self._resolve = resolve
            self.run("delete from policy_of")

    def leases_from(self, rows: Iterable[list[Any]]) -> list[Lease]:
        """From rows of LEASE, each of which names its policy. Plain, since this is the hot path."""
        leases: list[Lease] = []
        policies, make = self._policies, tuple.__new__
        for row in rows:
            options = row.pop()
            policy = policies.get(row[11]) or self.policy(row[11])
            row[11] = policy if options is None else overlaid(policy, options)
            leases.append(make(Lease, row))
        return leases

    def with_policies(self, rows: list[list[Any]], resolve: Resolve) -> list[list[Any]]:
        """Rows of LEASE just claimed, after those of a (queue, handler) not met before got their policy too."""
        without = [row for row in rows if row[11] is None]
        for queue, handler in {(row[3], row[2]) for row in without}:
            id = self._interned(resolve(handler, queue))
            self.run("insert or replace into policy_of values (?, ?, ?)", queue, handler, id)
            for row in without:
                if row[2] == handler and row[3] == queue:
                    row[11] = id
        if without:
            self.run(SET_POLICY, packed([row[0] for row in without]))
        return rows

    def policy(self, id: int | None) -> Policy:
        """The default for a row that names none (it was put in flight by hand)."""
        if id is None:
            return Policy()
        if id not in self._policies:
            text = self.value("select policy from policies where id = ?", id)
            self._policies[id] = Policy() if text is None else policy_of(text)
        return self._policies[id]

    def _interned(self, policy: Policy) -> int:
        text = policy_text(policy)
        self.run("insert into policies(policy) values (?) on conflict do nothing", text)
        id = int(self.value("select id from policies where policy = ?", text))
        self._policies[id] = policy
        return id


def ids_of(leases: Sequence[Lease]) -> str:
    return packed([(lease.id, lease.token) for lease in leases])
