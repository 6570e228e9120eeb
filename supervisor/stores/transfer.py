"""All that still matters of one store goes into another, and exists in one of them at every moment, whatever dies meanwhile.

Three commits, in this order: the source is shut, so that nobody enqueues there or runs what is there; the target has the jobs,
and a record that it has them; or else, if it surely has not, the source is opened again. A move that was cut short between
these is finished by the same call again, or undone by `undo_move`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

from supervisor.jobs import JobState
from supervisor.stores.codes import FAILED, READY, SCHEDULED, STATES
from supervisor.stores.protocol import StoreAway, StoreError

PAGE = 500
WEIGHT = 8_000_000
"""Jobs, and characters, that are in memory at once (or one job)."""
MOVED_STATES = (READY, SCHEDULED, FAILED)


class MovedLetter(NamedTuple):
    """`accepted` is a JSON list of sinks."""

    state: int
    due_at: int
    tries: int
    accepted: str


class MovedJob(NamedTuple):
    """A job with all that a store keeps of it, coded as in rows: see `codes` and `shapes`. The texts are as stored.
    `attempts` are (at, record), oldest first."""

    id: int
    age: int
    token: int
    handler: str
    queue: str
    payload: str
    headers: str | None
    priority: int
    state: int
    tier: int
    retries: int
    lapses: int
    due_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    policy: str | None
    options: str | None
    result: str | None
    attempts: Sequence[tuple[int, str]] = ()
    letter: MovedLetter | None = None


class Ticket(NamedTuple):
    """Of one move: its own id, where to, as people call it and as `place` does, and whether the jobs are known to have arrived."""

    id: str
    target: str
    place: str
    arrived: bool = False


@runtime_checkable
class Movable(Protocol):
    """A store from and to which jobs can be moved."""

    url: str

    def place(self) -> str:
        """The same for the same store, however it is reached."""

    def ticket(self) -> Ticket | None:
        """The move that this store is shut for."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def shut(self, ticket: Ticket) -> None:
        """From here on nobody enqueues, claims or joins: they are told where to. Raises StoreError while a supervisor lives
        here or a job is in flight, or if it is shut already."""

    def note_arrival(self, ticket: Ticket) -> None: ...

    def reopen(self, ticket: Ticket) -> None:
        """What `shut` did is undone, if it has not been yet. Raises StoreError if it is shut for another move."""

    def weigh(self, after: int, limit: int) -> list[tuple[int, int]]:
        """(id, length of its texts) of the next jobs to move, by id."""

    def pack(self, ids: Sequence[int]) -> list[MovedJob]: ...

    def last_id(self) -> int:
        """Of all that were ever given."""

    def counted(self) -> Mapping[JobState, int]:
        """Jobs by state."""

    def paused(self) -> frozenset[str]: ...

    def receive(
        self, ticket: Ticket, batches: Iterable[Sequence[MovedJob]], last_id: int, paused: frozenset[str]
    ) -> None:
        """All in one transaction, under the ids they have. Raises StoreError unless this store is empty and not shut."""

    def has_received(self, ticket: Ticket) -> bool:
        """Never no while it is still being received, nor can that begin before the open transaction has ended."""

    def ring(self) -> None: ...

    def close(self) -> None: ...


class Moved(NamedTuple):
    """`before`: an earlier call had done it. `left` are those that were not to be moved."""

    jobs: Mapping[JobState, int]
    paused: int
    left: Mapping[JobState, int]
    before: bool = False


def move(source: Movable, target: Movable) -> Moved:
    place = target.place()
    if source.place() == place:
        raise StoreError(f"{source.url} and {target.url} are the same store")
    ticket = source.ticket()
    if ticket is None:
        ticket = Ticket(secrets.token_hex(16), target.url, place)
        source.shut(ticket)
    elif target.has_received(ticket):
        source.note_arrival(ticket)
        return _moved(source, before=True)
    else:
        _expect_on_their_way(source, target, ticket)
    try:
        target.receive(ticket, _batches(source, ticket), source.last_id(), source.paused())
    except BaseException as error:
        if not _has_received_after_all(source, target, ticket, error):
            raise
    for act in (target.ring, lambda: source.note_arrival(ticket)):
        with suppress(StoreError):
            act()
    return _moved(source, before=False)


