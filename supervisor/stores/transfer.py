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

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import JobState
from supervisor.stores.codes import FAILED, READY, SCHEDULED, STATES

PAGE = 500
WEIGHT = 8_000_000
"""Jobs, and characters, that are in memory at once (or one job)."""
TRANSFERRED_STATES = (READY, SCHEDULED, FAILED)


class TransferredDeadLetter(NamedTuple):
    """`accepted` is a JSON list of sinks."""

    state: int
    due_at: int
    tries: int
    accepted: str


class TransferredJob(NamedTuple):
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
    expired_count: int
    due_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    policy: str | None
    options: str | None
    result: str | None
    attempts: Sequence[tuple[int, str]] = ()
    dead_letter: TransferredDeadLetter | None = None


class TransferRecord(NamedTuple):
    """Of one move: its own id, where to, as people call it and as `place` does, and whether the jobs are known to have arrived."""

    id: str
    target: str
    place: str
    arrived: bool = False


@runtime_checkable
class Transferable(Protocol):
    """A store from and to which jobs can be moved."""

    url: str

    def place(self) -> str:
        """The same for the same store, however it is reached."""

    def transfer_record(self) -> TransferRecord | None:
        """The move that this store is shut for."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        """From here on nobody enqueues, claims or joins: they are told where to. Raises StoreError while a supervisor lives
        here or a job is in flight, or if it is shut already."""

    def note_arrival(self, transfer_record: TransferRecord) -> None: ...

    def reopen(self, transfer_record: TransferRecord) -> None:
        """What `shut` did is undone, if it has not been yet. Raises StoreError if it is shut for another move."""

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        """(id, length of its texts) of the next jobs to move, by id."""

    def export(self, ids: Sequence[int]) -> list[TransferredJob]: ...

    def last_id(self) -> int:
        """Of all that were ever given."""

    def counted(self) -> Mapping[JobState, int]:
        """Jobs by state."""

    def paused(self) -> frozenset[str]: ...

    def import_jobs(
        self,
        transfer_record: TransferRecord,
        batches: Iterable[Sequence[TransferredJob]],
        last_id: int,
        paused: frozenset[str],
    ) -> None:
        """All in one transaction, under the ids they have. Raises StoreError unless this store is empty and not shut."""

    def has_received(self, transfer_record: TransferRecord) -> bool:
        """Never no while it is still being received, nor can that begin before the open transaction has ended."""

    def notify(self) -> None: ...

    def close(self) -> None: ...


class TransferReport(NamedTuple):
    """`before`: an earlier call had done it. `left` are those that were not to be moved."""

    jobs: Mapping[JobState, int]
    paused: int
    left: Mapping[JobState, int]
    before: bool = False


def transfer_jobs(source: Transferable, target: Transferable) -> TransferReport:
    place = target.place()
    if source.place() == place:
        raise StoreError(f"{source.url} and {target.url} are the same store")
    transfer_record = source.transfer_record()
    if transfer_record is None:
        transfer_record = TransferRecord(secrets.token_hex(16), target.url, place)
        source.close_for_transfer(transfer_record)
    elif target.has_received(transfer_record):
        source.note_arrival(transfer_record)
        return _moved(source, before=True)
    else:
        _expect_on_their_way(source, target, transfer_record)
    try:
        target.import_jobs(transfer_record, _batches(source, transfer_record), source.last_id(), source.paused())
    except BaseException as error:
        if not _has_received_after_all(source, target, transfer_record, error):
            raise
    for act in (target.notify, lambda: source.note_arrival(transfer_record)):
        with suppress(StoreError):
            act()
    return _moved(source, before=False)


def _expect_on_their_way(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> None:
    """To this target, which has not got them: whether another has can't be told by looking here."""
    if transfer_record.place != target.place():
        raise StoreError(
            f"{source.url}: its jobs were moved, or are being moved, to {transfer_record.target}, and {target.url} is another store than that was"
        )
    if transfer_record.arrived:
        raise StoreError(
            f"{source.url}: its jobs had arrived in {transfer_record.target}, which knows nothing of them any more"
        )


