"""A store answers as the model does, whatever is done to it and wherever it is interrupted.

`SUPERVISOR_MODEL_EXAMPLES` is how many histories are tried of each store, and half as many on PostgreSQL, where each takes four
times as long; their length is fixed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from supervisor.config.settings import RetentionSettings
from supervisor.errors import StoreError
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy, Progress
from supervisor.retry import decide, expired_lease_outcome
from supervisor.stores.extras import shown_extras
from supervisor.stores.fencing import COUNT_BITS
from supervisor.stores.job_reports import JobReport, log_text, progress_text
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, DeadLetter, EnqueueRow, ExpiredLease
from tests.stores.factories import FACTORIES, SqliteFactory, StoreFactory, next_due, promote, put, waiting
from tests.stores.model import Model

EXAMPLES = int(os.environ.get("SUPERVISOR_MODEL_EXAMPLES", "30"))
STEPS = 30
TTL = 30.0
SINKS_OF = (("x",), ("x", "y"))
"""Of the two supervisors."""
RETENTION = RetentionSettings(succeeded=5.0, cancelled=None, failed=0.5)


def resolve(handler: str, queue: str) -> Policy:
    return Policy(max_retries=0 if handler == "once" else 2, timeout=5.0)


class Op(NamedTuple):
    """A method of the machine, and its arguments."""

    name: str
    arguments: Mapping[str, Any]


def op(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.just(name), st.fixed_dictionaries(arguments))


QUEUES = st.sampled_from(["a", "b"])
PICKS = st.lists(st.integers(0, 7), min_size=1, max_size=4)
IDS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
FEW = st.sampled_from([3, 2, 4, 1, 0])
ENDINGS = st.sampled_from(["failure", "rejected", "success", "at once", "released", "put off", "snoozed"])
ENQUEUE = op(
    "enqueue", queue=QUEUES, handler=st.sampled_from(["mail", "once"]), priority=st.integers(0, 3), n=st.integers(1, 3),
    delay=st.sampled_from([None, None, 5.0, -5.0]), max_retries=st.sampled_from([None, 0, 1]),
)  # fmt: skip
CLAIM = op(
    "claim", limit=FEW, first=FEW, most=FEW, urgent=st.integers(1, 4), queues=st.sampled_from(["ab", "ab", "a", "b"])
)  # fmt: skip
SETTLE = op("settle", picks=st.dictionaries(st.integers(0, 7), ENDINGS, min_size=1, max_size=4), twice=st.booleans())
OPERATIONS = st.one_of(
    CLAIM, CLAIM, CLAIM, SETTLE, SETTLE, SETTLE, ENQUEUE, ENQUEUE,
    op("step", seconds=st.sampled_from([1.0, 6.0, 31.0, -6.0, -100.0])),
    op("promote", limit=st.integers(1, 4)),
    op("extend", picks=PICKS, started=PICKS),
    op("keep_reports", picks=PICKS, parts=st.sampled_from(["both", "progress", "log"])),
    op("recover", meanwhile=st.sampled_from(["nothing", "extended", "settled"])),
    op("claim_dead_letters", limit=FEW), op("accept", picks=PICKS, sink=st.sampled_from(["x", "y"])),
    op("postpone", picks=PICKS), op("drop_sink", sink=st.sampled_from(["x", "y"])),
    op("change", command=st.sampled_from(["retry", "cancel"]), ids=IDS),
    op("change", command=st.sampled_from(["retry", "redrive", "delete"]), ids=IDS, force=st.booleans()),
    op("change", command=st.just("move"), ids=IDS, queue=QUEUES),
    op("redrive_all", force=st.booleans()),
    op("purge", force=st.booleans()),
    op("pause", queue=QUEUES, paused=st.booleans()),
    op("prune", limit=FEW), op("prune", limit=FEW),
)  # fmt: skip
SOME = st.lists(OPERATIONS, min_size=1, max_size=4)
SHARE = st.floats(0.0, 1.0)
REFUSED = op("settle_undecided", picks=PICKS)


class Saved(NamedTuple):
    """What the model was when a backup was made, and how many supervisors had joined by then."""

    model: Model
    lives: int


class Failed(Exception):
    """Raised to fail a transaction half way."""


class Machine(RuleBasedStateMachine):
    """Two supervisors at a store. `leases` and `dead_letters` are all that they ever got, the newest first."""

    factory_type: type[StoreFactory]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        (folder := Path(self.folder.name) / "at-first").mkdir()
        self.factory = self.factory_type(folder)
        self.model = Model(self.factory.clock, resolve)
        self.leases: list[Lease] = []
        self.dead_letters: list[Any] = []
        self.lives = 0
        self.owners: list[str] = ["", ""]
        self.stores: list[Store] = [self.join(0), self.join(1)]
        self.shown: dict[int, dict[str, Any]] = {}
        self.saved: Saved | None = None
        self.histories = 1

    def join(self, at: int) -> Store:
        self.lives += 1
        self.owners[at] = f"owner-{self.lives}"
        sinks = SINKS_OF[at]
        self.model.sinks[self.owners[at]] = frozenset(sinks)
        return self.factory.joined(self.owners[at], *sinks)

    # events

    @initialize()
    def fill(self) -> None:
        for queue in ("a", "b"):
            self.enqueue(self.stores[0], self.owners[0], n=4, queue=queue, handler="mail")

    @rule(at=st.integers(0, 1), ops=st.lists(OPERATIONS | REFUSED, min_size=1, max_size=6))
    def one_after_the_other(self, at: int, ops: Sequence[Op]) -> None:
        for op in ops:
            self.do(at, op)
            self.look(op)

    @rule(at=st.integers(0, 1), ops=SOME)
    def in_one_transaction(self, at: int, ops: Sequence[Op]) -> None:
        with self.stores[at].transaction():
            self.do_all(at, ops)
        self.look(*ops)

    @rule(at=st.integers(0, 1), ops=SOME)
    def in_a_transaction_that_fails(self, at: int, ops: Sequence[Op]) -> None:
        with self.undone(), suppress(Failed), self.stores[at].transaction():
            self.do_all(at, ops)
            raise Failed
        self.look()

    @rule(at=st.integers(0, 1), refused=REFUSED)
    def in_a_transaction_that_goes_on_after_a_refusal(self, at: int, refused: Op) -> None:
        if any(self.model.leased(lease) for lease in self.leases):
            with self.undone(), pytest.raises(StoreError, match="none of it is kept"), self.stores[at].transaction():
                self.do(at, refused)
                put(self.stores[at])
        self.look()

    @rule(at=st.integers(0, 1), killed=st.booleans())
    def a_supervisor_ends(self, at: int, killed: bool) -> None:
        if killed and self.factory.durable:
            self.factory.kill(self.stores[at])
        else:
            self.stores[at].leave()
        self.model.gone.add(self.owners[at])
        self.stores[at] = self.join(at)
        self.look()

    @precondition(lambda self: self.factory.durable)
    @rule(
        at=st.integers(0, 1),
        ops=SOME,
        when=st.sampled_from(["between", "in a transaction", "in a commit"]),
        written=SHARE,
    )
    def all_are_killed(self, at: int, ops: Sequence[Op], when: str, written: float) -> None:
        if when == "between":
            self.factory.crash()
        elif when == "in a commit" and isinstance(self.factory, SqliteFactory):
            self.crash_in_a_commit(self.factory, at, ops, written)
        else:
            with self.undone(), suppress(Failed), self.stores[at].transaction():
                self.do_all(at, ops)
                self.factory.crash()
                raise Failed
        self.start_again()

    def crash_in_a_commit(self, factory: SqliteFactory, at: int, ops: Sequence[Op], written: float) -> None:
        before = factory.moment()
        with self.undone() as put_back:
            with self.stores[at].transaction():
                self.do_all(at, ops)
            if factory.crash_in_the_commit_after(before, written):
                put_back.clear()

    def start_again(self) -> None:
        self.factory.restart()
        self.factory.check()
        self.model.gone.update(self.owners)
        self.stores = [self.join(0), self.join(1)]
        self.look()

    @precondition(lambda self: self.factory.durable)
    @rule()
    def a_backup_is_made(self) -> None:
        self.factory.save()
        self.saved = Saved(self.copied_model(), self.lives)

    @precondition(lambda self: self.saved is not None and self.saved.lives == self.lives)
    @rule(at=st.integers(0, 1), ops=SOME)
    def the_backup_is_restored(self, at: int, ops: Sequence[Op]) -> None:
        """Under supervisors that go on with the leases of the lost time. The random part of the fencing tokens does not return."""
        assert self.saved is not None
        self.do_all(at, ops)
        self.factory.go_back()
        self.repair()
        self.model, self.shown = self.saved.model, {}
        self.saved = Saved(self.copied_model(), self.lives)
        self.histories += 1
        part = self.model.random_part = self.histories << COUNT_BITS
        self.factory.random_part = lambda: part
        self.look()

    @precondition(lambda self: self.factory.durable)
    @rule(ids=IDS, change=st.sampled_from(["delete from {s}.jobs", "update {s}.jobs set queue = 'b'"]))
    def somebody_changes_rows_by_sql(self, ids: Sequence[int], change: str) -> None:
        known = [id for id in {self.model.last_id - id for id in ids} if id in self.model.jobs]
        if not change.startswith(
            "delete"
        ):  # the outcome of a job that is moved while it runs is counted where it was claimed
            known = [id for id in known if self.model.jobs[id].state is not JobState.IN_FLIGHT]
        self.repair()  # so that nothing of the stores is on its way
        for id in known:
            self.factory.sql(f"{change} where id = {id}")
            if change.startswith("delete"):
                self.model.forget([id])
            else:
                self.model.jobs[id].row = self.model.jobs[id].row._replace(queue="b")
        self.repair()
        self.look()

    def repair(self) -> None:
        """As supervisors do that have nothing to do."""
        for store in self.stores:
            store.repair()

    def copied_model(self) -> Model:
        model = deepcopy(self.model)
        model.clock = self.factory.clock
        return model

    @contextmanager
    def undone(self) -> Iterator[dict[str, Any]]:
        """Restore the model afterwards, and all that was given, unless that is cleared."""
        before = {"model": self.copied_model(), "leases": list(self.leases), "dead_letters": list(self.dead_letters)}
        yield before
        self.__dict__.update(before)

    def do_all(self, at: int, ops: Sequence[Op]) -> None:
        for op in ops:
            self.do(at, op)

    def do(self, at: int, op: Op) -> None:
        getattr(self, op.name)(self.stores[at], self.owners[at], **op.arguments)

    # the operations

    def enqueue(self, store: Store, owner: str, n: int, **options: Any) -> None:
        rows = [EnqueueRow(payload=str(index), **options) for index in range(n)]
        self.model.enqueue(store.enqueue(rows), rows)

    def step(self, store: Store, owner: str, seconds: float) -> None:
        self.factory.clock.step(seconds)

    def promote(self, store: Store, owner: str, limit: int) -> None:
        assert promote(store, limit) == self.model.promote(limit)

    def claim(self, store: Store, owner: str, limit: int, first: int, most: int, urgent: int, queues: str) -> None:
        takes = [ClaimRequest(queue, limit, min(first, most), most, urgent) for queue in queues]
        leases = store.claim(takes, TTL, resolve)
        assert leases == self.model.claim(owner, takes, TTL)
        self.leases = leases + self.leases

    def settle(self, store: Store, owner: str, picks: Mapping[int, str], twice: bool) -> None:
        endings = {lease.id: (lease, how) for at, how in picks.items() for lease in pick(self.leases, [at])}
        outcomes = [outcome(lease, how) for lease, how in endings.values()] * (1 + twice)  # of a job, one lease
        assert sorted(store.settle(outcomes)) == sorted(self.model.settle(owner, outcomes))

    def settle_undecided(self, store: Store, owner: str, picks: Sequence[int]) -> None:
        """A refused batch changes nothing, whatever else is in it."""
        worker_main = [lease for lease in self.leases if self.model.leased(lease)]
        undecided = [Outcome(lease, Kind.FAILED) for lease in worker_main[-1:]]
        if undecided:
            with pytest.raises(StoreError, match="decided"):
                store.settle([outcome(lease, "success") for lease in pick(worker_main[:-1], picks)] + undecided)

    def extend(self, store: Store, owner: str, picks: Sequence[int], started: Sequence[int]) -> None:
        leases, marks = pick(self.leases, picks), pick(self.leases, started)
        assert store.extend(leases, TTL, marks) == self.model.extend(leases, TTL, marks)

    def keep_reports(self, store: Store, owner: str, picks: Sequence[int], parts: str) -> None:
        reports = [
            JobReport(
                lease.id,
                lease.token,
                None if parts == "log" else progress_text(lease.attempt, Progress(len(self.leases), 7, "é")),
                None if parts == "progress" else log_text(lease.attempt, 2, ["a", "b\n"]),
            )
            for lease in {lease.id: lease for lease in pick(self.leases, picks)}.values()
        ]
        if reports:
            store.keep_reports(reports)
        self.model.keep_reports(reports)

    def recover(self, store: Store, owner: str, meanwhile: str) -> None:
        found = store.expired_leases(100)
        assert found == sorted(self.model.expired_leases(owner), key=attrgetter("place"))
        outcomes = [recovery(expired_leases) for expired_leases in found]
        leases = [expired_leases.lease for expired_leases in found[:1]]
        if meanwhile == "extended":
            assert store.extend(leases, 2 * TTL, []) == self.model.extend(leases, 2 * TTL, [])
        elif meanwhile == "settled":
            settled = [outcome(lease, "success") for lease in leases]
            assert store.settle(settled) == self.model.settle(owner, settled)
        assert sorted(store.recover(outcomes)) == sorted(self.model.recover(owner, outcomes))

    def claim_dead_letters(self, store: Store, owner: str, limit: int) -> None:
        dead_letters = store.claim_dead_letters(limit, TTL)
        assert self.model.may_offer(owner, dead_letters, limit)
        given = [
            (dead_letter.id, dead_letter.token, dead_letter.tries, dead_letter.accepted) for dead_letter in dead_letters
        ]
        assert given == self.model.claim_dead_letters(owner, dead_letters, TTL)
        assert [dead_letter.job for dead_letter in dead_letters] == [
            store.get(dead_letter.id) for dead_letter in dead_letters
        ]
        self.dead_letters = dead_letters + self.dead_letters

    def accept(self, store: Store, owner: str, picks: Sequence[int], sink: str) -> None:
        dead_letters = one_each(pick(self.dead_letters, picks))
        assert store.mark_accepted(dead_letters, sink) == self.model.mark_accepted(owner, dead_letters, sink)

    def postpone(self, store: Store, owner: str, picks: Sequence[int]) -> None:
        dead_letters = one_each(pick(self.dead_letters, picks))
        assert store.postpone(dead_letters, 3.0) == self.model.postpone(dead_letters, 3.0)

    def drop_sink(self, store: Store, owner: str, sink: str) -> None:
        assert store.drop_sink(sink) == self.model.drop_sink(sink)

    def change(self, store: Store, owner: str, command: str, ids: Sequence[int], **options: Any) -> None:
        ids = [self.model.last_id - id for id in ids]
        done, refused = getattr(store, command)(ids, **options)
        assert (list(done), list(refused)) == getattr(self.model, command)(ids, **options)

    def redrive_all(self, store: Store, owner: str, force: bool) -> None:
        done, refused = store.redrive(None, force)
        assert (list(done), list(refused)) == self.model.redrive(None, force)

    def purge(self, store: Store, owner: str, force: bool) -> None:
        done, refused = store.purge(force)
        assert (list(done), list(refused)) == self.model.purge(force)

    def pause(self, store: Store, owner: str, queue: str, paused: bool) -> None:
        store.pause(queue, paused)
        self.model.pause(queue, paused)

    def prune(self, store: Store, owner: str, limit: int) -> None:
        count = store.prune(RETENTION, limit)
        left = {job["id"] for job in store.list_jobs(limit=1000)}
        pruned = [id for id in self.model.jobs if id not in left]
        assert count == len(pruned)
        assert self.model.may_prune(pruned, RETENTION, limit)
        self.model.forget(pruned)

    # checks after each step

    def look(self, *ops: Op) -> None:
        """The jobs are those of the model, and are in no state that is never allowed."""
        redriven = any(op.name in ("change", "redrive_all") for op in ops)
        jobs = {job["id"]: job for job in self.stores[0].list_jobs(limit=1000)}
        assert [summary(job) for job in jobs.values()] == [job.shown() for job in reversed(self.model.jobs.values())]
        for id, job in jobs.items():
            assert job["max_retries"] is None or job["retries"] <= job["max_retries"]
            before = self.shown.get(id, job)
            if before["state"] in ("succeeded", "failed", "cancelled") and not redriven:
                assert (job["state"], job["errors"]) == (before["state"], before["errors"])
            assert job["dead_letter"] != "delivered" or job["state"] == "failed"
        self.shown = jobs

    @invariant()
    def every_answer_is_the_models(self) -> None:
        for store, owner in zip(self.stores, self.owners, strict=True):
            assert sorted(store.held()) == self.model.held(owner)
        store, owner = self.stores[-1], self.owners[-1]
        assert store.stats()["queues"] == self.model.queues()
        assert {
            row["sink"]: row["pending"] for row in store.stats()["sinks"] if row["pending"]
        } == self.model.sink_rows()
        assert store.paused() == self.model.paused
        assert next_due(store) == self.model.next_due()
        for served in (None, frozenset("a")):
            assert waiting(store, served) == self.model.waiting(served)
            assert store.remaining(served, None) == self.model.remaining(owner, served, None)
            assert store.remaining(served, store.clock() + 4.0) == self.model.remaining(owner, served, 4.0)

    def teardown(self) -> None:
        try:
            self.factory.check()
        finally:
            self.factory.close()
            self.folder.cleanup()


def one_each(dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """One claim of each job's dead letter: a batch comes of one claim, and stale ones are named by the job's id."""
    return list({dead_letter.id: dead_letter for dead_letter in dead_letters}.values())


def pick(things: Sequence[Any], picks: Sequence[int]) -> list[Any]:
    return [things[index % len(things)] for index in dict.fromkeys(picks)] if things else []


def outcome(lease: Lease, how: str) -> Outcome:
    """An outcome that `retry.decide` has decided."""
    failure = Failure(Cause.EXCEPTION, type="ValueError", message="no")
    outcome = {
        "success": Outcome(lease, Kind.SUCCEEDED, result='"done"', took=0.5),
        "failure": Outcome(lease, Kind.FAILED, failure=failure),
        "at once": Outcome(lease, Kind.FAILED, failure=failure, retry_after=0.0),
        "rejected": Outcome(lease, Kind.FAILED, failure=failure, retryable=False),
        "released": Outcome(lease, Kind.RELEASED),
        "put off": Outcome(lease, Kind.RELEASED, delay=5.0),
        "snoozed": Outcome(lease, Kind.SNOOZED, took=0.5, retry_after=5.0),
    }[how]
    return decide(outcome, lambda: 0.5, dead_letters=True)


def recovery(expired_leases: ExpiredLease) -> Outcome:
    found = expired_lease_outcome(
        expired_leases.lease,
        alone=expired_leases.started,
        deadline=expired_leases.deadline,
        message="its owner is gone",
    )
    return decide(found, lambda: 0.5, dead_letters=True)


EXTRAS = {*shown_extras(None), "expires_at", "key_held_by", "parents", "children"}


def summary(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the model knows of a job: it has none with extras."""
    known = {name: value for name, value in job.items() if name not in EXTRAS}
    return {**known, "errors": [(error["attempt"], error["cause"]) for error in job["errors"]]}


@pytest.mark.timeout(900)  # a history that fails is made short before it is reported
@pytest.mark.parametrize("name", FACTORIES)
def test_a_store_keeps_the_promises_of_the_model(name: str) -> None:
    machine = type(f"{name.capitalize()}Machine", (Machine,), {"factory_type": FACTORIES[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES if name != "postgresql" else (EXAMPLES + 1) // 2,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
