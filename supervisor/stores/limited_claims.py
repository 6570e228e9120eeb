"""Claims under limits, the same in every store. Jobs of a handler or a group that has reached its limit are held back: they are blocked,
and stand in a line of their own, so that no claim has to pass over them again. When the limit allows it, the first of that line are
claimed as if they were ready. Jobs of a queue that has reached its limit just stay ready. See `group_limits` for groups.

What a limit allows is read before a claim without a lock, and once more, exactly, before the first job under it is claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from supervisor.jobs import LEASE_HANDLER, LEASE_ID, LEASE_QUEUE, Lease, Tier
from supervisor.stores.group_limits import GroupLimits, GroupRows
from supervisor.stores.job_limits import (
    GROUP,
    HANDLER,
    Allowance,
    JobLimits,
    Limit,
    Line,
    Times,
    Use,
    claimed,
    group_of,
    left,
    limit_of_line,
    name_of_group,
    name_of_handler,
    name_of_queue,
    why_full,
)
from supervisor.stores.records import ClaimRequest, Resolve

MAX_LINES = 100
"""The lines of handlers that one claim looks at."""
BEFORE_ALL: Line = (HANDLER, "", -1)
"""In front of the lines of all handlers."""
HELD_AT_ONCE = 1000
"""The ready jobs among which a claim looks for others to hold back, so that it takes little longer."""


class Candidate(NamedTuple):
    id: int
    handler: str
    priority: int
    age: int
    group: str | None = None
    line: Line | None = None
    """In which it is held back."""

    @property
    def place(self) -> tuple[int, int, int]:
        return -self.priority, self.age, self.id


class LimitedClaim(NamedTuple):
    """The leases; how many jobs were held back instead, by queue and tier; with `more` other jobs may be claimable that were not
    reached, and with `busy` another session was claiming jobs under the same limit."""

    leases: list[Lease]
    held: Counter[tuple[str, int]]
    more: bool = False
    busy: bool = False


class LimitRows(GroupRows, Protocol):
    """The rows of a store that limits need. All calls are made in a transaction. Limits have the names of `job_limits.JobLimits.named`."""

    def now(self) -> int: ...

    def uses(self, limits: Mapping[str, Limit]) -> dict[str, Use]:
        """Return what these limits, which may be those of groups, have been used for."""

    def lock(self, name: str, limit: Limit) -> bool:
        """Keep others from claiming jobs under this limit until the end of the transaction. Return False if another session does."""

    def begin(self, name: str, limit: Limit) -> None:
        """Count the jobs under this limit that are in flight: they may have been claimed when it was not set."""

    def note(self, name: str, limit: Limit, leases: Sequence[Lease], times: Times | None) -> None:
        """Count these leases, and keep the times of claims."""

    def lines(self, behind: Line, limit: int) -> list[Line]:
        """Return the first lines of handlers behind this one."""

    def count(self, line: Line, most: int) -> int:
        """Return the number of jobs of the line, or `most`."""

    def first(self, line: Line, limit: int) -> list[Candidate]:
        """Return the first jobs of the line, by priority, then age. Those that have been changed meanwhile are removed from it."""

    def ready(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        """Return the first ready jobs, and keep others from claiming them."""

    def hold(self, queue: str, tier: int, handlers: Collection[str], groups: Collection[str], among: int) -> int:
        """Hold back the jobs of these handlers and groups that are among the first so many ready jobs. Open the lines of groups. Return how
        many."""

    def resume(self, line: Line, ids: Sequence[int]) -> None:
        """Make jobs of this line ready."""

    def claim(self, queue: str, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        """Claim these ready jobs, in this order."""

    def paused(self) -> frozenset[str]: ...


class LimitedClaims:
    """The calls of the protocol. A store calls `forget` after a rollback."""

    def __init__(self, rows: LimitRows, transaction: Callable[[], AbstractContextManager[None]]) -> None:
        self._rows, self._transaction = rows, transaction
        self._limits: JobLimits | None = None
        self._begun: set[str] = set()
        self._behind = BEFORE_ALL

    def forget(self) -> None:
        self._begun.clear()

    def allowance(self, limits: JobLimits, served: frozenset[str] | None) -> Allowance:
        """Return what these limits allow, in the served queues. They are in force until a call with others."""
        with self._transaction():
            if limits != self._limits:
                self._limits = limits
                self._begun.clear()
            return self._allowance(limits, served)

    def _allowance(self, limits: JobLimits, served: frozenset[str] | None) -> Allowance:
        found = Allowance(limits, self._rows.uses(limits.named), self._rows.now())
        lines = self._lines() if limits.handlers else []
        paused = self._rows.paused() if lines else frozenset()
        for line in lines:
            name, queue, _ = line
            free = found.free.get(name, 0)
            if free and queue not in paused and (served is None or queue in served):
                found.lines[line] = self._rows.count(line, free)
        if limits.groups:
            self._look_at_groups(found, served)
        return found

    def _look_at_groups(self, found: Allowance, served: frozenset[str] | None) -> None:
        paused = self._rows.paused()
        queues = sorted(
            it
            for it in found.limits.groups
            if it not in paused and (served is None or it in served) and found.free.get(name_of_queue(it), 1)
        )
        groups = GroupLimits(self._rows, found.limits.groups, self._rows.now(), self._begun)
        found.lines.update(groups.look(queues))
        found.more = groups.more
        for queue in queues:
            if reached := groups.reached(queue):
                found.note_groups(queue, *reached)

    def _lines(self) -> list[Line]:
        """Return the lines. If there are too many, others come first the next time."""
        found = self._rows.lines(self._behind, MAX_LINES)
        if len(found) < MAX_LINES and self._behind != BEFORE_ALL:
            found += [it for it in self._rows.lines(BEFORE_ALL, MAX_LINES - len(found)) if it <= self._behind]
        self._behind = found[-1] if len(found) == MAX_LINES else BEFORE_ALL
        return found

    def claim_limited(
        self, takes: Sequence[ClaimRequest], ttl: float, resolve: Resolve, allowance: Allowance, room: int
    ) -> LimitedClaim:
        """Claim as `claim` does, as far as the limits allow it, and at most `room` jobs under limits."""
        with self._transaction():
            round = _Round(self._rows, allowance, self._begun, room)
            leases = [lease for take in takes for lease in round.claim(take, ttl, resolve)]
            round.note(leases)
        more = round.more or (allowance.more and bool(leases))
        return LimitedClaim(leases, round.held, more, bool(round.busy))

    def release_held(self, limits: JobLimits | None, served: frozenset[str] | None, limit: int) -> frozenset[str]:
        """Make up to `limit` jobs ready that were held back in served queues for what is not among these `limits`. Return their queues."""
        limited: Collection[str] = () if limits is None else {name_of_handler(handler) for handler in limits.handlers}
        grouped: Collection[str] = () if limits is None else limits.groups.keys()
        queues, behind = set[str](), BEFORE_ALL
        with self._transaction():
            while limit > 0 and (lines := self._rows.lines(behind, MAX_LINES)):
                behind = lines[-1]
                for line in lines:
                    name, queue, _ = line
                    if (
                        name not in limited
                        and (served is None or queue in served)
                        and (n := self._release(line, limit))
                    ):
                        queues.add(queue)
                        limit -= n
            for queue in self._rows.queues_of_groups():
                if queue not in grouped and (served is None or queue in served):
                    lines = self._rows.lines_of_groups(queue, MAX_LINES)
                    locked = self._rows.lock_all([limit_of_line(line) for line in lines])
                    for line in (it for it in lines if limit_of_line(it) in locked):
                        if limit <= 0:
                            break
                        n = self._release(line, limit)
                        limit -= n
                        self._rows.close(line, 0)
                        if n or not self._rows.count(line, 1):
                            queues.add(queue)
        return frozenset(queues)

    def _release(self, line: Line, limit: int) -> int:
        ids = [it.id for it in self._rows.first(line, limit)]
        self._rows.resume(line, ids)
        return len(ids)


class _Round:
    """One claim: what the limits allow is counted down while jobs are picked."""

    def __init__(self, rows: LimitRows, allowance: Allowance, begun: set[str], room: int) -> None:
        self.held: Counter[tuple[str, int]] = Counter()
        self.more = False
        self._rows, self._allowance, self._begun, self._room = rows, allowance, begun, room
        self._limits, self._named, self._now = allowance.limits, allowance.limits.named, rows.now()
        self._to_hold = HELD_AT_ONCE
        self.busy: set[str] = set()
        """The limits that another session has locked."""
        self._not_full: set[str] = set()
        """The limits of groups that allow no more only since they are not read, or no more jobs can be started."""
        self._left: dict[str, int] = {}
        self._uses: dict[str, Use] = {}
        self._groups = GroupLimits(rows, self._limits.groups, self._now, begun)
        self._group_of: dict[int, str | None] = {}
        self._lines: dict[str, list[Line]] = {}
        """The lines from which jobs were claimed, by the names of their limits."""

    def claim(self, take: ClaimRequest, ttl: float, resolve: Resolve) -> list[Lease]:
        fresh = self._candidates(take.queue, Tier.FRESH, take.limit)
        urgent = len([it for it in fresh if it.priority >= take.urgent])
        most = take.retries_wanted(len(fresh))
        retries = self._candidates(take.queue, Tier.RETRY, most) if most else []
        picked = [it for it in take.pick(fresh, urgent, retries) if self._take(take.queue, it)]
        for line in {it.line for it in picked if it.line is not None}:
            self._rows.resume(line, [it.id for it in picked if it.line == line])
            self._lines.setdefault(limit_of_line(line), []).append(line)
        return self._rows.claim(take.queue, [it.id for it in picked], ttl, resolve) if picked else []

    def note(self, leases: Sequence[Lease]) -> None:
        """Count the jobs that were claimed under limits."""
        by_name: dict[str, list[Lease]] = {}
        for lease in leases:
            group = self._group_of.get(lease[LEASE_ID])
            for name in self._limits.names_of(lease[LEASE_QUEUE], lease[LEASE_HANDLER], group):
                by_name.setdefault(name, []).append(lease)
        now = self._rows.now() if by_name else self._now  # not before the claim
        for name, its in by_name.items():
            limit, use = self._limit(name), self._uses[name]
            times = None if limit.claims is None else claimed(use, limit, now, len(its))
            self._rows.note(name, limit, its, times)
            after = Use(use.live + len(its), use.times if times is None else times)
            if not name.startswith(GROUP):
                self._allowance.note(name, after, limit, now)
            elif not left(after, limit, now)[0]:
                reason, wait = why_full(after, limit, now)
                self._allowance.note_groups(group_of(name)[0], reason, wait)
                for line in self._lines.get(name, ()):
                    self._rows.close(line, now + wait if wait else None)

    def _limit(self, name: str) -> Limit:
        return self._limits.groups[group_of(name)[0]] if name.startswith(GROUP) else self._named[name]

    def _allowed(self, name: str) -> int:
        """Return how many more jobs this limit allows. Only what it allows after it is locked is exact."""
        if name not in self._left and name.startswith(GROUP):
            self._left[name] = self._allowed_group(name)
        if name not in self._left:
            limit = self._named[name]
            self._left[name] = 0
            if not self._allowance.free[name] or not self._room:
                return 0
            if not self._rows.lock(name, limit):
                self.busy.add(name)
                return 0
            if name not in self._begun:
                self._rows.begin(name, limit)
                self._begun.add(name)
            self._uses[name] = use = self._rows.uses({name: limit}).get(name, Use())
            self._left[name], _ = left(use, limit, self._now)
            self._allowance.note(name, use, limit, self._now)
        return self._left[name]

    def _allowed_group(self, name: str) -> int:
        self._groups.read([name])
        if name in self._groups.busy:
            self.busy.add(name)
        if name in self._groups.uses:
            self._uses[name] = self._groups.uses[name]
        free = self._groups.left.get(name)
        if free == 0:
            return 0
        if free is None and name not in self.busy and self._room:
            self.more = True  # too many groups for one claim
        if free is None or not self._room:
            self._not_full.add(name)
            return 0
        return free

    def _lacks_room(self, name: str) -> bool:
        """Return whether the limit of a handler that allows no more jobs in this round would allow some if more could be started."""
        return name.startswith(HANDLER) and name not in self._uses and self._allowance.free[name] > 0

    def _take(self, queue: str, job: Candidate) -> bool:
        """Count a job down from its limits, unless one of them allows no more."""
        names = self._limits.names_of(queue, job.handler, job.group)
        if not all(self._allowed(name) for name in names) or (names and not self._room):
            return False
        for name in names:
            self._left[name] -= 1
        self._room -= bool(names)
        return True

    def _candidates(self, queue: str, tier: int, limit: int) -> list[Candidate]:
        """Return the first claimable jobs of a tier, ready ones and those that were held back. Hold back the ready jobs that are in
        front of them and whose handlers or groups have reached their limits."""
        ready: list[Candidate] = []
        while True:
            found = self._rows.ready(queue, tier, limit)
            closed = self._closed_for(queue, found)
            ready = [it for it in found if closed.isdisjoint(self._holding(queue, it))]
            to_hold = closed - self.busy - self._not_full
            if len(ready) == len(found) or not to_hold:
                break
            held = 0
            if self._to_hold > 0:
                handlers = [name.removeprefix(HANDLER) for name in to_hold if name.startswith(HANDLER)]
                groups = [group_of(name)[1] for name in to_hold if name.startswith(GROUP)]
                held = self._rows.hold(queue, tier, handlers, groups, max(limit, HELD_AT_ONCE))
                self._close_full([(GROUP + group, queue, tier) for group in groups])
            self.held[queue, tier] += held
            self._to_hold -= held
            # Jobs that were held back only for lack of room wait for a worker: the next claim sees them in their lines.
            if not held or any(self._lacks_room(name) for name in to_hold):
                self.more = True
            if not held:
                break
        lines = self._allowance.lines_of(queue, tier)
        self._groups.read(limit_of_line(line) for line in lines if line[0].startswith(GROUP))
        for line in lines:
            ready += self._first_of(line, limit)
        self._group_of.update((it.id, it.group) for it in ready)
        return sorted(ready, key=lambda it: it.place)[:limit]

    def _close_full(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if self._groups.close_full(line):
                name = limit_of_line(line)
                self._allowance.note_groups(line[1], *why_full(self._uses[name], self._limit(name), self._now))

    def _first_of(self, line: Line, limit: int) -> list[Candidate]:
        """Return the first jobs of a line that may be claimed. Those that have to wait for another limit leave it, and are held back in the
        line of that one by the next claim."""
        if not (most := self._allowed(limit_of_line(line))):
            return []
        queue = line[1]
        found = self._rows.first(line, min(limit, most))
        closed = self._closed_for(queue, found)
        full = closed - self.busy - self._not_full
        leaving = [it.id for it in found if not full.isdisjoint(self._holding(queue, it))]
        if leaving and self._room:
            self._rows.resume(line, leaving)
        if not found and self._rows.count(line, 1):
            self.busy.add(limit_of_line(line))  # another session has locked these jobs
        elif not found or (leaving and self._room):
            self.more = True
        return [it for it in found if closed.isdisjoint(self._holding(queue, it))]

    def _closed_for(self, queue: str, jobs: Sequence[Candidate]) -> set[str]:
        """Return the limits of the handlers and groups of these jobs that allow no more."""
        names = dict.fromkeys(name for it in jobs for name in self._holding(queue, it))
        self._groups.read(name for name in names if name.startswith(GROUP))
        return {name for name in names if not self._allowed(name)}

    def _holding(self, queue: str, job: Candidate) -> list[str]:
        """Return the names of the limits for which the job can be held back."""
        names = [name_of_handler(job.handler)] if job.handler in self._limits.handlers else []
        if job.group is not None and queue in self._limits.groups:
            names.append(name_of_group(queue, job.group))
        return names