def _has_received_after_all(
    source: Transferable, target: Transferable, transfer_record: TransferRecord, error: BaseException
) -> bool:
    """The answer to its commit may have been lost. If it has not, the source is as it was before."""
    try:
        return not _reopened(source, target, transfer_record)
    except StoreUnavailable:
        raise StoreUnavailable(
            f"{error}; whether the jobs are there can't be told, so {source.url} stays shut: the same command again finishes it, "
            "with --reopen it undoes it"
        ) from error


def undo_transfer(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> None:
    """Undo a move that was cut short. Raises StoreError, and the source stays shut, unless the target surely has not the jobs."""
    if not target.has_received(transfer_record):
        _expect_on_their_way(source, target, transfer_record)
        if _reopened(source, target, transfer_record):
            return
    raise StoreError(f"{source.url}: its jobs are in {target.url}")


def _reopened(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> bool:
    """Whether the target has not received, so that the source is open again. Nobody can begin to receive in between: whoever
    does so afterwards finds the source open, and fails."""
    done = False
    try:
        with target.transaction():
            if target.has_received(transfer_record):
                return False
            source.reopen(transfer_record)
            done = True
    except StoreUnavailable:
        if not done:
            raise
    return True


def _batches(source: Transferable, transfer_record: TransferRecord) -> Iterator[list[TransferredJob]]:
    after = 0
    while page := source.sizes(after, PAGE):
        for ids in _by_weight(page):
            yield source.export(ids)
        after = page[-1][0]
    if (closed_for := source.transfer_record()) is None or closed_for.id != transfer_record.id:
        raise StoreError(f"{source.url}: somebody else has opened it again meanwhile; nothing was moved")


def _by_weight(page: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    ids: list[int] = []
    size = 0
    for id, its in page:
        if ids and size + its > WEIGHT:
            yield ids
            ids, size = [], 0
        ids.append(id)
        size += its
    yield ids


def transferable_counts(source: Transferable) -> Mapping[JobState, int]:
    """How many jobs of each state that is to be moved there are."""
    counts = source.counted()
    return {STATES[state]: counts.get(STATES[state], 0) for state in TRANSFERRED_STATES}


def _moved(source: Transferable, before: bool) -> TransferReport:
    counts, moved = source.counted(), transferable_counts(source)
    left = {state: n for state, n in counts.items() if state not in moved and n}
    return TransferReport(moved, len(source.paused()), left, before)


# What both stores say and ask alike.


def closed_message(target: str) -> str:
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


def closed_for_another(url: str, transfer_record: TransferRecord) -> StoreError:
    return StoreError(f"{url}: somebody else is moving its jobs to {transfer_record.target} meanwhile")


def refuse_as_target(url: str, closed_for: TransferRecord | None, has_jobs: bool) -> None:
    """Jobs that came to a shut store would be shut in there, even none: both would send everybody to the other."""
    if closed_for is not None:
        raise StoreError(
            f"{url}: it is shut, for its own jobs were moved to {closed_for.target}; expected an empty store"
        )
    if has_jobs:
        raise StoreError(f"{url}: has jobs already; expected an empty store, since jobs keep their ids")


def transferred_job(row: Sequence[Any], attempts: Sequence[tuple[int, str]]) -> TransferredJob:
    """From the columns of TransferredJob and then of TransferredDeadLetter."""
    *job, state, due_at, tries, accepted = row
    dead_letter = None if state is None else TransferredDeadLetter(state, due_at, tries, accepted)
    return TransferredJob._make([*job, attempts, dead_letter])


def counts_of(jobs: Iterable[TransferredJob]) -> Counter[tuple[int, str, int]]:
    return Counter((job.state, job.queue, job.tier) for job in jobs)
