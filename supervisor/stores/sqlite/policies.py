"""Policies in SQLite: kept once each in `policies`, and named by the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from supervisor.jobs import Lease, Policy
from supervisor.stores.records import Resolve, overlaid, policy_of, policy_text
from supervisor.stores.sqlite.connection import Database, packed

TEXTS = "coalesce(cast(payload as text), ''), cast(headers as text)"
LEASE = f"""jobs.id, token, handler, queue, {TEXTS}, retries, priority, tier, due_at, created_at, policy, options"""
LIGHT_LEASE = LEASE.replace(TEXTS, "'', null")
MAX_RESOLVED = 10_000
BY_ID = "json_each(?) as it cross join jobs on jobs.id = it.value"


class Policies(Database):
    _resolve: Resolve | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._policies: dict[int, Policy] = {}
        self._resolved: dict[tuple[str, str], int] = {}  # by (queue, handler), as the last `resolve` had it
        super().__init__(*arguments, **options)

    def forget(self) -> None:
        super().forget()
        self._policies.clear()
        self._resolved.clear()

    def by_policy(self, rows: Iterable[list[Any]], resolve: Resolve) -> dict[int, list[int]]:
        """The ids of rows of LEASE by the policy that they are claimed under, which is put into each."""
        if resolve != self._resolve:  # the settings were read again
            self._resolve = resolve
            self._resolved.clear()
        ids: dict[int, list[int]] = {}
        for (queue, handler), run in groupby(rows, itemgetter(3, 2)):
            policy = self._resolved.get((queue, handler)) or self._resolve_for(queue, handler, resolve)
            its = ids.setdefault(policy, [])
            for row in run:
                row[11] = policy
                its.append(row[0])
        return ids

    def _resolve_for(self, queue: str, handler: str, resolve: Resolve) -> int:
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.clear()
        policy = self._resolved[queue, handler] = self._interned(resolve(handler, queue))
        return policy

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
