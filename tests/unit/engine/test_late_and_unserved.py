"""Jobs that were claimed late, and reloads that take a queue out of `workers.queues` or change the number of workers."""

from __future__ import annotations

from supervisor.events import JobsReleased
from supervisor.plugins.reports import SourceReport
from supervisor.stores.records import ClaimRequest
from tests.unit.fakes import FakeBackend
from tests.unit.virtual import Virtual


def releases(here: Virtual) -> list[str]:
    return [event.reason for event in here.events if isinstance(event, JobsReleased)]


def reload(here: Virtual, *served: str, count: int | None = None) -> FakeBackend:
    workers = here.settings.workers.replace(queues=frozenset(served), count=count or here.settings.workers.count)
    infos = tuple(here.engine.config.handlers.values())
    backend = FakeBackend()
    here.engine.renew(here.settings.replace(workers=workers), backend, [SourceReport("work.py", infos)])
    return backend


def test_jobs_of_a_claim_that_came_late_start_at_once_here_if_a_worker_is_idle() -> None:
    here = Virtual()
    here.serve()
    (id,) = here.enqueue("work")
    here.store.claim([ClaimRequest("default", 1, 0, 0, 100)], 30.0, here.engine.config.resolve)
    for _ in range(10):
        here.engine.maintain("running")
    assert releases(here) == ["late claim"]
    assert here.process.start_next().id == id


def test_buffered_jobs_of_a_queue_that_a_reload_takes_out_are_released_at_once() -> None:
    here = Virtual()
    here.serve()
    for _ in range(3):
        here.enqueue("work")
        here.notify()
        here.process.run_next(took=0.001)
    theirs, ours = here.enqueue(*["work"] * 40, queue="theirs"), here.enqueue(*["work"] * 40)
    here.notify()
    assert {here.state(id) for id in [*theirs, *ours]} == {"in_flight"}
    running = here.process.start_next()
    new = reload(here, "default")
    left = [id for id in theirs if id != running.id]
    assert {here.state(id) for id in left} == {"ready"}
    assert {here.state(id) for id in ours if id != running.id} == {"in_flight"}
    assert "queue not served" in releases(here)
    for process in new.forked:
        process.come_up()
    assert here.process is not None


def test_jobs_of_a_claim_under_way_while_a_reload_takes_their_queue_out_are_released() -> None:
    here = Virtual()
    here.serve()
    here.writer.unavailable = True
    (id,) = here.enqueue("work", queue="theirs")
    here.notify()
    reload(here, "default")
    here.writer.unavailable = False
    here.writer.step()
    here.engine.maintain("running")
    assert here.state(id) == "ready"


def test_a_number_of_workers_set_by_signals_holds_until_a_reload_brings_another_count() -> None:
    here = Virtual()
    here.serve()
    here.engine.pool.resize(5)
    assert len(reload(here, "default").forked) == 5
    assert len(reload(here, "default", count=3).forked) == 3
