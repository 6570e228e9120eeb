"""The limits of queues, handlers and groups: how many of their jobs may be in flight at once, and be claimed within a time. No I/O.

A rate is exact: within any time of `per` no more than `claims` jobs are claimed. A claim counts for `per` from its time on. The
times of many claims are rounded up to a hundredth of `per`, so that few numbers have to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import orjson

from supervisor.stores.records import ClaimRequest, Waiting

MAX_TIMES = 100
"""The times of claims that are kept for one limit."""

HANDLER, GROUP = "handler ", "group "
RUNNING, RATE = "running", "rate"
"""The reasons why a limit allows no claim."""


class Limit(NamedTuple):
    """At most `running` jobs in flight, and at most `claims` claims within `per` microseconds; None is no limit."""

    running: int | None = None
    claims: int | None = None
    per: int = 0


class JobLimits(NamedTuple):
    """The limits by queue, and by handler; and by queue that of each of its groups."""

    queues: Mapping[str, Limit]
    handlers: Mapping[str, Limit]
    groups: Mapping[str, Limit] = MappingProxyType({})

    @property
    def named(self) -> dict[str, Limit]:
        """The limits of queues and handlers by name. Groups are not known beforehand."""
        of_queues = {name_of_queue(queue): limit for queue, limit in self.queues.items()}
        return of_queues | {name_of_handler(handler): limit for handler, limit in self.handlers.items()}

    def may_apply(self, queue: str) -> bool:
        """Return whether jobs of the queue may be under a limit. A handler may have jobs in any queue."""
        return bool(self.handlers) or queue in self.queues or queue in self.groups

    def counts(self, queue: str, handler: str) -> bool:
        """Return whether a job counts for a limit as long as it is in flight."""
        limits = (self.queues.get(queue), self.handlers.get(handler), self.groups.get(queue))
        return any(limit is not None and limit.running is not None for limit in limits)

    def names_of(self, queue: str, handler: str, group: str | None) -> list[str]:
        """Return the names of the limits that a job is under."""
        names = [name_of_queue(queue)] if queue in self.queues else []
        if handler in self.handlers:
            names.append(name_of_handler(handler))
        if group is not None and queue in self.groups:
            names.append(name_of_group(queue, group))
        return names


def name_of_queue(queue: str) -> str:
    return f"queue {queue}"


def name_of_handler(handler: str) -> str:
    return f"{HANDLER}{handler}"


def name_of_group(queue: str, group: str) -> str:
    return GROUP + orjson.dumps([queue, group]).decode()


def group_of(name: str) -> tuple[str, str]:
    """Return the queue and the group that a limit of this name has."""
    queue, group = orjson.loads(name.removeprefix(GROUP))
    return queue, group


def name_of_groups(queue: str) -> str:
    """Return the name under which it is reported that groups of the queue have reached their limit."""
    return f"groups of {queue}"


Times = list[tuple[int, int]]
"""The claims that count for a rate: when, and how many, the oldest first."""


class Use(NamedTuple):
    """The use of a limit: the number of jobs in flight, and the claims that count for its rate."""

    live: int = 0
    times: Times = []  # noqa: RUF012


def times_of(text: str | None) -> Times:
    """Return the claims that a store keeps as JSON; none if another program has put something else in their place."""
    try:
        return [(int(at), int(n)) for at, n in orjson.loads(text or "[]")]
    except (ValueError, TypeError):
        return []


def counting(times: Iterable[tuple[int, int]], limit: Limit, now: int) -> Times:
    """Return the claims that still count. One in the future is from before the clock was set back: it is taken as one of now, or is left
    out if the clock was set back by more than `per`, since it would count for too long."""
    latest = now + limit.per // MAX_TIMES
    return [(min(at, latest), n) for at, n in times if now - limit.per < at <= latest + limit.per]


def left(use: Use, limit: Limit, now: int) -> tuple[int, str]:
    """Return how many jobs may be claimed now, and which part of the limit allows no more."""
    most = [(limit.running - use.live, RUNNING)] if limit.running is not None else []
    if limit.claims is not None:
        most.append((limit.claims - sum(n for _, n in counting(use.times, limit, now)), RATE))
    number, reason = min(most)
    return max(0, number), reason


def next_claim(use: Use, limit: Limit, now: int) -> int:
    """Return the microseconds until the rate allows another claim."""
    times = counting(use.times, limit, now)
    needed = sum(n for _, n in times) - (limit.claims or 0) + 1
    for at, n in times:
        needed -= n
        if needed <= 0:
            return at + limit.per - now
    return 0


def why_full(use: Use, limit: Limit, now: int) -> tuple[str, int]:
    """Return which part of a limit allows no more, and the microseconds until it does; 0 if that is not known."""
    _, reason = left(use, limit, now)
    return reason, next_claim(use, limit, now) if reason == RATE else 0


def claimed(use: Use, limit: Limit, now: int, n: int) -> Times:
    """Return the claims that count after another `n`."""
    times = counting(use.times, limit, now)
    step = max(1, limit.per // MAX_TIMES) if (limit.claims or 0) > MAX_TIMES else 1
    at = -(-now // step) * step
    if times and times[-1][0] >= at:
        return [*times[:-1], (times[-1][0], times[-1][1] + n)]
    return [*times, (at, n)]


Line = tuple[str, str, int]
"""The jobs that are held back in one line: "handler NAME" or "group NAME", the queue, and the tier."""


def limit_of_line(line: Line) -> str:
    """Return the name of the limit for which the jobs of this line are held back."""
    name, queue, _ = line
    return name_of_group(queue, name.removeprefix(GROUP)) if name.startswith(GROUP) else name


LONG_WAIT = 10_000_000
"""Microseconds: the end of a longer wait is shown."""


class Allowance:
    """The jobs that limits allow to be claimed, as seen before a claim. `free` is the number of jobs that may be claimed by the name of each limit,
    `reached` why it is 0, and `lines` the number of jobs that were held back and may be claimed now; with `more` there may be further
    lines. `next_claim` is the seconds until a rate allows a claim."""

    def __init__(self, limits: JobLimits, uses: Mapping[str, Use], now: int) -> None:
        self.limits = limits
        self.free: dict[str, int] = {}
        self.reached: dict[str, str] = {}
        self.lines: dict[Line, int] = {}
        self._waits: dict[str, int] = {}
        self._now = now
        self.more = False
        for name, limit in limits.named.items():
            self.note(name, uses.get(name, Use()), limit, now)

    def note(self, name: str, use: Use, limit: Limit, now: int) -> None:
        self._now = now
        self.free[name], _ = left(use, limit, now)
        self.reached.pop(name, None)
        self._waits.pop(name, None)
        if not self.free[name]:
            self.reached[name], wait = why_full(use, limit, now)
            if wait:
                self._waits[name] = wait

    @property
    def next_claim(self) -> float | None:
        return min(self._waits.values()) / 1e6 if self._waits else None

    @property
    def reached_until(self) -> Mapping[str, int]:
        """By the name of a limit: when its rate allows another claim, in microseconds since the epoch, if that takes a while."""
        return {name: self._now + wait for name, wait in self._waits.items() if wait >= LONG_WAIT}

    def note_groups(self, queue: str, reason: str, wait: int) -> None:
        """Note that groups of the queue have reached their limit, and when the first of them may go on if that is known."""
        name = name_of_groups(queue)
        self.reached[name] = RUNNING if self.reached.get(name) == RUNNING else reason
        if wait:
            self._waits[name] = min(wait, self._waits.get(name, wait))

    def lines_of(self, queue: str, tier: int) -> list[Line]:
        return [line for line in self.lines if line[1:] == (queue, tier)]

    def claimable(self, waiting: Mapping[str, Waiting]) -> dict[str, Waiting]:
        """Return the ready jobs by queue, without those that the limits of their queues hold back, and with those that were held back
        and may be claimed now."""
        found = dict(waiting)
        for (_, queue, tier), n in self.lines.items():
            fresh, retries = found.get(queue, (0, 0))
            found[queue] = Waiting(fresh, retries + n) if tier else Waiting(fresh + n, retries)
        for queue in self.limits.queues.keys() & found.keys():
            most = self.free[name_of_queue(queue)]
            found[queue] = Waiting(*(min(n, most) for n in found[queue]))
        return {queue: it for queue, it in found.items() if any(it)}

    def startable(self, waiting: Mapping[str, Waiting], room: int) -> Mapping[str, Waiting]:
        """Return the claimable jobs without those of limited queues beyond `room`, so that others have their share of the claim."""
        if not self.limits.queues.keys() & waiting.keys():
            return waiting
        found = {
            queue: Waiting(*(min(n, room) for n in it)) if queue in self.limits.queues else it
            for queue, it in waiting.items()
        }
        return {queue: it for queue, it in found.items() if any(it)}

    def asked(self, takes: Iterable[ClaimRequest], room: int) -> list[ClaimRequest]:
        """Return the requests of a supervisor that can start `room` jobs at once: of a queue that has a limit it claims no more, so
        that it keeps no other supervisor from running them."""
        limited = []
        for take in takes:
            if take.queue in self.limits.queues:
                take = take._replace(limit=min(take.limit, room, self.free[name_of_queue(take.queue)]))
            if take.limit > 0:
                limited.append(take)
        return limited
