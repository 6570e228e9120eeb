"""Snoozes past their limits, which are failed attempts. The store has counted the snoozes of each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.jobs import Kind, Outcome
from supervisor.retry import limited_snooze
from supervisor.stores.protocol import Store


def past_limit(store: Store, snoozed: Sequence[Outcome]) -> Mapping[int, Outcome]:
    """Return the failed attempts, by job, in place of those snoozes that are past their limits."""
    before, now = store.snoozes([outcome.lease for outcome in snoozed]), store.clock()
    bounded = {it.lease.id: limited_snooze(it, before.get(it.lease.id, 0), now) for it in snoozed}
    return {id: outcome for id, outcome in bounded.items() if outcome.kind is Kind.FAILED}
