"""The leases that this supervisor holds: extended, and checked against the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from supervisor.engine.job_reports import JobReports
from supervisor.engine.store_writer import CallFailed, NotDone, Purpose, Writer
from supervisor.jobs import LEASE_ID, LEASE_PAYLOAD, LEASE_TOKEN, OUTCOME_LEASE, Lease, Outcome
from supervisor.stores.job_reports import JobReport
from supervisor.workers.interface import Written
from supervisor.workers.pool import Pool

LeaseKey = tuple[int, int]
"""(job id, fencing token)"""


class Leases:
    """Holds each lease from its claim until its outcome is settled. `ttl` is the seconds that a lease holds after a claim or
    an extend; `bytes` is the characters of all their payloads.

    `checked_since_gap` is False from the end of a gap, in which the supervisor stood still, until the leases are extended:
    they may have expired meanwhile.
    """

    def __init__(self, writer: Writer, pool: Pool, ttl: float, reports: JobReports) -> None:
        self.ttl = ttl
        self.reports = reports
        self.bytes = 0
        self.checked_since_gap = True
        self._writer = writer
        self._pool = pool
        self._held: dict[int, Lease] = {}
        self._marked: dict[int, Lease] = {}  # by job: those that ran when marks were last written, which have theirs
        self._extending: asyncio.Future[list[int]] | None = None
        self._reporting: asyncio.Future[None] | asyncio.Future[list[int]] | None = None
        self._checking: asyncio.Future[list[LeaseKey]] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, leases: Sequence[Lease]) -> None:
        new = {lease[LEASE_ID]: lease for lease in leases}
        self.bytes += _bytes(leases)
        if not self._held.keys().isdisjoint(new):
            self.bytes -= _bytes(self.of_same_jobs(leases))
        self._held.update(new)

    def drop(self, leases: Iterable[Lease]) -> None:
        """Hold these leases no longer; skip those that are not held. Hot path."""
        take, size = self._held.pop, 0
        for lease in leases:
            ours = take(lease[LEASE_ID], None)
            if ours is lease or (ours is not None and ours[LEASE_TOKEN] == lease[LEASE_TOKEN]):
                size += len(ours[LEASE_PAYLOAD])
            elif ours is not None:
                self._held[ours[LEASE_ID]] = ours
        self.bytes -= size

    def holds(self, lease: Lease) -> bool:
        return bool(self.held_of((lease,)))

    def held_of(self, leases: Iterable[Lease]) -> list[Lease]:
        held = self._held
        return [
            lease
            for lease in leases
            if (ours := held.get(lease[LEASE_ID])) is not None and ours[LEASE_TOKEN] == lease[LEASE_TOKEN]
        ]

    def outcomes_of_held(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the outcomes whose leases are held. Hot path."""
        held = self._held
        return [
            outcome
            for outcome in outcomes
            if (ours := held.get((lease := outcome[OUTCOME_LEASE])[LEASE_ID])) is lease
            or (ours is not None and ours[LEASE_TOKEN] == lease[LEASE_TOKEN])
        ]

    def job_wrote(self, lease: Lease, written: Written) -> None:
        self.reports.wrote(lease, written, is_held=self.holds(lease))

    def of_same_jobs(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases that are held for the same jobs, under any token."""
        return [self._held[lease[LEASE_ID]] for lease in leases if lease[LEASE_ID] in self._held]

    def running(self, seconds: float = 0.0) -> list[Lease]:
        """Return the leases of the jobs that have been running for so long."""
        return [lease for _, lease in self._pool.running(seconds)]

    def to_mark(self, seconds: float) -> list[Lease]:
        """Return the leases of the jobs that have been running for so long and have no start mark, which is to be written now."""
        marked, running = self._marked, self.running(seconds)
        self._marked = {lease[LEASE_ID]: lease for lease in running}
        return [lease for lease in running if marked.get(lease[LEASE_ID]) is not lease]

    def marks_lost(self) -> None:
        """Write the start marks again: some may not have been written."""
        self._marked = {}

    async def until_extended(self) -> None:
        """Wait until the extend under way, if any, has been answered."""
        if self._extending is not None and not self._extending.done():
            await self._extending

    async def extend(self) -> list[Lease]:
        """Write new deadlines for all leases, and start marks for what runs. Return the leases that are no longer ours.

        While the store is unavailable the call under way is repeated, and further ones do nothing.
        """
        if self._extending is not None and not self._extending.done():
            return []
        leases, running, ttl = list(self._held.values()), self.running(), self.ttl
        if not leases:
            return []
        self._extending = self._writer.submit(lambda store: store.extend(leases, ttl, running), Purpose.EXTEND)
        stale = set(await self._extending)
        return [lease for lease in leases if lease.id in stale and self.holds(lease)]

    async def extend_reporting(self) -> list[Lease]:
        """Do the same for the leases of jobs that have reported something, with the reports. It never takes the place of `extend`: all
        other leases may need that just now."""
        if self._reporting is not None and not self._reporting.done():
            return []
        leases, reports, ttl = self.reports.leases(), self.reports.changes(), self.ttl
        if not reports:
            return []
        self._reporting = self.write_reports(reports)
        if not leases:
            return []
        self._reporting = extend = self._writer.submit(lambda store: store.extend(leases, ttl, leases), Purpose.EXTEND)
        stale = set(await extend)
        return [lease for lease in leases if lease.id in stale and self.holds(lease)]

    def write_reports(self, reports: Sequence[JobReport]) -> asyncio.Future[None]:
        """Write the reports, in the same commit as what is submitted next to them. If the store refuses them, nothing else is held up."""

        def written(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if isinstance(error, CallFailed):
                self.reports.not_written([report[:2] for report in reports])
            elif error is not None and not isinstance(error, NotDone):
                raise error

        future = self._writer.submit(lambda store: store.keep_reports(reports), Purpose.REPORT)
        future.add_done_callback(written)
        return future

    async def check(self) -> tuple[list[Lease], list[int]]:
        """Return the leases held here that are not ours in the store any more (cancelled, taken over), and the ids of jobs whose
        lease is ours in the store but is not held here, since the answer to their claim was lost."""
        if self._checking is not None and not self._checking.done():
            return [], []
        before = dict(self._held)
        self._checking = self._writer.submit(lambda store: store.held(), Purpose.CHECK)
        ours = dict(await self._checking)
        lost = [lease for id, lease in before.items() if ours.get(id) != lease.token and self.holds(lease)]
        known = self._held.keys() | before.keys()
        return lost, [id for id in ours if id not in known]


def _bytes(leases: Iterable[Lease]) -> int:
    return sum([len(lease[LEASE_PAYLOAD]) for lease in leases])
