"""The memory store: the protocol in plain Python, for tests and for queues that may die with their process."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache
from operator import attrgetter
from typing import Any

from supervisor.events import COUNTED_MOST
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome, Tier
from supervisor.stores.base import (
    Capabilities,
    EnqueueRow,
    Lapsed,
    Letter,
    Look,
    Presence,
    Resolve,
    Retention,
    StoreError,
    Take,
    Waiting,
)
from supervisor.stores.memory_shelf import KeptJob, KeptLetter, KeptOwner, Shelf
from supervisor.stores.shapes import (
    KEPT_ATTEMPTS,
    NO_SUCH_JOB,
    Verdict,
    failure_record,
    iso,
    microseconds,
    refuse_cancel,
    refuse_delete,
    refuse_redrive,
    refuse_retry,
    require_seen,
)

LEFT = "left"


class MemoryStore:
    """Implements `supervisor.stores.base.Store`. `sibling` gives another owner's or client's view of the same jobs."""

    capabilities = Capabilities()
    url = "memory://"

    def __init__(self, clock: Callable[[], float] = time.time, shelf: Shelf | None = None) -> None:
        self._clock = clock
        self._shelf = shelf or Shelf()
        self._owner: str | None = None
        self.on_owner_gone: Callable[[str], None] = lambda owner: None  # never: owners die with this process

    def sibling(self) -> MemoryStore:
        return MemoryStore(self._clock, self._shelf)

    def reader(self) -> MemoryStore:
        return self.sibling()

    def close(self) -> None:
        pass

    @contextmanager
    def transaction(self, *, single: bool = False) -> Iterator[None]:
        shelf = self._shelf
        with shelf.lock:
            if shelf.before is not None:
                with shelf.joined():
                    yield
                return
            shelf.before, sequence, paused, owners = {}, shelf.sequence, set(shelf.paused), dict(shelf.owners)
            try:
                yield
                if shelf.broken:
                    raise StoreError("a write inside this transaction failed, so none of it is kept")
            except BaseException:
                shelf.put_back(shelf.before)
                shelf.sequence, shelf.paused = sequence, paused
                shelf.owners = owners | shelf.owners  # those that were forgotten on the way
                raise
            finally:
                shelf.before, shelf.broken = None, False

    def _now(self) -> int:
        return microseconds(self._clock())

    def _change(self, job: KeptJob, **changes: Any) -> None:
        shelf = self._shelf
        shelf.remember(job.id)
        shelf.take_out(job)
        for name, value in changes.items():
            setattr(job, name, value)
        shelf.file(job)

    # clients

    def enqueue(self, rows: Sequence[EnqueueRow]) -> list[int]:
        with self.transaction():
            ids = [self._add(row) for row in rows]
            self.ring()
            return ids

    def _add(self, row: EnqueueRow) -> int:
        now = self._now()
        due = row.at if row.at is not None else now + microseconds(row.delay or 0.0)
        id = self._next_age()
        self._shelf.remember(id)
        job = KeptJob(id, row, due, now, JobState.SCHEDULED if due > now else JobState.READY, age=id)
        self._shelf.jobs[id] = job
        self._shelf.file(job)
        return id

    def _next_age(self) -> int:
        self._shelf.sequence += 1
        return self._shelf.sequence

    def ring(self) -> None:
        with self._shelf.lock:
            for name, owner in self._shelf.owners.items():
                if name != self._owner and owner.presence.state != LEFT:
                    with suppress(BlockingIOError):
                        os.write(owner.bell[1], b"!")

    # a supervisor's life

    def join(self, owner: str, host: str, pid: int) -> int | None:
        with self._shelf.lock:
            self._owner = owner
            if owner not in self._shelf.owners:
                bell = os.pipe()
                for end in bell:
                    os.set_blocking(end, False)
                self._shelf.owners[owner] = KeptOwner(host, pid, self._now(), bell)
        return None

    def leave(self) -> None:
        with self._shelf.lock:
            owner = self._shelf.owners.get(self._owner or "")
            if owner is None:
                return
            owner.presence = Presence(LEFT)
            for end in owner.bell:
                os.close(end)
            self._owner = None
            self._forget_owners()

    def bell(self) -> int | None:
        return None if self._owner is None else self._shelf.owners[self._owner].bell[0]

    def hush(self) -> None:
        bell = self.bell()
        with suppress(BlockingIOError):
            while bell is not None:
                os.read(bell, 4096)

    def announce(self, presence: Presence) -> None:
        with self._shelf.lock:
            owner = self._shelf.owners.get(self._owner or "")
            if owner is None:
                raise StoreError("announce: join first")
            owner.presence, owner.seen_at = presence, self._now()

    def _forget_owners(self) -> None:
        """Those that have left, once they hold no lease."""
        holding = {self._shelf.jobs[id].owner for id in self._shelf.in_flight}
        for name, owner in list(self._shelf.owners.items()):
            if owner.presence.state == LEFT and name not in holding:
                del self._shelf.owners[name]

    # the hot path

    def promote(self, limit: int) -> int:
        with self.transaction():
            moved, now = 0, self._now()
            while moved < limit and (job := self._shelf.next_scheduled()) is not None and job.due_at <= now:
                self._change(job, state=JobState.READY)
                moved += 1
            return moved

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        with self._shelf.lock:
            found: dict[str, list[int]] = {}
            for (queue, tier, state), n in self._shelf.counts.items():
                if n and state is JobState.READY and self._serves(queue, served):
                    found.setdefault(queue, [0, 0])[tier] = n
            return {queue: Waiting(*counts) for queue, counts in found.items()}

    def _serves(self, queue: str, served: frozenset[str] | None) -> bool:
        return queue not in self._shelf.paused and (served is None or queue in served)

    def look(self, served: frozenset[str] | None, limit: int) -> Look:
        self.promote(limit)
        return Look(self.waiting(served), self.next_due())

    def claim(self, takes: Sequence[Take], ttl: float, resolve: Resolve) -> list[Lease]:
        if self._owner is None:
            raise StoreError("claim: join first, so that the leases have an owner")
        with self.transaction():
            deadline = self._now() + microseconds(ttl)
            resolved = cache(resolve)  # one claim, one policy for all jobs of a handler in a queue
            return [self._claim(job, deadline, resolved) for take in takes for job in self._pick(take)]

    def _pick(self, take: Take) -> list[KeptJob]:
        if take.queue in self._shelf.paused:
            return []
        fresh = self._shelf.candidates(take.queue, Tier.FRESH, take.limit)
        retries = self._shelf.candidates(take.queue, Tier.RETRY, min(take.limit, take.retries_most))
        urgent = sum(job.row.priority >= take.urgent for job in fresh)
        return take.pick(fresh, urgent, retries)

    def _claim(self, job: KeptJob, deadline: int, resolve: Resolve) -> Lease:
        self._change(
            job,
            state=JobState.IN_FLIGHT,
            token=job.token + 1,
            owner=self._owner,
            lease_until=deadline,
            started_at=None,
            policy=resolve(job.row.handler, job.row.queue),
        )
        return job.lease()

    def settle(self, outcomes: Sequence[Outcome]) -> list[int]:
        with self.transaction():
            return [outcome.lease.id for outcome in outcomes if not (self._settle(outcome) or self._settled(outcome))]

    def recover(self, outcomes: Sequence[Outcome]) -> list[int]:
        require_seen(outcomes)
        with self.transaction():
            return [outcome.lease.id for outcome in outcomes if not self._settle(outcome)]

    def _settled(self, outcome: Outcome) -> bool:
        job = self._shelf.jobs.get(outcome.lease.id)
        return job is not None and job.settled == outcome.lease.token

    def _settle(self, outcome: Outcome) -> bool:
        job = self._leased(outcome.lease)
        if job is None or (outcome.seen is not None and job.lease_until != outcome.seen):
            return False
        if outcome.state is None:
            raise StoreError(f"job {job.id}: an outcome must be decided before it is settled")
        now = self._now()
        changes: dict[str, Any] = {"state": outcome.state, "owner": None, "result": outcome.result}
        changes["lapses"] = _lapses(job, outcome)
        if outcome.seen is None:
            changes["settled"] = job.token
        if outcome.took is not None:
            changes["started_at"] = now - microseconds(outcome.took)
        if outcome.state.terminal:
            changes["finished_at"] = now
        elif outcome.counted or outcome.state is JobState.SCHEDULED:
            changes["due_at"] = now + microseconds(outcome.delay)
        if outcome.counted:
            changes |= {"retries": job.retries + 1, "tier": Tier.RETRY, "age": changes.get("due_at", job.age)}
        if outcome.failure is not None:
            changes["errors"] = _thinned((*job.errors, failure_record(outcome.failure, outcome.lease, now)))
        if outcome.letter:
            changes["letter"] = KeptLetter(now, token=job.letter.token + 1 if job.letter else 0)
        self._change(job, **changes)
        return True

    def _leased(self, lease: Lease) -> KeptJob | None:
        job = self._shelf.jobs.get(lease.id)
        held = job is not None and job.state is JobState.IN_FLIGHT and job.token == lease.token
        return job if held else None

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        with self.transaction():
            now = self._now()
            stale = set()
            for lease in leases:
                if (job := self._leased(lease)) is not None:
                    self._change(job, lease_until=now + microseconds(ttl))
                else:
                    stale.add(lease.id)
            for lease in started:
                if (job := self._leased(lease)) is not None:
                    self._change(job, started_at=now if job.started_at is None else job.started_at)
                else:
                    stale.add(lease.id)
            return sorted(stale)

    def held(self) -> list[tuple[int, int]]:
        with self._shelf.lock:
            return [(job.id, job.token) for job in self._in_flight() if job.owner == self._owner]

    def leases(self, ids: Sequence[int]) -> list[Lease]:
        with self._shelf.lock:
            return [job.lease() for job in self._in_flight() if job.owner == self._owner and job.id in set(ids)]

    def _in_flight(self) -> Iterable[KeptJob]:
        return [self._shelf.jobs[id] for id in sorted(self._shelf.in_flight)]

    # recovery

    def lapsed(self, limit: int, after: Lapsed | None = None) -> list[Lapsed]:
        with self._shelf.lock:
            self._forget_owners()
            now, found = self._now(), []
            for job in self._in_flight():
                owner = self._shelf.owners.get(job.owner or "")
                gone = owner is not None and owner.presence.state == LEFT
                if job.owner != self._owner and (gone or job.lease_until <= now):
                    started, lease = job.started_at is not None, job.lease()._replace(payload="", headers=None)
                    found.append(Lapsed(lease, job.lease_until, started, job.lapses, job.owner or "", gone))
            found.sort(key=attrgetter("place"))
            return [one for one in found if after is None or one.place > after.place][:limit]

    # dead letters

    def dead_letters(self, limit: int, ttl: float) -> list[Letter]:
        with self.transaction():
            now = self._now()
            due = [job for job in self._pending() if job.letter is not None and job.letter.due_at <= now]
            due.sort(key=lambda job: job.letter.due_at if job.letter else 0)
            return [self._claim_letter(job, now + microseconds(ttl)) for job in due[:limit]]

    def _pending(self) -> list[KeptJob]:
        return [job for job in self._shelf.jobs.values() if job.letter_state == "pending"]

    def _claim_letter(self, job: KeptJob, until: int) -> Letter:
        letter = copy(job.letter)
        assert letter is not None
        letter.token, letter.tries, letter.due_at = letter.token + 1, letter.tries + 1, until
        self._change(job, letter=letter)
        return Letter(job.id, letter.token, letter.tries, letter.accepted, job.shown())

    def accepted(self, letters: Sequence[Letter], sink: str, wanted: frozenset[str]) -> list[int]:
        def accept(letter: KeptLetter) -> None:
            letter.accepted |= {sink}
            if wanted <= letter.accepted:
                letter.state = "delivered"

        return self._change_letters(letters, accept)

    def postpone(self, letters: Sequence[Letter], delay: float) -> list[int]:
        def put_off(letter: KeptLetter) -> None:
            letter.due_at = self._now() + microseconds(delay)

        return self._change_letters(letters, put_off)

    def _change_letters(self, letters: Sequence[Letter], change: Callable[[KeptLetter], None]) -> list[int]:
        stale = []
        with self.transaction():
            for claimed in letters:
                job = self._shelf.jobs.get(claimed.id)
                letter = None if job is None else copy(job.letter)
                if job is None or letter is None or letter.state is None or letter.token != claimed.token:
                    stale.append(claimed.id)
                else:
                    change(letter)
                    self._change(job, letter=letter)
        return stale

    # asking

    def next_due(self) -> float | None:
        with self._shelf.lock:
            job = self._shelf.next_scheduled()
            return None if job is None else max(0.0, (job.due_at - self._now()) / 1e6)

    def stats(self) -> dict[str, Any]:
        with self._shelf.lock:
            self._forget_owners()
            names = {queue for (queue, _, _), n in self._shelf.counts.items() if n} | self._shelf.paused
            running = Counter(self._running())
            return {
                "queues": [self._queue(name, running[name]) for name in sorted(names)],
                "supervisors": [_owner_dict(name, owner) for name, owner in self._shelf.owners.items()],
            }

    def _queue(self, queue: str, processing: int) -> dict[str, Any]:
        def n(state: JobState, *tiers: int) -> int:
            return sum(self._shelf.counts[queue, tier, state] for tier in tiers or Tier)

        return {
            "queue": queue,
            "queue_size": n(JobState.READY, Tier.FRESH),
            "retry_queue_size": n(JobState.READY, Tier.RETRY),
            "scheduled": n(JobState.SCHEDULED),
            "in_flight": n(JobState.IN_FLIGHT),
            "failed": n(JobState.FAILED),
            "paused": queue in self._shelf.paused,
            "processing": processing,
        }

    def _running(self) -> Iterator[str]:
        """The queue of each job that a worker is running now."""
        for owner in self._shelf.owners.values():
            for worker in owner.presence.workers:
                current = worker.get("current_job")
                job = self._shelf.jobs.get(current["job_id"]) if current else None
                if job is not None and job.state is JobState.IN_FLIGHT:
                    yield job.row.queue

    def remaining(
        self, served: frozenset[str] | None, horizon: float | None, most: int = COUNTED_MOST
    ) -> dict[str, int]:
        with self._shelf.lock:
            left: Counter[str] = Counter()
            latest = None if horizon is None else self._now() + microseconds(horizon)
            for job in self._shelf.jobs.values():
                if not job.state.terminal and self._serves(job.row.queue, served):
                    beyond = job.state is JobState.SCHEDULED and latest is not None and job.due_at > latest
                    left[job.state.value] += not beyond
            left["dead_letters"] = min(most, len(self._pending()))
            if latest is not None:
                left["scheduled"] = min(most, left["scheduled"])
            return {what: n for what, n in left.items() if n}

    def get(self, id: int) -> dict[str, Any] | None:
        with self._shelf.lock:
            job = self._shelf.jobs.get(id)
            return None if job is None else job.shown()

    def list_jobs(
        self,
        *,
        state: JobState | None = None,
        queue: str | None = None,
        handler: str | None = None,
        letter: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        with self._shelf.lock:
            found = [
                job
                for job in self._shelf.jobs.values()
                if (state is None or job.state is state)
                and (queue is None or job.row.queue == queue)
                and (handler is None or job.row.handler == handler)
                and (letter is None or job.letter_state == letter or (letter == "any" and job.letter_state is not None))
            ]
            finished = state is not None and state.terminal and letter is None
            found.sort(key=lambda job: (job.finished_at or 0 if finished else 0, job.id), reverse=True)
            return [job.shown() for job in found[:limit]]

    # the operator's verbs

    def cancel(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_cancel, self._cancel)

    def retry(self, ids: Sequence[int]) -> Verdict:
        return self._do(ids, refuse_retry, self._retry)

    def redrive(self, ids: Sequence[int] | None, force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_redrive(state, letter, force), self._redrive)

    def delete(self, ids: Sequence[int], force: bool = False) -> Verdict:
        return self._do(ids, lambda state, letter: refuse_delete(state, letter, force), self._delete)

    def purge(self, force: bool = False) -> Verdict:
        return self._do(None, lambda state, letter: refuse_delete(state, letter, force), self._delete)

    def pause(self, queue: str, paused: bool) -> None:
        with self.transaction():
            (self._shelf.paused.add if paused else self._shelf.paused.discard)(queue)
        self.ring()

    def paused(self) -> frozenset[str]:
        return frozenset(self._shelf.paused)

    def prune(self, retention: Retention, limit: int) -> int:
        kept = {
            JobState.SUCCEEDED: retention.succeeded,
            JobState.CANCELLED: retention.cancelled,
            JobState.FAILED: retention.failed,
        }
        with self.transaction():
            now = self._now()
            past = [
                job
                for job in self._shelf.jobs.values()
                if (seconds := kept.get(job.state)) is not None
                and (job.finished_at or 0) <= now - microseconds(seconds)
                and job.letter_state != "pending"
            ]
            past.sort(key=lambda job: job.finished_at or 0)
            for job in past[:limit]:
                self._delete(job)
            return len(past[:limit])

    def _do(
        self,
        ids: Sequence[int] | None,
        refuse: Callable[[JobState, str | None], str | None],
        change: Callable[[KeptJob], None],
    ) -> Verdict:
        done: list[int] = []
        refused: dict[int, str] = {}
        with self.transaction():
            if ids is None:
                ids = [job.id for job in self._shelf.jobs.values() if job.letter_state is not None]
            for id in dict.fromkeys(ids):
                job = self._shelf.jobs.get(id)
                why = NO_SUCH_JOB if job is None else refuse(job.state, job.letter_state)
                if job is None or why is not None:
                    refused[id] = why or NO_SUCH_JOB
                else:
                    change(job)
                    done.append(id)
        self.ring()
        return done, refused

    def _cancel(self, job: KeptJob) -> None:
        self._change(job, state=JobState.CANCELLED, token=job.token + 1, finished_at=self._now(), owner=None)

    def _retry(self, job: KeptJob) -> None:
        if job.state is JobState.SCHEDULED:
            now = self._now()
            self._change(job, state=JobState.READY, due_at=now, age=now if job.tier == Tier.RETRY else job.age)
        else:
            self._redrive(job)

    def _redrive(self, job: KeptJob) -> None:
        letter = copy(job.letter)
        if letter is not None:
            letter.state = None
        self._change(
            job,
            state=JobState.READY,
            tier=Tier.FRESH,
            age=self._next_age(),
            due_at=self._now(),
            retries=0,
            lapses=0,
            started_at=None,
            finished_at=None,
            result=None,
            letter=letter,
        )

    def _delete(self, job: KeptJob) -> None:
        self._shelf.remember(job.id)
        self._shelf.take_out(job)
        del self._shelf.jobs[job.id]


def _lapses(job: KeptJob, outcome: Outcome) -> int:
    if outcome.kind is Kind.RELEASED and outcome.took is None:
        return job.lapses if outcome.seen is None else job.lapses + 1
    expired = outcome.failure is not None and outcome.failure.cause is Cause.LEASE_EXPIRED
    return job.lapses if expired else 0


def _thinned(errors: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    return errors if len(errors) <= KEPT_ATTEMPTS else (errors[0], *errors[1 - KEPT_ATTEMPTS :])


def _owner_dict(name: str, owner: KeptOwner) -> dict[str, Any]:
    gone = owner.presence.state == LEFT
    return {
        "owner": name,
        "host": owner.host,
        "pid": owner.pid,
        "state": "gone" if gone else owner.presence.state,
        "seen_at": iso(owner.seen_at),
        "workers": list(owner.presence.workers),
    }
