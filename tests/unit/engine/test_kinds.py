"""Jobs of async handlers are buffered apart from others, and claims fit the room of both kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.engine.claim_planner import ClaimPlanner
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.fairness import JobBuffers
from supervisor.engine.limits import DEFAULT_LIMITS
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Lease, Policy
from supervisor.plugins.reports import SourceReport
from supervisor.retry import SUSPECT
from supervisor.stores.records import Waiting
from supervisor.workers.run_times import RunTimes

INFOS = (HandlerInfo("sync", {}, "p.py", 1), HandlerInfo("nap", {}, "p.py", 2, is_async=True))


def lease(id: int, handler: str, queue: str = "default", expired_count: int = 0) -> Lease:
    return Lease(id, 1, handler, queue, "null", None, 0, 0, 0, 0, 0, Policy(), expired_count)


@pytest.fixture
def config() -> CurrentConfig:
    return CurrentConfig(Settings(), [SourceReport("p.py", INFOS)])


@pytest.fixture
def buffers(config: CurrentConfig) -> JobBuffers:
    return JobBuffers(config)


def planner(config: CurrentConfig, buffers: JobBuffers, *, idle: int, tasks: int) -> ClaimPlanner:
    group = SimpleNamespace(
        idle_count=lambda: idle, ready_count=lambda: idle, to_come=lambda: 0, times=RunTimes(), count=2,
    )  # fmt: skip
    pool: Any = SimpleNamespace(
        groups=dict.fromkeys(buffers.groups, group),
        async_workers=SimpleNamespace(room=lambda: tasks, times=RunTimes(), slots=range(20)),
    )  # fmt: skip
    dispatcher: Any = SimpleNamespace(stands_still=lambda buffers, seconds: False, with_retries=dict)
    return ClaimPlanner(pool, SimpleNamespace(bytes=0), buffers, dispatcher, config, DEFAULT_LIMITS)  # type: ignore[arg-type]


def ids(leases: Any) -> list[int]:
    return sorted(each.id for each in leases)


def test_each_kind_has_buffers_of_its_own(buffers: JobBuffers) -> None:
    buffers.add([lease(1, "sync"), lease(2, "nap"), lease(3, "nap")])
    buffers.requeue([lease(4, "nap"), lease(5, "sync")])
    assert (ids(buffers.of_sync.jobs()), ids(buffers.of_async.jobs())) == ([1, 5], [2, 3, 4])
    assert len(buffers) == 5
    assert ids(buffers.take_all()) == [1, 2, 3, 4, 5]
    assert len(buffers) == 0


def test_an_async_job_that_may_have_crashed_its_worker_waits_for_one_of_its_own(buffers: JobBuffers) -> None:
    buffers.add([lease(1, "nap", expired_count=SUSPECT), lease(2, "sync", expired_count=SUSPECT), lease(3, "nap")])
    assert (ids(buffers.suspects), ids(buffers.of_async.jobs()), ids(buffers.of_sync.jobs())) == ([1], [3], [2])
    assert len(buffers) == 3
    assert ids(buffers.take_out([lease(1, "nap"), lease(3, "nap")])) == [1, 3]
    assert buffers.suspects == []


def test_jobs_of_a_queue_are_taken_out_of_both_kinds(buffers: JobBuffers) -> None:
    buffers.add([lease(1, "sync", "a"), lease(2, "nap", "a"), lease(3, "nap", "b"), lease(4, "nap", "a", SUSPECT)])
    assert ids(buffers.take_queue("a")) == [1, 2, 4]
    assert ids(buffers.jobs()) == [3]


def test_a_reload_may_change_the_kind_of_a_handler(config: CurrentConfig, buffers: JobBuffers) -> None:
    buffers.add([lease(1, "sync"), lease(2, "nap")])
    config.replace(
        Settings(), [SourceReport("p.py", (HandlerInfo("sync", {}, "p.py", 1), HandlerInfo("nap", {}, "p.py", 2)))]
    )
    buffers.reconfigure()
    assert (ids(buffers.of_sync.jobs()), ids(buffers.of_async.jobs())) == ([1, 2], [])
    assert (buffers.async_queues, len(buffers)) == (set(), 2)


def test_the_room_is_that_of_both_kinds(config: CurrentConfig, buffers: JobBuffers) -> None:
    assert planner(config, buffers, idle=2, tasks=20).room(0) == 2 + 2 * 20
    buffers.add([lease(id, "nap") for id in range(15)])
    assert planner(config, buffers, idle=2, tasks=20).room(0) == 2 + 2 * 20 - 15
    assert planner(config, buffers, idle=0, tasks=7).room(0) == 0


def test_a_queue_of_one_kind_is_asked_for_no_more_than_that_kind_can_take(
    config: CurrentConfig, buffers: JobBuffers
) -> None:
    buffers.add([lease(1, "sync", "quick"), lease(2, "nap", "slow"), lease(3, "sync", "both"), lease(4, "nap", "both")])
    buffers.take_all()
    demand = planner(config, buffers, idle=2, tasks=20).demand(22)
    waiting = {queue: Waiting(100, 0) for queue in ("quick", "slow", "both")}
    asked = {request.queue: request.limit for request in demand.requests(waiting)}
    assert asked["quick"] == 2
    assert asked["slow"] > 2
    assert asked["both"] == 2


def test_a_full_kind_does_not_keep_the_queues_of_the_other_waiting(config: CurrentConfig, buffers: JobBuffers) -> None:
    buffers.add([lease(1, "sync", "quick"), lease(2, "nap", "slow")])
    buffers.take_all()
    full = planner(config, buffers, idle=2, tasks=0)
    requests = full.demand(full.room(0)).requests({"slow": Waiting(100, 0), "quick": Waiting(100, 0)})
    assert [(request.queue, request.limit) for request in requests] == [("quick", 2)]


def test_without_an_async_handler_there_is_one_kind(buffers: JobBuffers) -> None:
    config = CurrentConfig(Settings(), [SourceReport("p.py", INFOS[:1])])
    plain = JobBuffers(config)
    plain.add([lease(1, "sync"), lease(2, "unknown")])
    assert ids(plain.of_sync.jobs()) == [1, 2]
    assert planner(config, plain, idle=3, tasks=50).room(0) == 3
    assert planner(config, plain, idle=3, tasks=50).demand(1).limits == {}


def test_the_room_of_async_workers_goes_to_the_groups_whose_queues_have_had_async_jobs() -> None:
    groups = {"own": {"queues": ["slow", "quick"]}}
    config = CurrentConfig(Settings(workers={"groups": groups}), [SourceReport("p.py", INFOS)])
    buffers = JobBuffers(config)
    assert planner(config, buffers, idle=2, tasks=20).demand(44).groups[""].capacity == 2 + 2 * 20
    buffers.add([lease(1, "nap", "slow"), lease(2, "sync", "quick"), lease(3, "sync", "other")])
    assert (ids(buffers.of_async.jobs()), ids(buffers.groups["own"].jobs()), ids(buffers.of_sync.jobs())) == (
        [1],
        [2],
        [3],
    )
    buffers.take_all()
    both = planner(config, buffers, idle=2, tasks=20)
    assert both.room(0) == 2 + 2 + 2 * 20
    demand = both.demand(44)
    assert {name: part.capacity for name, part in demand.groups.items()} == {"": 2, "own": 2 + 2 * 20}
    waiting = {queue: Waiting(100, 0) for queue in ("slow", "quick", "other")}
    asked = {request.queue: request.limit for request in demand.requests(waiting)}
    assert asked == {"slow": 2 * 20, "quick": 2, "other": 2}
