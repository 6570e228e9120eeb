"""Transfer all jobs that have not ended, and those that have failed, from one store to another, with the ended jobs of their workflows.
Whichever process is killed, no job is lost, and none can run in both stores.

The commits are, in this order: the source is closed, so that nobody enqueues or runs jobs there; the target gets the jobs, and a
record that it has them; the source notes their arrival or, if the target certainly has not got them, is opened again. If a
transfer is interrupted in between, the same call finishes it, and `undo_transfer` undoes it.

SQL stores keep the record of a closed source in the table `transfer_out`, and the ids of received transfers in `transfers_in`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import orjson

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.jobs import JobState
from supervisor.stores.codes import BLOCKED, CANCELLED, FAILED, READY, SCHEDULED, STATES
from supervisor.stores.schedules import ScheduleRow
from supervisor.stores.sinks import sinks_of, sinks_text
from supervisor.text.units import counted

TRANSFERRED_STATES = (BLOCKED, READY, SCHEDULED, FAILED)
LINKED_STATES = (BLOCKED, FAILED, CANCELLED)
"""The states of transferred jobs that need their parents: these wait for them, or are given their results if they are run again."""


class TransferLimits(NamedTuple):
    """The maximum of jobs, and of characters of their texts, in memory at once; a longer job is transferred alone."""

    jobs: int = 500
    characters: int = 8_000_000


LIMITS = TransferLimits()
_JOB = 19
"""The columns of a job before those of its dead letter."""


class TransferredDeadLetter(NamedTuple):
    """The dead letter of a transferred job. `owed` and `accepted` are JSON lists of sinks."""

    state: int
    due_at: int
    tries: int
    owed: str
    accepted: str


class TransferredExtras(NamedTuple):
    """The extras of a transferred job: their text as stored, its key, whether it holds that key or waits for it, and when it expires,
    or would have if it had not started in time (`may_expire`)."""

    text: str
    key: str | None
    holds_key: bool
    waits_for_key: bool
    expires_at: int | None
    may_expire: bool


class UniqueKey(NamedTuple):
    """A unique key with the job that has it: see `stores.unique.hold_of`."""

    key: str
    job_id: int
    below: int
    until: int | None


class TransferredJob(NamedTuple):
    """A job with all that a store keeps of it, coded as in rows: see `codes`. The texts are as stored. `attempts` are
    (at, record), oldest first; `report` is (progress, its time, log); `snoozes` is (how often, until when the last time)."""

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
    report: tuple[str | None, int | None, str | None] = (None, None, None)
    snoozes: tuple[int, int] | None = None
    extras: TransferredExtras | None = None
    links: Sequence[tuple[int, int, int, int]] = ()
    """(parent, place, on_failed, link) of each parent, for a job in one of LINKED_STATES."""


class TransferRecord(NamedTuple):
    """One transfer: its id, its target as a URL and as the target's `place`, and whether the jobs are known to have arrived."""

    id: str
    target: str
    place: str
    arrived: bool = False


