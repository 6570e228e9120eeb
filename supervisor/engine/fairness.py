"""Whose turn it is: urgent, then retries as long as they have credit, then fresh. Pure; exact arithmetic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from supervisor.jobs import Lease, Tier
from supervisor.stores.records import ClaimRequest, Waiting


class TokenBucket:
    """The retries' credit in one queue, in units of 1/denominator of a job.

    It starts at `burst`, each retry dispatched while fresh jobs wait spends one, and each job dispatched adds `ratio` up to
    `burst`. So of any n jobs in a row at most burst + ratio × n are retries while fresh jobs wait.
    """

    __slots__ = ("_cap", "_gain", "_unit", "_units")

    def __init__(self, ratio: Fraction, burst: int) -> None:
        self._gain, self._unit = ratio.numerator, ratio.denominator
        self._cap = self._units = burst * self._unit

    @property
    def suffices(self) -> bool:
        return self._units >= self._unit

    def dispatched(self, count: int = 1) -> None:
        if self._units < self._cap:
            self._units = min(self._cap, self._units + count * self._gain)

    def spend(self) -> None:
        self._units -= self._unit

    def refund(self) -> None:
        self._units = min(self._cap, self._units + self._unit)

    def copy(self) -> TokenBucket:
        twin = TokenBucket.__new__(TokenBucket)
        twin._gain, twin._unit, twin._cap, twin._units = self._gain, self._unit, self._cap, self._units
        return twin

    def allowance(self, count: int) -> int:
        """How many of the next `count` jobs may be retries while fresh jobs wait."""
        return min(count, (self._units + count * self._gain) // self._unit)


class QueueBuffer:
    """The claimed, not yet dispatched jobs of one queue, in the order they go."""

    __slots__ = ("_again", "_paid", "fresh", "fresh_in_store", "retries", "tokens", "urgent", "urgent_from")

    def __init__(self, tokens: TokenBucket, urgent_from: int) -> None:
        self.tokens = tokens
        self.urgent_from = urgent_from
        self.urgent: deque[Lease] = deque()
        self.retries: deque[Lease] = deque()
        self.fresh: deque[Lease] = deque()
        self.fresh_in_store = 0
        self._again: set[int] = set()  # ids of those that were given before: they have earned their credit
        self._paid: set[int] = set()  # ids of the retries given that have spent some, and may yet be put back

    def __len__(self) -> int:
        return len(self.urgent) + len(self.retries) + len(self.fresh)

    def add(self, leases: Iterable[Lease]) -> None:
        """Behind what is there, each in its tier; the leases come in order."""
        fresh, urgent_from = self.fresh.append, self.urgent_from
        for lease in leases:
            if lease[8] == 0 and lease[7] < urgent_from:
                fresh(lease)
            else:
                self._tier_of(lease).append(lease)

    def requeue(self, leases: Sequence[Lease]) -> None:
        """In front: they were given and have not been started. The leases come in order."""
        self._again.update([lease.id for lease in leases])
        for lease in reversed(leases):
            self._tier_of(lease).appendleft(lease)
            if lease.id in self._paid:
                self._paid.remove(lease.id)
                self.tokens.refund()

    def _tier_of(self, lease: Lease) -> deque[Lease]:
        if lease.tier == Tier.RETRY:
            return self.retries
        return self.urgent if lease.priority >= self.urgent_from else self.fresh

    def in_turn(self, retries_allowed: bool = True) -> Iterator[Lease]:
        """The jobs in the order they go; one is gone from here once it is given. `retries_allowed` is False while retries
        have their share of the workers."""
        tokens, urgent, retries, fresh, again = self.tokens, self.urgent, self.retries, self.fresh, self._again
        paid = self._paid
        while True:
            if urgent:
                lease = urgent.popleft()
            elif retries and retries_allowed and not (fresh or self.fresh_in_store > 0):
                lease = retries.popleft()
                paid.discard(lease[0])
            elif retries and retries_allowed and tokens.suffices:
                lease = retries.popleft()
                tokens.spend()
                paid.add(lease[0])
            elif fresh:
                lease = fresh.popleft()
            else:
                return
            if again and lease[0] in again:
                again.remove(lease[0])
            else:
                tokens.dispatched()
            yield lease

    def forget_all_but(self, sent: set[int]) -> None:
        """Only jobs with these ids may still be put back."""
        self._paid &= sent

    def take_out(self, ids: set[int]) -> list[Lease]:
        """Remove the leases with these ids, wherever they wait; gives them."""
        taken: list[Lease] = []
        self._again -= ids
        for tier in (self.urgent, self.retries, self.fresh):
            if any(lease.id in ids for lease in tier):
                kept = [lease for lease in tier if lease.id not in ids]
                taken += [lease for lease in tier if lease.id in ids]
                tier.clear()
                tier.extend(kept)
        return taken

    def everything(self) -> list[Lease]:
        return [*self.urgent, *self.retries, *self.fresh]


def share_out(capacity: int, waiting: Mapping[str, int], turn: int) -> dict[str, int]:
    """Divide `capacity` among queues so that each gets an equal share or all it has; who gets the odd job rotates by `turn`."""
    shares: dict[str, int] = {}
    names = sorted(waiting)
    names = names[turn % len(names) :] + names[: turn % len(names)] if names else names
    open_names = [name for name in names if waiting[name] > 0]
    while open_names and capacity > 0:
        each, odd = divmod(capacity, len(open_names))
        for place, name in enumerate(open_names):
            share = min(waiting[name] - shares.get(name, 0), each or (1 if place < odd else 0))
            shares[name] = shares.get(name, 0) + share
            capacity -= share
        open_names = [name for name in open_names if shares[name] < waiting[name]]
    return {name: share for name, share in shares.items() if share > 0}


def plan_takes(
    capacity: int,
    waiting: Mapping[str, Waiting],
    turn: int,
    allowance: Callable[[str, int], int],
    max_retries_claimed: Callable[[str, bool], int | None],
    urgent_from: Callable[[str], int],
) -> list[ClaimRequest]:
    """What to claim from each queue when `capacity` jobs can be held.

    `allowance(queue, count)` is the retries' credit over the next `count` jobs; `retries_most(queue, fresh_waits)` limits
    the retries in all, None for no limit.
    """
    takes = []
    limits = {queue: max_retries_claimed(queue, ready.fresh > 0) for queue, ready in waiting.items()}
    claimable = {queue: ready.fresh + _at_most(ready.retries, limits[queue]) for queue, ready in waiting.items()}
    for queue, limit in share_out(capacity, claimable, turn).items():
        first = allowance(queue, limit) if waiting[queue].fresh else limit
        most = _at_most(min(limit, waiting[queue].retries), limits[queue])
        takes.append(ClaimRequest(queue, limit, min(first, most), most, urgent_from(queue)))
    return takes


def _at_most(number: int, limit: int | None) -> int:
    return number if limit is None else max(0, min(number, limit))
