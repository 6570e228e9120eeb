"""Async workers: what their slots report together, and what becomes of jobs that wait for a worker of their own."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.events import Bus
from supervisor.jobs import Lease, Policy
from supervisor.workers.async_workers import AsyncWorkers
from supervisor.workers.gathered_outcomes import GatheredOutcomes
from supervisor.workers.run_times import RunTimes
from supervisor.workers.slot import Limits

LEASE = Lease(7, 1, "nap", "default", "null", None, 0, 0, 0, 0, 0, Policy(), 2)


class Listener:
    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.reclaimed: list[Lease] = []
        self.changes = 0

    def jobs_ended(self, outcomes: list[Any]) -> None:
        self.ended.append(outcomes)

    def jobs_reclaimed(self, leases: list[Lease]) -> None:
        self.reclaimed += leases

    def job_wrote(self, lease: Lease, written: Any) -> None: ...

    def workers_changed(self) -> None:
        self.changes += 1

    def plugins_reported(self, reports: Any) -> None: ...


class Timer:
    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Any, *args: Any) -> None:
        self.later.append((delay, callback, args))


class NoChannels:
    def fork(self, number: int, listener: Any, concurrency: int = 0) -> Any:
        raise OSError(24, "Too many open files")


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def workers(listener: Listener) -> AsyncWorkers:
    workers = AsyncWorkers(Bus(), Timer(), count(1))
    workers.open(NoChannels(), listener)  # type: ignore[arg-type]
    return workers


def test_outcomes_that_come_together_are_passed_on_together(listener: Listener) -> None:
    gathered = GatheredOutcomes(listener, RunTimes())
    with gathered.gathered():
        gathered.jobs_ended(["one"])  # type: ignore[list-item]
        gathered.workers_changed()
        with gathered.gathered():
            gathered.jobs_ended(["two"])  # type: ignore[list-item]
        gathered.jobs_ended(["three"])  # type: ignore[list-item]
        assert (listener.ended, listener.changes) == ([], 0)
    assert (listener.ended, listener.changes) == ([["one", "two", "three"]], 1)


def test_a_job_that_can_get_no_worker_of_its_own_is_given_back_later(workers: AsyncWorkers, listener: Listener) -> None:
    assert workers.run_apart([LEASE]) == []
    assert listener.reclaimed == []
    ((delay, callback, args),) = workers._timer.later  # type: ignore[attr-defined]
    callback(*args)
    assert (delay, listener.reclaimed) == (1.0, [LEASE])


def test_at_the_end_it_is_given_back_at_once(workers: AsyncWorkers, listener: Listener) -> None:
    workers.run_apart([LEASE])
    workers.stop()
    assert listener.reclaimed == [LEASE]
    workers.run_apart([LEASE])
    assert listener.reclaimed == [LEASE, LEASE]


@pytest.mark.parametrize(("size", "replaced"), [(100, False), (105, False), (120, True)])
def test_a_worker_is_replaced_for_its_memory_only_if_that_has_grown(
    workers: AsyncWorkers, monkeypatch: pytest.MonkeyPatch, size: int, replaced: bool
) -> None:
    retired: list[Any] = []
    monkeypatch.setattr(workers, "_retire", retired.append)
    workers.limits = Limits(None, 50)
    process = SimpleNamespace(memory=lambda: size)
    worker: Any = SimpleNamespace(
        max_jobs=None, done=1, leaving=False, process=process, memory_at_start=100, memory_due=0.0
    )
    workers.job_done(worker)
    assert bool(retired) is replaced


def test_the_jobs_of_a_worker_that_has_crashed_run_in_ten_groups_each_in_a_worker_of_its_own(
    workers: AsyncWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[list[Any]] = []

    def fork(backend: Any, concurrency: int, ahead: int) -> Any:
        worker = SimpleNamespace(leaving=False, apart=False)
        slots = [SimpleNamespace(worker=worker, sole=None) for _ in range(concurrency)]
        workers.workers.append(worker)  # type: ignore[arg-type]
        forked.append(slots)
        return slots[0]

    monkeypatch.setattr(workers, "_fork", fork)
    monkeypatch.setattr(workers, "_slots_of", lambda worker: next(it for it in forked if it[0].worker is worker))
    reloaded: Any = SimpleNamespace(leaving=True, apart=False)  # they run long jobs, and keep none of these waiting
    workers.workers += [reloaded] * 20
    assert workers.run_apart([LEASE._replace(id=id) for id in range(100)]) == []
    assert [[slot.sole.id for slot in slots] for slots in forked] == [[*range(n, n + 10)] for n in range(0, 100, 10)]
    assert workers.run_apart([LEASE._replace(id=id) for id in range(11)]) == []
    assert [len(slots) for slots in forked[10:]] == [2] * 5 + [1]
    assert len(workers.run_apart([LEASE] * 9)) == 5, "no more than 20 such workers at once"
