"""The shares of retries and of queues. Exact arithmetic, and no jobs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from supervisor.config.retries import RetrySettings


class TokenBucket:
    """The tokens of the retries of one queue, in units of 1/denominator of a token.

    There are `burst` at first and at most. Each retry dispatched while fresh jobs wait spends one, and each job dispatched
    adds `ratio`. So of any n jobs in a row at most burst + ratio × n are retries while fresh jobs wait.
    """

    __slots__ = ("_cap", "_gain", "_unit", "_units")

    def __init__(self, ratio: Fraction, burst: int) -> None:
        self._gain, self._unit = ratio.numerator, ratio.denominator
        self._cap = self._units = burst * self._unit

    def reconfigure(self, ratio: Fraction, burst: int) -> None:
        """Keep the tokens under other settings; a full bucket stays full."""
        was_full, tokens = self.full, Fraction(self._units, self._unit)
        self._gain, self._unit = ratio.numerator, ratio.denominator
        self._cap = burst * self._unit
        self._units = self._cap if was_full else min(self._cap, int(tokens * self._unit))

    @property
    def full(self) -> bool:
        return self._units == self._cap

    @property
    def suffices(self) -> bool:
        return self._units >= self._unit

    def dispatched(self) -> None:
        if self._units < self._cap:
            self._units = min(self._cap, self._units + self._gain)

    def spend(self) -> None:
        self._units -= self._unit

    def refund(self) -> None:
        self._units = min(self._cap, self._units + self._unit)

    def copy(self) -> TokenBucket:
        twin = TokenBucket.__new__(TokenBucket)
        twin._gain, twin._unit, twin._cap, twin._units = self._gain, self._unit, self._cap, self._units
        return twin

    def allowance(self, count: int) -> int:
        """Return how many of the next `count` jobs may be retries while fresh jobs wait."""
        return min(count, (self._units + count * self._gain) // self._unit)


def retries_limit(retry: RetrySettings, workers: int) -> int | None:
    """Return how many workers may hold retries of a queue at once while its fresh jobs wait, by `retry.max_in_flight`; None for
    all of them."""
    if retry.max_in_flight == "half":
        return -(-workers // 2)
    return None if retry.max_in_flight is None else int(retry.max_in_flight)


def share_out(capacity: int, waiting: Mapping[str, int], turn: int | None) -> dict[str, int]:
    """Divide `capacity` among queues: each gets an equal share, or all it has. `turn` decides which queues get the odd jobs; if it
    is None, the first of `waiting` do."""
    shares: dict[str, int] = {}
    names = list(waiting)
    if turn is not None and names:
        names.sort()
        names = names[turn % len(names) :] + names[: turn % len(names)]
    open_names = [name for name in names if waiting[name] > 0]
    while open_names and capacity > 0:
        each, odd = divmod(capacity, len(open_names))
        for place, name in enumerate(open_names):
            share = min(waiting[name] - shares.get(name, 0), each or (1 if place < odd else 0))
            shares[name] = shares.get(name, 0) + share
            capacity -= share
        open_names = [name for name in open_names if shares[name] < waiting[name]]
    return {name: share for name, share in shares.items() if share > 0}
