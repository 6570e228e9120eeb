"""What every store promises, in plain Python over a dictionary of jobs: slow, short, and meant to be read.

Written from the Store protocol, not from a store. Times are microseconds, durations seconds. Where the protocol leaves a
choice to the store, the model gets that choice and answers whether it was allowed (`may_offer`, `may_prune`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome, Policy, Tier
from supervisor.stores.fencing import COUNT_BITS
from supervisor.stores.job_reports import JobReport
from supervisor.stores.records import ClaimRequest, DeadLetter, EnqueueRow, ExpiredLease, Waiting

SCHEDULED, READY, IN_FLIGHT = JobState.SCHEDULED, JobState.READY, JobState.IN_FLIGHT
SUCCEEDED = JobState.SUCCEEDED
OperatorResult = tuple[list[int], list[int]]
"""The ids that were changed, and those that were refused."""


@dataclass
class ModelDeadLetter:
    due_at: int
    token: int = 0
    tries: int = 0
    accepted: frozenset[str] = frozenset()
    state: str | None = "pending"
    owner: str | None = None
    owed: frozenset[str] = frozenset()

    @property
    def missing(self) -> frozenset[str]:
        return self.owed - self.accepted if self.state == "pending" else frozenset()


@dataclass
class ModelJob:
    id: int
    row: EnqueueRow
    state: JobState
    due_at: int
    created_at: int
    age: int
    tier: Tier = Tier.FRESH
    token: int = 0
    settled: int | None = None
    owner: str | None = None
    deadline: int = 0
    policy: Policy | None = None
    started_at: int | None = None
    finished_at: int | None = None
    retries: int = 0
    expired_count: int = 0
    result: str | None = None
    errors: list[tuple[int, str]] = field(default_factory=list)
    dead_letter: ModelDeadLetter | None = None
    progress: dict[str, Any] | None = None
    log: dict[str, Any] | None = None
    snoozes: int = 0
    snoozed_until: int | None = None

    @property
    def dead_letter_state(self) -> str | None:
        return self.dead_letter.state if self.dead_letter else None

    @property
    def place(self) -> tuple[int, int, int]:
        """In the line of its tier."""
        return -self.row.priority, self.age, self.id

    def lease(self) -> Lease:
        row, policy = self.row, self.policy
        assert policy is not None
        return Lease(
            self.id, self.token, row.handler, row.queue, row.payload, row.headers, self.retries, row.priority, self.tier,
            self.due_at, self.created_at, policy, self.expired_count,
        )  # fmt: skip

    def shown(self) -> dict[str, Any]:
        """As `jobs show --json` prints it, of each error its attempt and cause."""
        max_retries = self.policy.max_retries if self.policy else self.row.max_retries
        return {
            "id": self.id, "handler": self.row.handler, "payload": orjson.loads(self.row.payload),
            "queue": self.row.queue, "priority": self.row.priority, "state": self.state.value,
            "attempt": self.retries + 1, "retries": self.retries, "max_retries": max_retries,
            "options": {"max_retries": self.row.max_retries, "timeout": self.row.timeout, "backoff": None},
            "due_at": iso(self.due_at), "created_at": iso(self.created_at), "started_at": iso(self.started_at),
            "finished_at": iso(self.finished_at), "result": self.result and orjson.loads(self.result), "headers": {},
            "errors": self.errors, "dead_letter": self.dead_letter_state,
            "missing_sinks": sorted(self.dead_letter.missing) if self.dead_letter else [],
            "snoozes": self.snoozes,
            "snoozed_until": iso(self.due_at) if self.state is SCHEDULED and self.due_at == self.snoozed_until else None,
            "expired_count": self.expired_count, "progress": self.progress, "log": self.log,
            "lease": {"owner": self.owner, "until": iso(self.deadline)} if self.state is IN_FLIGHT else None,
        }  # fmt: skip


class Model:
    """Every method is one of the store's; `owner` is who calls."""

    def __init__(self, clock: Callable[[], float], resolve: Callable[[str, str], Policy]) -> None:
        self.clock, self.resolve = clock, resolve
        self.jobs: dict[int, ModelJob] = {}
        self.paused: set[str] = set()
        self.gone: set[str] = set()
        self.sinks: dict[str, frozenset[str]] = {}
        """By owner."""
        self.last_id = self.last_age = 0
        self.random_part = 0
        """Of the tokens of claims: see `fencing`."""

    @property
    def now(self) -> int:
        return round(self.clock() * 1e6)

    def after(self, seconds: float) -> int:
        return self.now + round(seconds * 1e6)

    def those(self, *states: JobState, queue: str | None = None) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state in states and queue in (None, job.row.queue)]

    # from enqueue to claim

    def enqueue(self, ids: Sequence[int], rows: Sequence[EnqueueRow]) -> None:
        for id, row in zip(ids, rows, strict=True):
            assert id > self.last_id, "an id is never given twice"
            self.last_id = id
            due = self.after(row.delay or 0.0) if row.at is None else row.at
            state = SCHEDULED if due > self.now else READY
            self.jobs[id] = ModelJob(id, row, state, due, self.now, self.next_age())

    def next_age(self) -> int:
        self.last_age += 1
        return self.last_age

    def promote(self, limit: int) -> int:
        due = sorted((job.due_at, job.id) for job in self.those(SCHEDULED) if job.due_at <= self.now)[:limit]
        for _, id in due:
            self.jobs[id].state = READY
        return len(due)

    def claim(self, owner: str, takes: Sequence[ClaimRequest], ttl: float) -> list[Lease]:
        return [self._claimed(job, owner, ttl) for take in takes for job in self._chosen(take)]

    def _chosen(self, take: ClaimRequest) -> list[ModelJob]:
        if take.queue in self.paused:
            return []
        line = sorted(self.those(READY, queue=take.queue), key=lambda job: job.place)
        fresh = [job for job in line if job.tier is Tier.FRESH]
        urgent = [job for job in fresh if job.row.priority >= take.urgent]
        others = [job for job in fresh if job.row.priority < take.urgent]
        retries = [job for job in line if job.tier is Tier.RETRY][: take.max_retries_claimed]
        chosen = urgent[: take.limit]
        first = retries[: min(take.retries_first, take.limit - len(chosen))]
        return [*chosen, *first, *others, *retries[len(first) :]][: take.limit]

    def _claimed(self, job: ModelJob, owner: str, ttl: float) -> Lease:
        job.state, job.owner, job.deadline, job.started_at = IN_FLIGHT, owner, self.after(ttl), None
        job.token = self._next_token(job.token)
        job.policy = self.resolve(job.row.handler, job.row.queue)
        if job.row.max_retries is not None:
            job.policy = job.policy._replace(max_retries=job.row.max_retries)
        return job.lease()

    def _next_token(self, token: int) -> int:
        return self.random_part | ((token + 1) % 2**COUNT_BITS)

    # outcomes of leases

    def leased(self, lease: Lease) -> ModelJob | None:
        """The job, if this is its lease: the fence that everything said about a lease must pass."""
        job = self.jobs.get(lease.id)
        return job if job and job.state is IN_FLIGHT and job.token == lease.token else None

    def settle(self, owner: str, outcomes: Sequence[Outcome]) -> list[int]:
        return [it.lease.id for it in outcomes if not self._settle(owner, it) and not self._settled_before(it.lease)]

    def _settled_before(self, lease: Lease) -> bool:
        return lease.id in self.jobs and self.jobs[lease.id].settled == lease.token

    def _settle(self, owner: str, outcome: Outcome) -> bool:
        job = self.leased(outcome.lease)
        if job is None or outcome.seen not in (None, job.deadline):
            return False
        assert outcome.state is not None
        recovered, failure = outcome.seen is not None, outcome.failure
        job.state, job.owner, job.result = outcome.state, None, outcome.result
        if outcome.kind is Kind.RELEASED:
            job.expired_count += recovered and (2 if job.started_at is not None else job.expired_count < 2)
        elif failure is None or failure.cause is not Cause.LEASE_EXPIRED:
            job.expired_count = 0
        if not recovered:
            job.settled = job.token
        if failure is not None:
            job.errors.append((outcome.lease.attempt, failure.cause.value))
        if outcome.took is not None:
            job.started_at = self.after(-outcome.took)
        if outcome.state.terminal:
            job.finished_at = self.now
        if outcome.state is SCHEDULED:
            job.due_at = self.after(outcome.delay)
        if outcome.kind is Kind.SNOOZED:
            job.snoozes, job.snoozed_until = job.snoozes + 1, job.due_at
        if outcome.counted:
            job.retries, job.tier, job.age = job.retries + 1, Tier.RETRY, job.due_at
        if outcome.dead_letter:
            token = job.dead_letter.token + 1 if job.dead_letter else 0
            job.dead_letter = ModelDeadLetter(self.now, token, owed=self.sinks[owner])
        return True

    def extend(self, leases: Sequence[Lease], ttl: float, started: Sequence[Lease]) -> list[int]:
        for lease in leases:
            if job := self.leased(lease):
                job.deadline = self.after(ttl)
        for lease in started:
            if (job := self.leased(lease)) and job.started_at is None:
                job.started_at = self.now
        return sorted({lease.id for lease in (*leases, *started) if not self.leased(lease)})

    def keep_reports(self, reports: Sequence[JobReport]) -> None:
        for report in reports:
            job = self.jobs.get(report.id)
            if job is not None and job.token == report.token:
                if report.progress is not None:
                    job.progress = {**orjson.loads(report.progress), "at": iso(self.now)}
                job.log = job.log if report.log is None else orjson.loads(report.log)

    def held(self, owner: str) -> list[tuple[int, int]]:
        return [(job.id, job.token) for job in self.those(IN_FLIGHT) if job.owner == owner]

    def expired_leases(self, owner: str) -> list[ExpiredLease]:
        return [
            ExpiredLease(
                _light(job.lease()),
                job.deadline,
                job.started_at is not None,
                job.owner,
                job.owner in self.gone,
            )
            for job in self.those(IN_FLIGHT)
            if job.owner and job.owner != owner and (job.owner in self.gone or job.deadline <= self.now)
        ]

    def recover(self, owner: str, outcomes: Sequence[Outcome]) -> list[int]:
        return [outcome.lease.id for outcome in outcomes if not self._settle(owner, outcome)]

    # dead letters

    def may_offer(self, owner: str, dead_letters: Sequence[DeadLetter], limit: int) -> bool:
        """Pending ones that nobody publishes now and a sink of this owner lacks, oldest first. One whose claimer is gone may be offered before its time."""
        given = [dead_letter.id for dead_letter in dead_letters]
        pending = {
            job.id: job.dead_letter
            for job in self.jobs.values()
            if job.dead_letter
            and job.dead_letter.state == "pending"
            and not self.sinks[owner] <= job.dead_letter.accepted
        }
        due = [id for _, id in sorted((it.due_at, id) for id, it in pending.items() if it.due_at <= self.now)]
        early = {id for id in given if id in pending and id not in due and pending[id].owner in self.gone}
        return [id for id in given if id not in early] == due[: limit - len(early)]

    def claim_dead_letters(self, owner: str, dead_letters: Sequence[DeadLetter], ttl: float) -> list[tuple[Any, ...]]:
        """(id, token, tries, accepted) of each."""
        claimed = []
        for id in [dead_letter.id for dead_letter in dead_letters]:
            dead_letter = self.jobs[id].dead_letter
            assert dead_letter is not None
            dead_letter.token, dead_letter.tries = self._next_token(dead_letter.token), dead_letter.tries + 1
            dead_letter.owner, dead_letter.due_at = owner, self.after(ttl)
            dead_letter.owed |= self.sinks[owner]
            claimed.append((id, dead_letter.token, dead_letter.tries, dead_letter.accepted))
        return claimed

    def mark_accepted(self, owner: str, dead_letters: Sequence[DeadLetter], sink: str) -> list[int]:
        for dead_letter in self._claimed_dead_letters(dead_letters):
            dead_letter.accepted |= {sink}
            if not dead_letter.missing:
                dead_letter.state = "delivered"
            if self.sinks[owner] <= dead_letter.accepted:
                dead_letter.due_at = self.now
        return self._stale_dead_letters(dead_letters)

    def postpone(self, dead_letters: Sequence[DeadLetter], delay: float) -> list[int]:
        for dead_letter in self._claimed_dead_letters(dead_letters):
            dead_letter.due_at = self.after(delay)
        return self._stale_dead_letters(dead_letters)

    def _claimed_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> list[ModelDeadLetter]:
        return [mine for it in dead_letters if (mine := self._claimed_dead_letter(it))]

    def _stale_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> list[int]:
        return [it.id for it in dead_letters if not self._claimed_dead_letter(it)]

    def _claimed_dead_letter(self, dead_letter: DeadLetter) -> ModelDeadLetter | None:
        job = self.jobs.get(dead_letter.id)
        mine = job.dead_letter if job else None
        return mine if mine and mine.state and mine.token == dead_letter.token else None

    # the operator's commands

    def cancel(self, ids: Iterable[int]) -> OperatorResult:
        def cancel(job: ModelJob) -> None:
            job.state, job.owner, job.finished_at, job.token = JobState.CANCELLED, None, self.now, job.token + 1

        return self._do(ids, lambda job: not job.state.terminal, cancel)

    def retry(self, ids: Iterable[int], force: bool = False) -> OperatorResult:
        def retry(job: ModelJob) -> None:
            if job.state.terminal:
                self._redrive(job)
                return
            job.state, job.due_at = READY, self.now
            if job.tier is Tier.RETRY:
                job.age = job.due_at

        def may_retry(job: ModelJob) -> bool:
            ended = job.state.terminal and (
                force or (job.state is not SUCCEEDED and job.dead_letter_state != "pending")
            )
            return job.state is SCHEDULED or ended

        return self._do(ids, may_retry, retry)

    def redrive(self, ids: Iterable[int] | None, force: bool = False) -> OperatorResult:
        return self._do(self._dead() if ids is None else ids, lambda job: self._may_redrive(job, force), self._redrive)

    def delete(self, ids: Iterable[int], force: bool = False) -> OperatorResult:
        def may_delete(job: ModelJob) -> bool:
            return job.state is not IN_FLIGHT and (force or job.dead_letter_state != "pending")

        return self._do(ids, may_delete, lambda job: self.forget([job.id]))

    def move(self, ids: Iterable[int], queue: str) -> OperatorResult:
        def move(job: ModelJob) -> None:
            job.row = job.row._replace(queue=queue)

        return self._do(ids, lambda job: job.state in (READY, SCHEDULED), move)

    def purge(self, force: bool = False) -> OperatorResult:
        return self.delete(self._dead(), force)

    def pause(self, queue: str, paused: bool) -> None:
        (self.paused.add if paused else self.paused.discard)(queue)

    def _do(
        self, ids: Iterable[int], may: Callable[[ModelJob], bool], change: Callable[[ModelJob], None]
    ) -> OperatorResult:
        asked = list(dict.fromkeys(ids))
        done = [id for id in asked if id in self.jobs and may(self.jobs[id])]
        for id in done:
            change(self.jobs[id])
        return done, [id for id in asked if id not in done]

    def _dead(self) -> list[int]:
        return [job.id for job in self.jobs.values() if job.dead_letter_state]

    def _may_redrive(self, job: ModelJob, force: bool) -> bool:
        return job.dead_letter_state == "delivered" or (force and job.dead_letter_state == "pending")

    def _redrive(self, job: ModelJob) -> None:
        job.state, job.tier, job.due_at, job.age = READY, Tier.FRESH, self.now, self.next_age()
        job.retries = job.expired_count = job.snoozes = 0
        job.snoozed_until = None
        job.started_at = job.finished_at = job.result = None
        if job.dead_letter:
            job.dead_letter.state = None

    # pruning

    def may_prune(self, ids: Sequence[int], retention: RetentionSettings, limit: int) -> bool:
        """As many as may be, of those past their time; never one with a pending dead letter."""
        past = {
            job.id
            for state in JobState
            if state.terminal and (kept := getattr(retention, state.value)) is not None
            for job in self.those(state)
            if job.finished_at is not None
            and job.finished_at <= self.after(-kept)
            and job.dead_letter_state != "pending"
        }
        return set(ids) <= past and len(ids) == min(limit, len(past))

    def forget(self, ids: Sequence[int]) -> None:
        for id in ids:
            del self.jobs[id]

    # queries

    def waiting(self, served: frozenset[str] | None) -> dict[str, Waiting]:
        found = {}
        for queue in {job.row.queue for job in self.those(READY)}:
            if queue not in self.paused and (served is None or queue in served):
                tiers = [job.tier for job in self.those(READY, queue=queue)]
                found[queue] = Waiting(tiers.count(Tier.FRESH), tiers.count(Tier.RETRY))
        return found

    def drop_sink(self, sink: str) -> int:
        waiting = [it.dead_letter for it in self.jobs.values() if it.dead_letter and sink in it.dead_letter.missing]
        for dead_letter in waiting:
            dead_letter.owed -= {sink}
            if not dead_letter.owed and not dead_letter.accepted:
                dead_letter.owed = frozenset().union(*self.sinks.values()) - {sink}
            if not dead_letter.missing:
                dead_letter.state = "delivered"
        return len(waiting)

    def sink_rows(self) -> dict[str, int]:
        """The number of dead letters that wait for each sink."""
        missing = [sink for job in self.jobs.values() if job.dead_letter for sink in job.dead_letter.missing]
        return {sink: missing.count(sink) for sink in missing}

    def remaining(self, owner: str, served: frozenset[str] | None, horizon: float | None) -> dict[str, int]:
        pending = [it.dead_letter for it in self.jobs.values() if it.dead_letter and it.dead_letter_state == "pending"]
        others = sum(self.sinks[owner] <= dead_letter.accepted for dead_letter in pending)
        left = {"dead_letters": len(pending) - others, "dead_letters_for_other_sinks": others}
        for job in self.those(SCHEDULED, READY, IN_FLIGHT):
            later = job.state is SCHEDULED and horizon is not None and job.due_at > self.after(horizon)
            if job.row.queue not in self.paused and (served is None or job.row.queue in served) and not later:
                left[job.state.value] = left.get(job.state.value, 0) + 1
        return {name: n for name, n in left.items() if n}

    def next_due(self) -> float | None:
        return min((max(0.0, (job.due_at - self.now) / 1e6) for job in self.those(SCHEDULED)), default=None)

    def queues(self) -> list[dict[str, Any]]:
        """The counts of `status --json`, by counting."""
        rows = []
        for queue in sorted({job.row.queue for job in self.jobs.values()} | self.paused):
            ready = [job.tier for job in self.those(READY, queue=queue)]
            rows.append({
                "queue": queue, "queue_size": ready.count(Tier.FRESH), "retry_queue_size": ready.count(Tier.RETRY),
                "blocked": 0, "scheduled": len(self.those(SCHEDULED, queue=queue)),
                "in_flight": len(self.those(IN_FLIGHT, queue=queue)),
                "failed": len(self.those(JobState.FAILED, queue=queue)),
                "paused": queue in self.paused, "processing": 0,
            })  # fmt: skip
        return rows


def _light(lease: Lease) -> Lease:
    return lease._replace(payload="", headers=None)


def iso(time: int | None) -> str | None:
    if time is None:
        return None
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time):%Y-%m-%dT%H:%M:%S.%fZ}"