@runtime_checkable
class Transferable(Protocol):
    """A store that can be the source and the target of a transfer."""

    url: str

    def place(self) -> str:
        """Return a text that identifies the store, whatever URL leads to it."""

    def transfer_record(self) -> TransferRecord | None:
        """Return the transfer for which this store is closed, or None if it is open."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def close_for_transfer(self, transfer_record: TransferRecord) -> None:
        """Refuse every enqueue, claim and join from now on, with an error that names the target. Raises StoreError while a
        supervisor uses this store or a job is in flight, or if it is closed already."""

    def note_arrival(self, transfer_record: TransferRecord) -> None: ...

    def reopen(self, transfer_record: TransferRecord) -> None:
        """Undo `close_for_transfer`, unless the store is open. Raises StoreError if it is closed for another transfer."""

    def sizes(self, after: int, limit: int) -> list[tuple[int, int]]:
        """Return (id, length of its texts) of the first `limit` jobs to transfer above the id `after`, by id."""

    def export(self, ids: Sequence[int]) -> list[TransferredJob]: ...

    def unique_keys(self, after: str, limit: int) -> list[UniqueKey]:
        """Return the first `limit` unique keys behind `after` that a transferred job has, or that are taken for a time."""

    def last_id(self) -> int:
        """The highest id that was ever given."""

    def counted(self) -> Mapping[JobState, int]:
        """Return the number of jobs by state."""

    def counted_needed(self) -> Mapping[JobState, int]:
        """Return the numbers of succeeded and cancelled jobs that are transferred: those that a blocked or failed job was enqueued after,
        and those of a workflow that were cancelled because of a parent, since a redrive of that takes them along."""

    def paused(self) -> frozenset[str]: ...

    def schedules(self) -> list[ScheduleRow]: ...

    def import_jobs(
        self,
        transfer_record: TransferRecord,
        batches: Iterable[Sequence[TransferredJob]],
        last_id: int,
        paused: frozenset[str],
        schedules: Sequence[ScheduleRow] = (),
        unique_keys: Iterable[Sequence[UniqueKey]] = (),
    ) -> None:
        """Write all jobs in one transaction, with their ids unchanged. Raises StoreError unless this store is empty and not
        closed."""

    def has_received(self, transfer_record: TransferRecord) -> bool:
        """Return whether the jobs of this transfer are here. It waits while they are being written; nobody can begin to write
        them before the open transaction has ended."""

    def notify(self) -> None: ...

    def close(self) -> None: ...


class TransferReport(NamedTuple):
    """The numbers of jobs and of paused queues that were transferred, and of jobs `left` in the source. `before` is whether an
    earlier call had transferred them."""

    jobs: Mapping[JobState, int]
    paused: int
    left: Mapping[JobState, int]
    before: bool = False


def transfer_jobs(source: Transferable, target: Transferable, limits: TransferLimits = LIMITS) -> TransferReport:
    """Transfer the unfinished and failed jobs of `source` to `target`, with the ended jobs of their workflows. Raises StoreError if either
    of them can't take part, and StoreUnavailable."""
    place = target.place()
    if source.place() == place:
        raise StoreError(f"{source.url} and {target.url} are the same store")
    transfer_record = source.transfer_record()
    if transfer_record is None:
        transfer_record = TransferRecord(os.urandom(16).hex(), target.url, place)
        source.close_for_transfer(transfer_record)
    elif target.has_received(transfer_record):
        source.note_arrival(transfer_record)
        return _report(source, before=True)
    else:
        _require_unarrived(source, target, transfer_record)
    try:
        batches, last_id = _batches(source, transfer_record, limits), source.last_id()
        keys = _unique_keys(source, limits.jobs)
        target.import_jobs(transfer_record, batches, last_id, source.paused(), source.schedules(), keys)
    except BaseException as error:
        if not _has_received_after_all(source, target, transfer_record, error):
            raise
    for act in (target.notify, lambda: source.note_arrival(transfer_record)):
        with suppress(StoreError):
            act()
    return _report(source, before=False)


