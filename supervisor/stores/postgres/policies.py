"""The policies of jobs in PostgreSQL: each row keeps its own as a text, from its claim on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from supervisor.jobs import LEASE_EXPIRED_COUNT, LEASE_POLICY, Lease, Policy
from supervisor.stores.postgres.connection import packed
from supervisor.stores.records import Resolve, overlaid, policy_of, policy_text

LEASE = """id, token, handler, queue, coalesce(payload, ''), headers, retries, priority, tier, due_at, created_at, policy,
  expired_count, options"""
"""The columns from which a lease is made."""
OPTIONS = LEASE_EXPIRED_COUNT + 1

MAX_HANDLERS = 500
"""The maximum of policies of one queue that are sent with each claim."""
MAX_GUESSED = 4
"""The maximum of handlers that are expected in a new queue: those of the queue before it."""
MAX_QUEUES = 1_000


class Policies:
    """A cache of the policies that `resolve` has returned, by queue and handler."""

    def __init__(self) -> None:
        self._resolve: Resolve | None = None
        self._texts: dict[str, dict[str, str]] = {}
        self._packed: dict[str, str] = {}
        self._last: tuple[str, ...] = ()

    def known(self, queue: str, resolve: Resolve) -> str:
        """Return the known policies of the queue, by handler, as JSON. Of thousands of queues most have the same few handlers."""
        if resolve != self._resolve:  # the settings were loaded again
            self._resolve = resolve
            self._texts.clear()
            self._packed.clear()
        if queue not in self._packed:
            self.learn(queue, self._last, resolve)
        return self._packed[queue]

    def known_of(self, queues: Iterable[str], resolve: Resolve) -> str:
        """Return the known policies of these queues, by queue and handler, as JSON."""
        return f"{{{','.join([f'{packed(queue)}:{self.known(queue, resolve)}' for queue in queues])}}}"

    def learn(self, queue: str, handlers: Iterable[str], resolve: Resolve) -> None:
        """Add the policies of these handlers in this queue. Forget the others of the queue if there are too many."""
        if len(self._texts) >= MAX_QUEUES:
            self._texts.clear()
            self._packed.clear()
        texts = self._texts.get(queue, {})
        self._last = (*handlers,)[:MAX_GUESSED]
        wanted = {handler: texts.get(handler) or policy_text(resolve(handler, queue)) for handler in handlers}
        self._texts[queue] = wanted if len(texts) + len(wanted) > MAX_HANDLERS else texts | wanted
        self._packed[queue] = packed(self._texts[queue])


def leases_from(rows: Iterable[Sequence[Any]]) -> list[Lease]:
    """Make leases from rows that begin with the columns of LEASE. The code is simple, since this is a hot path."""
    make = tuple.__new__
    return [
        make(
            Lease,
            (*row[:LEASE_POLICY], stored_policy(row[LEASE_POLICY], row[OPTIONS]), row[LEASE_EXPIRED_COUNT]),
        )
        for row in rows
    ]


@lru_cache(4096)
def stored_policy(text: str | None, options: str | None) -> Policy:
    """Return the policy of a row, or the default if it has none (it was set in flight by plain SQL)."""
    policy = Policy() if text is None else policy_of(text)
    return policy if options is None else overlaid(policy, options)
