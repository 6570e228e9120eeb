"""Wait until jobs have ended: look at all that are awaited, in pages, with a growing pause between the looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from supervisor.errors import JobFailed, JobNotFound, StoreBroken, StoreUnavailable
from supervisor.jobs import JobState
from supervisor.retry import GrowingDelay
from supervisor.text.strict_json import MAX_INTEGER
from supervisor.text.units import format_duration, parse_duration

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

FIRST_PAUSE, MAX_PAUSE = 0.01, 0.25
PAUSE_PER_LOOK, MAX_LOOK_PAUSE = 4, 2.0
"""After a long look at very many jobs the pause is so many times as long, up to these seconds, so that the store has time for others."""
PAGE_IDS = 1000
"""The ids of one query."""
READ_AT_ONCE = 200
MAX_NAMED = 10
"""The jobs that the message of a TimeoutError names."""

Answer = TypeVar("Answer")
Page = list[tuple[int, dict[str, Any] | None]]
"""Ids of jobs that have ended, each with the job as `Queries.get`, or None if there is none."""

_ENDED = frozenset(state.value for state in JobState if state.terminal)


class Ended(NamedTuple):
    """A job that has ended; `job` is None if there is none, and `existed` whether there was one at an earlier look."""

    id: int
    job: dict[str, Any] | None
    existed: bool

    @property
    def outcome(self) -> Any:
        """The result, or JobFailed or JobNotFound."""
        if self.job is None:
            return JobNotFound(self.id, self.existed)
        if self.job["state"] == JobState.SUCCEEDED:
            return self.job["result"]
        return JobFailed(self.id, self.job["handler"], self.job["state"], self.job["errors"])


class Ask(Protocol):
    """A function that calls another one with the store. Raises StoreUnavailable at once."""

    def __call__(self, question: Callable[[Store], Answer], /) -> Answer: ...


class Wait:
    """The jobs that one caller waits for, at most `timeout` seconds from `now`. All times are monotonic seconds.

    `store_timeout` is for how many seconds the store may be unavailable meanwhile.
    """

    def __init__(self, ids: Iterable[Any], timeout: float | str | None, store_timeout: float, now: float) -> None:
        self.ids = dict.fromkeys(map(_checked_id, ids))
        self.timeout = _checked_timeout(timeout)
        self.deadline = inf if self.timeout is None else now + self.timeout
        self._looked = False  # once the store has answered for all jobs, one that is missing later has existed
        self._count, self._store_timeout = len(self.ids), store_timeout
        self._pauses = GrowingDelay(FIRST_PAUSE, MAX_PAUSE)
        self._problem: StoreUnavailable | None = None
        self._unavailable_since = now

    def take(self, page: Page) -> list[Ended]:
        """Return the jobs of the page that are still awaited, and wait for these no longer."""
        taken = [Ended(id, job, self._looked) for id, job in page if id in self.ids]
        for ended in taken:
            del self.ids[ended.id]
        return taken

    def has_looked(self) -> None:
        """Note that the store has answered for all jobs."""
        self._looked, self._problem = True, None

    def note_unavailable(self, problem: StoreUnavailable, now: float) -> None:
        """Note that the store was unavailable. Raise its error if it is broken, or has been unavailable for too long."""
        if self._problem is None:
            self._unavailable_since = now
        self._problem = problem
        if isinstance(problem, StoreBroken) or now - self._unavailable_since >= self._store_timeout:
            raise problem

    def next_look(self, now: float, took: float) -> float:
        """Return when to look again, after a look that ended now and took the store so long. Raise TimeoutError if the time is up."""
        if now >= self.deadline:
            raise self.time_is_up() from self._problem
        return min(self.deadline, now + max(self._pauses.next(), min(PAUSE_PER_LOOK * took, MAX_LOOK_PAUSE)))

    def seconds_left(self, now: float, overtime: float) -> float | None:
        """Return the seconds until `overtime` after the time is up; None without a timeout."""
        return None if self.timeout is None else max(0.0, self.deadline + overtime - now)

    def time_is_up(self) -> TimeoutError:
        named = [str(id) for id, _ in zip(self.ids, range(MAX_NAMED), strict=False)]
        more = f" and {len(self.ids) - MAX_NAMED:,} more" if len(self.ids) > MAX_NAMED else ""
        which = f"job {named[0]} has" if self._count == 1 else f"{len(self.ids):,} of {self._count:,} jobs have"
        text = f"{which} not ended within {format_duration(self.timeout or 0.0)}"
        if self._count > 1:
            text += f": {', '.join(named)}{more}"
        if self._problem is not None:
            text += f"; the store is unavailable: {self._problem}"
        elif not self._looked:
            text += "; the store has not answered"
        return TimeoutError(text)


class Look:
    """One look for jobs. `took` are the seconds that the store took to answer, without waits for other threads."""

    def __init__(self, ask: Ask, ids: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._ids, self._clock = ask, list(ids), clock
        self.took = 0.0

    def pages(self) -> Iterator[Page]:
        """Yield those that have ended, if any, after each query."""
        for start in range(0, len(self._ids), PAGE_IDS):
            yield from self._page(self._ids[start : start + PAGE_IDS])

    def _page(self, ids: list[int]) -> Iterator[Page]:
        ended = self._timed(lambda store: store.ended(ids))
        yield []
        while ended:
            part = ended[:READ_AT_ONCE]
            count, jobs = self._timed(partial(_read, part))
            found = {job["id"]: job for job in jobs}
            yield [(id, found.get(id)) for id in part[:count] if id not in found or found[id]["state"] in _ENDED]
            ended = ended[count:]

    def _timed(self, question: Callable[[Store], Answer]) -> Answer:
        def timed(store: Store) -> Answer:
            began = self._clock()
            try:
                return question(store)
            finally:
                self.took += self._clock() - began

        return self._ask(timed)


def _read(ids: list[int], store: Store) -> tuple[int, list[dict[str, Any]]]:
    return store.get_many(ids)


def ended_jobs(
    ask: Ask,
    wait: Wait,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Ended]:
    """Yield each job of the wait once it has ended, and one in place of each that does not exist.

    A job that is to be retried has not ended; one that an operator runs again is waited for unless its end was seen before.
    Raises TimeoutError, and StoreError.
    """
    while wait.ids:
        look = Look(ask, wait.ids, clock)
        try:
            for page in look.pages():
                yield from wait.take(page)
            wait.has_looked()
        except StoreUnavailable as problem:
            wait.note_unavailable(problem, clock())
        if wait.ids:
            now = clock()
            sleep(max(0.0, wait.next_look(now, look.took) - now))


def value_of(outcome: Any) -> Any:
    """Return the outcome if it is a value; otherwise raise it."""
    if isinstance(outcome, JobFailed | JobNotFound):
        raise outcome
    return outcome


def _checked_id(id: Any) -> int:
    if isinstance(id, bool) or not isinstance(id, int):
        raise TypeError(f"id: expected the number of a job, got {id!r:.80}")
    if not 1 <= id <= MAX_INTEGER:
        raise ValueError(f"id: expected the number of a job, got {id!r:.80}")
    return id


def _checked_timeout(timeout: float | str | None) -> float | None:
    try:
        return None if timeout is None else parse_duration(timeout, zero=True)
    except ValueError as error:
        raise ValueError(f"timeout: {error}") from None
