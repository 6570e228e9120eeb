"""The limits of groups, the same in every store: each group of a queue has a limit of its own.

There may be a million groups, so no claim looks at all of them. Jobs of a group that has reached its limit are held back in a line of
their own, which is open or closed, and a claim looks at open lines only. A line is opened when a job is held back in it, and when a
lease of its group has ended. A claim that finds no room in the limit closes the line, until a lease ends, or until the time at which
the rate allows the next claim.

Whoever closes a line, or forgets a lease that has ended, has taken the lock of the limit before, so that no end of a lease is missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from supervisor.jobs import Tier
from supervisor.stores.job_limits import (
    MAX_TIMES,
    RATE,
    RUNNING,
    Limit,
    Line,
    Use,
    group_of,
    left,
    limit_of_line,
    name_of_groups,
    why_full,
)

LOOKED_AT = 20
"""The open lines of a queue and a tier at which one claim looks."""
READ_AT_ONCE = 100
"""The limits that one claim reads: a server has room for some thousands of locks."""
FORGOTTEN_AT_ONCE = 100


class GroupRows(Protocol):
    """The rows of a store that limits of groups need. All calls are made in a transaction."""

    def uses(self, limits: Mapping[str, Limit]) -> dict[str, Use]: ...

    def count(self, line: Line, most: int) -> int: ...

    def lock_all(self, names: Collection[str]) -> set[str]:
        """Keep others from claiming jobs under these limits until the end of the transaction. Return those that no other session
        has locked."""

    def begin_groups(self, queue: str, limit: Limit) -> None:
        """Count the jobs of groups in the queue that are in flight."""

    def open_all(self, queue: str) -> None:
        """Open all lines of the queue."""

    def ended_groups(self, limit: int) -> list[str]:
        """Return the names of limits of groups for which leases are counted that have ended."""

    def open_ended(self, names: Collection[str]) -> None:
        """Count the leases of these groups no longer that have ended, and open their lines."""

    def open_lines(self, queue: str, tier: int, limit: int) -> list[Line]:
        """Return lines of groups that are open, the first of those that have been open for longest."""

    def close(self, line: Line, until: int | None) -> None:
        """Close the line until then, or until it is opened; with 0 it stays open. Remove it if it has no jobs. Do nothing if another session
        is opening it."""

    def closed(self, queue: str) -> tuple[bool, int | None, int | None]:
        """Return whether a line of the queue waits for the end of a lease, and the times until which the first and the last of the other
        ones are closed."""

    def queues_of_groups(self) -> list[str]:
        """Return the queues in which jobs of groups are held back."""

    def lines_of_groups(self, queue: str, limit: int) -> list[Line]:
        """Return lines of groups in the queue, open or closed."""


class GroupLimits:
    """The limits of groups within one transaction, and what they allow. `begun` has the queues whose jobs in flight this process has
    counted."""

    def __init__(self, rows: GroupRows, limits: Mapping[str, Limit], now: int, begun: set[str]) -> None:
        self._rows, self._limits, self._now, self._begun = rows, limits, now, begun
        self.uses: dict[str, Use] = {}
        self.left: dict[str, int] = {}
        self.busy: set[str] = set()
        """The limits that another session has locked."""
        self.more = False
        """Whether more lines may be open than were looked at."""

    def read(self, names: Iterable[str]) -> None:
        """Lock these limits, and read what they allow, as long as they are not too many."""
        new = [name for name in dict.fromkeys(names) if name not in self.left and name not in self.busy]
        new = new[: READ_AT_ONCE - len(self.left)]
        ready = [name for name in new if self._begin(group_of(name)[0])]
        locked = self._rows.lock_all(ready) if ready else set()
        self.busy.update(set(new) - locked)
        if locked:
            limits = {name: self._limits[group_of(name)[0]] for name in locked}
            uses = self._rows.uses(limits)
            for name, limit in limits.items():
                self.uses[name] = use = uses.get(name, Use())
                self.left[name], _ = left(use, limit, self._now)

    def look(self, queues: Sequence[str]) -> dict[Line, int]:
        """Open the lines of groups whose leases have ended, and close those that have no room. Return the others, and how many of their
        jobs may be claimed."""
        for queue in queues:
            self._begin(queue)
        if ended := self._rows.ended_groups(FORGOTTEN_AT_ONCE):
            self._rows.open_ended(self._rows.lock_all(ended))
        found_lines = [self._rows.open_lines(queue, tier, LOOKED_AT) for queue in queues for tier in Tier]
        lines = [line for each in zip_longest(*found_lines) for line in each if line is not None]
        self.more = len(lines) > READ_AT_ONCE or any(len(its) >= LOOKED_AT for its in found_lines)
        names = {line: limit_of_line(line) for line in lines}
        self.read(names.values())
        found: dict[Line, int] = {}
        for line, name in names.items():
            if name not in self.left:
                continue
            if n := self._rows.count(line, self.left[name]):
                found[line] = n
            else:
                self._close(line, name)
        return found

    def reached(self, queue: str) -> tuple[str, int] | None:
        """Return why groups of the queue have to wait, and the microseconds until one may go on; 0 if that is not known."""
        waits_for_an_end, until, last = self._rows.closed(queue)
        longest = self._limits[queue].per + self._limits[queue].per // MAX_TIMES
        if last is not None and last > self._now + longest:  # the clock was set back
            self._rows.open_all(queue)
            return RATE, 1
        wait = 0 if until is None else max(1, until - self._now)
        if not waits_for_an_end and not wait:
            return None
        return RUNNING if waits_for_an_end else RATE, wait

    def close_full(self, line: Line) -> bool:
        """Close this line if its limit has no room. Return whether it was so."""
        name = limit_of_line(line)
        is_full = self.left.get(name) == 0
        if is_full:
            self._close(line, name)
        return is_full

    def _close(self, line: Line, name: str) -> None:
        if self.left[name]:
            self._rows.close(line, 0)
            return
        _, wait = why_full(self.uses[name], self._limits[line[1]], self._now)
        self._rows.close(line, self._now + wait if wait else None)

    def _begin(self, queue: str) -> bool:
        """Count the jobs in flight once: they may have been claimed when there was no limit. Open all lines, which may be closed for another
        limit. Return False if another session does."""
        name = name_of_groups(queue)
        if name not in self._begun and self._rows.lock_all([name]):
            self._rows.begin_groups(queue, self._limits[queue])
            self._rows.open_all(queue)
            self._begun.add(name)
        return name in self._begun
