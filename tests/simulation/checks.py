"""The promises that must hold after every commit and every start of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.engine.watchdog import GAP
from supervisor.jobs import Cause, JobState, Kind, Lease, Outcome
from supervisor.retry import SOLE_SUSPECT
from supervisor.stores.records import DeadLetter
from supervisor.workers.blame import KillReason
from tests.simulation.promises import holds
from tests.simulation.turns import Turns

LIMIT_OF_A, LIMIT_OF_SLOW = 3, 1
"""The jobs that may be in flight at once in half of the histories: of queue a, and of the handler slow."""

if TYPE_CHECKING:
    from tests.simulation.owner import Owner
    from tests.simulation.world import World

WAITING, IN_FLIGHT, GONE = "waiting", "in_flight", "gone"
TERMINAL = ("succeeded", "failed", "cancelled")
CUT_SHORT = (Cause.CRASH, Cause.TIMEOUT, Cause.HEARTBEAT_LOST)

LATE = 0.5  # seconds, for an outcome before it that was read late
SLOW = 0.5  # seconds, at most, between two jobs of a worker, which count for the second
MAX_SNOOZES = 2
ENDS = {Cause.EXCEPTION: ("failed", "retry", "snoozed"), Cause.REJECTED: ("rejected",)}


@dataclass(eq=False)
class Run:
    """One start of a job by a worker. `end` is how its script ended ("ok", "failed", ...), "cut" if the worker was killed or
    exited, "vanished" if its owner was killed; None while it runs."""

    id: int
    token: int
    owner: int
    process: int
    since: float
    timeout: float | None
    stood: float  # seconds its owner had stood still by then
    gaps: int  # how often its owner had stood still
    end: str | None = None
    reason: KillReason | None = None  # if its worker was killed
    settled: bool = False


@dataclass(eq=False)
class Record:
    """The expected state of a job in the store."""

    id: int
    handler: str
    queue: str
    max_retries: int
    since: float
    delay: float  # from then on
    state: str = WAITING
    token: int = 0
    bumped: bool = False
    retries: int = 0
    snoozes: int = 0
    owner: int = 0
    unanswered: int = 0  # the token of a claim whose answer was lost
    settled: int = 0  # the token under which it was settled last
    lost: set[int] = field(default_factory=set)  # tokens that ended without their owner
    runs: list[Run] = field(default_factory=list)
    owed: set[str] = field(default_factory=set)  # the sinks that must get its dead letter


class Checks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.records: dict[int, Record] = {}
        self.runs: dict[tuple[int, int], Run] = {}
        self.count: Counter[str] = Counter()
        self.turns = Turns()
        self._without_lease: dict[tuple[int, int], float] = {}
        self._stuck: dict[tuple[int, int], tuple[int, int, int]] = {}

    # events

    def accepted_job(self, record: Record) -> None:
        self.records[record.id] = record
        self.count["jobs"] += 1

    def started(self, owner: Owner, process: int, lease: Lease) -> Run:
        record = self.records[lease.id]
        key = (lease.id, lease.token)
        holds(key not in self.runs, "started twice under one lease:", lease)
        holds(lease.token == record.token or lease.token in record.lost, "started without a lease:", lease, record)
        for other in record.runs:
            running = other.end is None
            holds(not running or other.token in record.lost, "runs twice at once:", lease, other, record)
        run = Run(*key, owner.number, process, self._world.clock.now, lease.policy.timeout, owner.stood, owner.gaps)
        self.runs[key] = run
        record.runs.append(run)
        self.count["runs"] += 1
        return run

    def killed(self, owner: Owner, run: Run, reason: KillReason, silent: bool) -> None:
        run.reason = reason
        ran = self._world.clock.now - run.since - (owner.stood - run.stood)
        undisturbed = owner.excused_until < run.since
        if reason.cause is Cause.TIMEOUT:
            assert run.timeout is not None
            gaps = max(1, owner.gaps - run.gaps)  # the watchdog does not notice short ones
            least = run.timeout - (SLOW if undisturbed else gaps * (GAP + self._world.limits.watch))
            holds(ran > least, f"killed after {ran:g}s:", run)
            holds(ran < run.timeout + LATE or not undisturbed, f"killed {ran - run.timeout:g}s too late:", run)
        elif reason.cause is Cause.HEARTBEAT_LOST:
            holds(silent or not undisturbed, "killed although it sent heartbeats:", run)
        self.count[f"killed: {reason.name}"] += 1

    def committed(self, owner: Owner, done: Sequence[tuple[str, Any, Any]]) -> None:
        self.count["commits"] += 1
        for name, arguments, result in done:
            getattr(self, f"_{name}")(owner, arguments, result)

    def unanswered(self, done: Sequence[tuple[str, Any, Any]]) -> None:
        """Its owner does not know what it has claimed, until it checks its leases."""
        for name, _, result in done:
            if name == "claim":
                for lease in result:
                    self.records[lease.id].unanswered = lease.token

    def _claim(self, owner: Owner, _: Any, leases: Sequence[Lease]) -> None:
        for lease in leases:
            record = self.records[lease.id]
            holds(record.state == WAITING, "claimed although it is", record.state, lease)
            grown = lease.token - record.token
            holds(grown == 1 or (record.bumped and grown > 1), "the token did not grow by one:", lease, record)
            holds(lease.retries == record.retries, "claimed with other retries:", lease, record)
            holds(record.queue not in self._world.paused, "claimed from a paused queue:", lease)
            record.state, record.token, record.bumped, record.owner = IN_FLIGHT, lease.token, False, owner.number
        if self._world.limited:
            self._keeps_to_the_limits()

    def _keeps_to_the_limits(self) -> None:
        in_flight = [*self._world.client.list_jobs(state=JobState.IN_FLIGHT, brief=True)]
        of_a = sum(job["queue"] == "a" for job in in_flight)
        slow = sum(job["handler"] == "slow" for job in in_flight)
        holds(of_a <= LIMIT_OF_A and slow <= LIMIT_OF_SLOW, "more are in flight than the limits allow:", of_a, slow)
        self.count["claims under limits"] += 1

    def _settle(self, owner: Owner, arguments: Any, stale: Sequence[int]) -> None:
        for outcome in arguments[0]:
            if outcome.lease.id in set(stale):
                self.count["stale"] += 1
            else:
                self._settled(owner, outcome)

    def _settled(self, owner: Owner, outcome: Outcome) -> None:
        lease = outcome.lease
        record = self.records[lease.id]
        if record.state != IN_FLIGHT or record.token != lease.token:
            holds(record.settled == lease.token, "a stale outcome was taken:", outcome, record)
            return
        holds(record.owner == owner.number, "settled by another than its owner:", outcome, record)
        self._agrees_with_its_run(owner, outcome)
        self._change_state(owner, record, outcome)

    def _agrees_with_its_run(self, owner: Owner, outcome: Outcome) -> None:
        run = self.runs.get((outcome.lease.id, outcome.lease.token))
        cause = outcome.failure.cause if outcome.failure else None
        if outcome.kind is Kind.SUCCEEDED:
            holds(run and run.end == "ok", "succeeded without having done its work:", outcome, run)
        elif outcome.kind is Kind.SNOOZED:
            holds(run and run.end == "snoozed", "snoozed although it did not ask for it:", outcome, run)
            holds(not outcome.counted, "a snooze was counted as a retry:", outcome)
        elif outcome.kind is Kind.RELEASED:
            holds(run is None or owner.ending, "released although it was started:", outcome, run)
        elif cause in CUT_SHORT:
            holds(run and run.end == "cut", "blamed for an end that was not its own:", outcome, run)
            expected = (
                run.reason.cause if run and run.reason else cause
            )  # it died of itself, perhaps while it was to be killed
            holds(cause is expected, "blamed for another reason:", outcome, run)
        elif cause in ENDS:
            holds(run and run.end in ENDS[cause], "failed otherwise than it did:", outcome, run)
        elif cause is Cause.UNKNOWN_HANDLER:
            holds(run is None, "unknown although it was started:", outcome, run)

    def _recover(self, owner: Owner, arguments: Any, stale: Sequence[int]) -> None:
        for outcome in arguments[0]:
            if outcome.lease.id in set(stale):
                self.count["stale recoveries"] += 1
                continue
            record = self.records[outcome.lease.id]
            if record.settled == outcome.lease.token and record.state != IN_FLIGHT:
                continue  # recovered twice, since the first answer was lost
            holds(
                record.state == IN_FLIGHT and record.token == outcome.lease.token, "recovered wrongly:", outcome, record
            )
            unanswered = record.unanswered == record.token
            holds(
                unanswered or self._world.may_lose_leases(record.owner), "a live lease was taken over:", outcome, record
            )
            if outcome.counted or outcome.state is JobState.FAILED:
                suspected = outcome.lease.expired_count >= SOLE_SUSPECT
                holds(suspected, "counted although it was no sole suspect:", outcome, record)
                with_it = [run for run in self.runs.values() if (run.owner, run.end) == (record.owner, "vanished")]
                holds(
                    {run.id for run in with_it} <= {record.id},
                    "counted although others ran beside it:",
                    record,
                    with_it,
                )
            record.lost.add(record.token)
            self._change_state(owner, record, outcome)
            self.count["recovered"] += 1

    def _change_state(self, owner: Owner, record: Record, outcome: Outcome) -> None:
        run = self.runs.get((record.id, record.token))
        if run is not None:
            run.settled = True
        record.settled = record.token
        record.retries += outcome.counted
        holds(record.retries <= record.max_retries, "retried beyond its limit:", outcome, record)
        if outcome.kind is Kind.SNOOZED:
            record.snoozes += 1
            holds(record.snoozes <= MAX_SNOOZES, "snoozed beyond its limit:", outcome, record)
            self.count["snoozes"] += 1
        elif run is not None and run.end == "snoozed" and outcome.kind is Kind.FAILED:
            refused = outcome.failure is not None and outcome.failure.cause is Cause.REFUSED
            holds(refused or record.snoozes == MAX_SNOOZES, "its snooze has failed before its limit:", outcome, record)
        if outcome.counted:
            holds(outcome.state is JobState.SCHEDULED, "counted but not scheduled:", outcome)
            self.count["retries"] += 1
        state = str(outcome.state)
        record.state = state if state in TERMINAL else WAITING
        record.since, record.delay = self._world.clock.now, outcome.delay
        self.count[record.state] += record.state in TERMINAL
        record.owed = set(owner.sinks)

    def _claim_dead_letters(self, owner: Owner, arguments: Any, dead_letters: Sequence[DeadLetter]) -> None:
        for dead_letter in dead_letters:
            holds(
                self.records[dead_letter.id].state == "failed",
                "a dead letter of a job that has not failed:",
                dead_letter.id,
            )
            holds(not set(owner.sinks) <= dead_letter.accepted, "claimed in vain:", owner, dead_letter.id)
            self.records[dead_letter.id].owed.update(owner.sinks)

    def _mark_accepted(self, owner: Owner, arguments: Any, stale: Sequence[int]) -> None:
        dead_letters, sink = arguments
        for dead_letter in dead_letters:
            known = dead_letter.id in self._world.taken[sink] or sink in dead_letter.accepted
            holds(known or dead_letter.id in stale, "accepted by a sink that has it not:", dead_letter.id, sink)

    def dropped(self, sink: str) -> None:
        for record in self.records.values():
            record.owed.discard(sink)

    def operated(self, command: str, changed: Sequence[int]) -> None:
        for id in changed:
            record = self.records[id]
            record.bumped = True
            if record.state == IN_FLIGHT:
                record.lost.add(record.token)
                record.token += 1
            if command == "cancel":
                holds(record.state not in TERMINAL, "cancelled after its end:", record)
                record.state = "cancelled"
            elif command == "delete":
                holds(record.state != IN_FLIGHT, "deleted in flight:", record)
                record.state = GONE
            elif record.state in TERMINAL:
                record.state, record.retries, record.snoozes = WAITING, 0, 0
                for sink in self._world.taken.values():
                    sink.discard(id)
            record.since, record.delay = self._world.clock.now, 0.0

    def left_orderly(self, owner: Owner) -> None:
        """An owner that was not forced to end has settled all that it ran, but for what the store refuses: its exit code is 1 then."""
        refused = owner.engine.committer._refused
        for (id, token), run in self.runs.items():
            if run.owner == owner.number and token not in self.records[id].lost:
                holds(run.settled or (id, token) in refused, "it ended and left unsettled:", owner, run)

    # checked at intervals

    def store_agrees(self, store: Any) -> None:
        """The jobs in the store are as recorded, and its counts are right."""
        jobs = {job["id"]: job for job in store.list_jobs(limit=1_000_000)}
        counted: Counter[tuple[str, str]] = Counter()
        for id, job in jobs.items():
            record = self.records[id]
            state = job["state"] if job["state"] not in ("ready", "scheduled", "blocked") else WAITING
            holds(state == record.state, "state in the store:", job["state"], record)
            holds(job["retries"] == record.retries, "retries in the store:", job["retries"], record)
            holds(job["snoozes"] == record.snoozes, "snoozes in the store:", job["snoozes"], record)
            if state == "succeeded":
                report = job["progress"]
                holds(
                    report and report["message"] == str(record.settled) and report["done"] == id % 2,
                    "its last progress in the store:", report, record,
                )  # fmt: skip
            kind = "retry_queue_size" if job["state"] == "ready" and job["retries"] else job["state"]
            counted[job["queue"], {"ready": "queue_size"}.get(kind, kind)] += 1
        for id, record in [*self.records.items()]:
            if id not in jobs:
                holds(record.state in (*TERMINAL, GONE), "gone from the store:", record)
                self._forget(record)
        for row in store.stats()["queues"]:
            for what in ("queue_size", "retry_queue_size", "scheduled", "in_flight", "failed"):
                counts = counted[row["queue"], what]
                holds(row[what] == counts, "the store counts", row[what], what, "instead of", counts)

    def _forget(self, record: Record) -> None:
        del self.records[record.id]
        for run in record.runs:
            self._resolved(run, record)
            del self.runs[run.id, run.token]
            self._without_lease.pop((run.id, run.token), None)

    def no_job_runs_too_long(self) -> None:
        """No job runs past its timeout, or without its lease."""
        for owner in self._world.owners:
            for process in owner.backend:
                if process.run is not None and owner.alive and not owner.frozen:
                    self._may_run(owner, process.run)

    def _may_run(self, owner: Owner, run: Run) -> None:
        now = self._world.clock.now
        ran = now - run.since - (owner.stood - run.stood)
        holds(run.timeout is None or ran <= run.timeout + 15.0, f"runs for {ran:g}s:", run)
        if self.records[run.id].token != run.token and owner.well and now > owner.excused_until:
            since = self._without_lease.setdefault((run.id, run.token), now)
            holds(now - since <= self._world.longest_period * 2 + 3.0, "runs on without its lease:", run)

    def _is_limited(self, record: Record) -> bool:
        return self._world.limited and (record.queue == "a" or record.handler == "slow")

    def no_worker_idles(self) -> None:
        """A ready job has waited since the look before last, and all the while the same worker had nothing to do."""
        waiting = [
            record for record in self.records.values() if self._has_waited(record) and not self._is_limited(record)
        ]
        for owner in self._world.owners:
            for worker in owner.pool.workers.values() if owner.started else ():
                oldest = self._oldest_for(owner, waiting, worker.pool.name) if owner.well else None
                key = (owner.number, worker.number)
                idle = worker.state.name == "READY" and not worker.sent
                if oldest is None or not idle or not worker.process.up:
                    self._stuck.pop(key, None)
                    continue
                done, job, looks = self._stuck.get(key, (worker.done, oldest, 0))
                same = (done, job) == (worker.done, oldest)
                self._stuck[key] = (worker.done, oldest, looks + 1 if same else 0)
                holds(not same or looks < 3, "idles although a job waits:", owner, worker.number, self.records[oldest])

    def _has_waited(self, record: Record) -> bool:
        """Return whether this job has been ready for a while; where clocks are set, no job that was to come due is."""
        world = self._world
        if record.state != WAITING or record.queue == "strange" or record.queue in world.paused:
            return False
        come_due = not record.delay or world.keeps_time
        return come_due and world.clock.now - record.since - record.delay > world.noticed_after

    def _oldest_for(self, owner: Owner, records: Sequence[Record], group: str) -> int | None:
        served, group_of = owner.settings.workers.queues, owner.engine.config.group_of
        return next(
            (
                record.id
                for record in records
                if (served is None or record.queue in served) and group_of.get(record.queue, "") == group
            ),
            None,
        )

    # at the end

    def all_ended(self) -> None:
        open_jobs = [record for record in self.records.values() if record.state not in (*TERMINAL, GONE)]
        holds(not open_jobs, f"{len(open_jobs)} jobs never ended:", open_jobs[:3])

    def nothing_was_lost(self) -> None:
        for record in self.records.values():
            for run in record.runs:
                self._resolved(run, record)
            if record.state == "succeeded":
                done = any(run.end == "ok" and run.settled for run in record.runs)
                holds(done, "succeeded without its effect:", record)
            if record.state == "failed":
                taken = self._world.taken
                for name in record.owed:
                    holds(record.id in taken[name], f"the sink {name} never had the dead letter of", record)
                holds(any(record.id in ids for ids in taken.values()), "no sink ever had the dead letter of", record)

    def _resolved(self, run: Run, record: Record) -> None:
        excused = run.settled or run.end == "vanished" or run.token in record.lost or run.owner in self._world.ended
        holds(excused, "what became of a run was never settled:", run, record)
