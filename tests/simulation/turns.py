"""A check of the order of dispatch from outside: which jobs are sent while others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from supervisor.jobs import Lease, Tier
from supervisor.retry import SUSPECT
from tests.simulation.promises import holds

if TYPE_CHECKING:
    from tests.simulation.owner import Owner


class Turns:
    """Of the jobs of one queue in one supervisor, retries take no more than their share while fresh ones wait, and the first of
    the retries is passed over no longer than it takes to earn a token."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, str], Fraction] = {}
        self._passed: Counter[tuple[int, int]] = Counter()
        self._paid: set[tuple[int, int]] = set()
        self._again: set[tuple[int, int]] = set()  # reclaimed: they were dispatched once, and are dispatched again

    def dispatched(self, owner: Owner, leases: Sequence[Lease]) -> None:
        for lease in leases:
            group = owner.engine.config.group_of.get(lease.queue, "")
            buffer = owner.engine.buffers.groups[group].by_queue.get(lease.queue)
            if buffer is not None:
                self._dispatched(owner, lease, buffer)

    def reclaimed(self, owner: Owner, leases: Sequence[Lease]) -> None:
        """Refund the tokens that were spent for reclaimed jobs."""
        self._again.update((lease.id, lease.token) for lease in leases)
        for lease in leases:
            key = owner.number, lease.queue
            if (lease.id, lease.token) in self._paid and key in self._tokens:
                self._paid.remove((lease.id, lease.token))
                burst = Fraction(owner.settings.retry_for(lease.queue).burst)
                self._tokens[key] = min(burst, self._tokens[key] + 1)

    def _dispatched(self, owner: Owner, lease: Lease, buffer: Any) -> None:
        retry = owner.settings.retry_for(lease.queue)
        tokens = self._tokens.get((owner.number, lease.queue), Fraction(retry.burst))
        if lease.tier == Tier.RETRY:
            self._passed.pop((lease.id, lease.token), None)
            self._paid.discard((lease.id, lease.token))
            if buffer.fresh or buffer.fresh_in_store > 0:
                self._paid.add((lease.id, lease.token))
                tokens -= 1
                holds(tokens >= 0, "retries took more than their share:", owner, lease)
        elif (lease.id, lease.token) in self._again:
            self._again.remove((lease.id, lease.token))
        elif lease.expired_count >= SUSPECT:
            pass  # suspects start one by one, and the buffer takes them as jobs that come back to their place
        elif buffer.retries and lease.priority < retry.urgent and not self._limited(owner, lease.queue):
            first = buffer.retries[0]
            self._passed[first.id, first.token] += 1
            most = ceil(1 / retry.fetch_ratio) + 1
            holds(self._passed[first.id, first.token] <= most, "a retry was passed over again and again:", owner, first)
        self._tokens[owner.number, lease.queue] = min(Fraction(retry.burst), tokens + retry.fetch_ratio)

    def _limited(self, owner: Owner, queue: str) -> bool:
        """By `retry.max_in_flight`."""
        return any(worker.retries[queue] for worker in owner.pool.workers.values())