def _require_unarrived(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> None:
    """Raise StoreError unless the transfer is to this `target` and is not known to have arrived: only the target to which it was
    can show whether the jobs are there."""
    if transfer_record.place != target.place():
        raise StoreError(
            f"{source.url}: its jobs were transferred, or are being transferred, to {transfer_record.target}; "
            f"{target.url} is not that store"
        )
    if transfer_record.arrived:
        raise StoreError(
            f"{source.url}: its jobs had arrived in {transfer_record.target}, which has no record of them any more"
        )


def _has_received_after_all(
    source: Transferable, target: Transferable, transfer_record: TransferRecord, error: BaseException
) -> bool:
    """Return whether the target has committed the jobs although `import_jobs` raised `error`: the answer may have been lost. If
    it has not, open the source again."""
    try:
        return not _reopened(source, target, transfer_record)
    except StoreUnavailable:
        raise StoreUnavailable(
            f"{error}; it is unknown whether the jobs are there, so {source.url} stays closed: repeat the command to finish "
            "the transfer, or add --reopen to undo it"
        ) from error


def undo_transfer(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> None:
    """Open the source of an interrupted transfer again. Raises StoreError, and the source stays closed, unless it is certain that
    the target has not got the jobs."""
    if not target.has_received(transfer_record):
        _require_unarrived(source, target, transfer_record)
        if _reopened(source, target, transfer_record):
            return
    raise StoreError(f"{source.url}: its jobs are in {target.url}")


def _reopened(source: Transferable, target: Transferable, transfer_record: TransferRecord) -> bool:
    """Open the source again, and return True, if the target has not received the jobs. Nobody can begin to import in between: an
    import that begins afterwards finds the source open, and fails."""
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


def _batches(
    source: Transferable, transfer_record: TransferRecord, limits: TransferLimits
) -> Iterator[list[TransferredJob]]:
    after = 0
    while page := source.sizes(after, limits.jobs):
        for ids in _split(page, limits.characters):
            yield source.export(ids)
        after, _ = page[-1]
    if (closed_for := source.transfer_record()) is None or closed_for.id != transfer_record.id:
        raise StoreError(f"{source.url}: another process has opened it again meanwhile; nothing was transferred")


def _unique_keys(source: Transferable, limit: int) -> Iterator[list[UniqueKey]]:
    after = ""
    while page := source.unique_keys(after, limit):
        yield page
        after = page[-1].key


def _split(page: Sequence[tuple[int, int]], most: int) -> Iterator[list[int]]:
    ids: list[int] = []
    total = 0
    for id, size in page:
        if ids and total + size > most:
            yield ids
            ids, total = [], 0
        ids.append(id)
        total += size
    yield ids


def transferable_counts(source: Transferable) -> Mapping[JobState, int]:
    """Return the number of jobs in each of the states that are transferred."""
    counts = source.counted()
    found = {STATES[state]: counts.get(STATES[state], 0) for state in TRANSFERRED_STATES}
    return {**found, **source.counted_needed()}


def _report(source: Transferable, before: bool) -> TransferReport:
    counts, transferred = source.counted(), transferable_counts(source)
    left = {state: rest for state, n in counts.items() if (rest := n - transferred.get(state, 0)) > 0}
    return TransferReport(transferred, len(source.paused()), left, before)


# --- checks and errors that the SQL stores share


def closed_message(target: str) -> str:
    """Return the error message for every use of a closed store."""
    return f"its jobs were transferred to {target}: set store in the config to that URL"


def refuse_in_use(url: str, supervisors: Sequence[Mapping[str, object]], in_flight: int) -> None:
    """Raise StoreError if one of these supervisors (as in `status --json`) is not gone, or jobs are in flight."""
    running = [it for it in supervisors if it["state"] != "gone"]
    if running:
        who = ", ".join(f"{it['host']} pid {it['pid']}" for it in running)
        raise StoreError(f"{url}: in use by a supervisor ({who}); stop it first")
    if in_flight:
        raise StoreError(
            f"{url}: {counted(in_flight, 'job', 'are')} in flight, of a supervisor that was lost; `supervisor run --drain` on this store "
            "recovers what is in flight, or start a supervisor there and stop it once they are done"
        )


def closed_for_another(url: str, transfer_record: TransferRecord) -> StoreError:
    return StoreError(f"{url}: another process is transferring its jobs to {transfer_record.target} meanwhile")


def refuse_as_target(url: str, closed_for: TransferRecord | None, has_jobs: bool) -> None:
    """Raise StoreError if this store is closed or has jobs. A closed store is refused even if it has no jobs: otherwise two closed
    stores could name each other as the target."""
    if closed_for is not None:
        raise StoreError(
            f"{url}: it is closed, since its own jobs were transferred to {closed_for.target}; expected an empty store"
        )
    if has_jobs:
        raise StoreError(f"{url}: has jobs already; expected an empty store, since jobs keep their ids")


def transferred_job(row: Sequence[Any], attempts: Sequence[tuple[int, str]] = ()) -> TransferredJob:
    """Make a job from the columns of TransferredJob, followed by those of TransferredDeadLetter, of its report, of its snoozes, of
    TransferredExtras, and its links as JSON text."""
    state, due_at, tries, owed, accepted, progress, progress_at, log, n, until, text, *extras, links = row[_JOB:]
    dead_letter = None
    if state is not None:  # lists that another program may have written, in a form that every store takes
        sinks = [sinks_text(sinks_of(text)) for text in (owed, accepted)]
        dead_letter = TransferredDeadLetter(state, due_at, tries, *sinks)
    snoozes = None if n is None else (n, until)
    its = None if text is None else _extras(text, *extras)
    parents = [] if links is None else [tuple(link) for link in orjson.loads(links)]
    return TransferredJob._make(
        [*row[:_JOB], attempts, dead_letter, (progress, progress_at, log), snoozes, its, parents]
    )


def _extras(text: str, key: str | None, holds: Any, waits: Any, expires_at: int | None, may: Any) -> TransferredExtras:
    return TransferredExtras(text, key, bool(holds), bool(waits), expires_at, bool(may))


def link_rows(jobs: Iterable[TransferredJob]) -> list[tuple[int, int, int, int, int]]:
    """Return (child, parent, place, on_failed, link) of each link of these jobs."""
    return [(job.id, *link) for job in jobs for link in job.links]


def counts_of(jobs: Iterable[TransferredJob]) -> Counter[tuple[int, str, int]]:
    return Counter((job.state, job.queue, job.tier) for job in jobs)