def _expect_on_their_way(source: Movable, target: Movable, ticket: Ticket) -> None:
    """To this target, which has not got them: whether another has can't be told by looking here."""
    if ticket.place != target.place():
        raise StoreError(
            f"{source.url}: its jobs were moved, or are being moved, to {ticket.target}, and {target.url} is another store than that was"
        )
    if ticket.arrived:
        raise StoreError(f"{source.url}: its jobs had arrived in {ticket.target}, which knows nothing of them any more")


def _has_received_after_all(source: Movable, target: Movable, ticket: Ticket, error: BaseException) -> bool:
    """The answer to its commit may have been lost. If it has not, the source is as it was before."""
    try:
        return not _reopened(source, target, ticket)
    except StoreAway:
        raise StoreAway(
            f"{error}; whether the jobs are there can't be told, so {source.url} stays shut: the same command again finishes it, "
            "with --reopen it undoes it"
        ) from error


def undo_move(source: Movable, target: Movable, ticket: Ticket) -> None:
    """Undo a move that was cut short. Raises StoreError, and the source stays shut, unless the target surely has not the jobs."""
    if not target.has_received(ticket):
        _expect_on_their_way(source, target, ticket)
        if _reopened(source, target, ticket):
            return
    raise StoreError(f"{source.url}: its jobs are in {target.url}")


def _reopened(source: Movable, target: Movable, ticket: Ticket) -> bool:
    """Whether the target has not received, so that the source is open again. Nobody can begin to receive in between: whoever
    does so afterwards finds the source open, and fails."""
    done = False
    try:
        with target.transaction():
            if target.has_received(ticket):
                return False
            source.reopen(ticket)
            done = True
    except StoreAway:
        if not done:
            raise
    return True


def _batches(source: Movable, ticket: Ticket) -> Iterator[list[MovedJob]]:
    after = 0
    while page := source.weigh(after, PAGE):
        for ids in _by_weight(page):
            yield source.pack(ids)
        after = page[-1][0]
    if (shut_for := source.ticket()) is None or shut_for.id != ticket.id:
        raise StoreError(f"{source.url}: somebody else has opened it again meanwhile; nothing was moved")


def _by_weight(page: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    ids: list[int] = []
    weight = 0
    for id, its in page:
        if ids and weight + its > WEIGHT:
            yield ids
            ids, weight = [], 0
        ids.append(id)
        weight += its
    yield ids


def to_move(source: Movable) -> Mapping[JobState, int]:
    """How many jobs of each state that is to be moved there are."""
    counts = source.counted()
    return {STATES[state]: counts.get(STATES[state], 0) for state in MOVED_STATES}


def _moved(source: Movable, before: bool) -> Moved:
    counts, moved = source.counted(), to_move(source)
    left = {state: n for state, n in counts.items() if state not in moved and n}
    return Moved(moved, len(source.paused()), left, before)


# What both stores say and ask alike.


def told_to_go_to(target: str) -> str:
    """What whoever comes to a shut store is told."""
    return f"its jobs were moved to {target}: set store to that"


def refuse_in_use(url: str, alive: Sequence[Mapping[str, object]], in_flight: int) -> None:
    if alive:
        who = ", ".join(f"{it['host']} pid {it['pid']}" for it in alive)
        raise StoreError(f"{url}: in use by a supervisor ({who}); stop it first")
    if in_flight:
        raise StoreError(
            f"{url}: {in_flight} jobs are in flight, of a supervisor that was lost; `supervisor run --drain` on this store "
            "recovers them, or start a supervisor there and stop it once they are done"
        )


def refuse_shut_for_another(url: str, ticket: Ticket) -> StoreError:
    return StoreError(f"{url}: somebody else is moving its jobs to {ticket.target} meanwhile")


def refuse_as_target(url: str, shut_for: Ticket | None, has_jobs: bool) -> None:
    """Jobs that came to a shut store would be shut in there, even none: both would send everybody to the other."""
    if shut_for is not None:
        raise StoreError(
            f"{url}: it is shut, for its own jobs were moved to {shut_for.target}; expected an empty store"
        )
    if has_jobs:
        raise StoreError(f"{url}: has jobs already; expected an empty store, since jobs keep their ids")


def moved_job(row: Sequence[Any], attempts: Sequence[tuple[int, str]]) -> MovedJob:
    """From the columns of MovedJob and then of MovedLetter."""
    *job, state, due_at, tries, accepted = row
    letter = None if state is None else MovedLetter(state, due_at, tries, accepted)
    return MovedJob._make([*job, attempts, letter])


def counts_of(jobs: Iterable[MovedJob]) -> Counter[tuple[int, str, int]]:
    return Counter((job.state, job.queue, job.tier) for job in jobs)
