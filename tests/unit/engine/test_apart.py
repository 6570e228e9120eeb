"""Jobs of async handlers that run apart, since they may have crashed a worker or ended a supervisor: until their worker has started,
they wait like any others."""

from __future__ import annotations

from typing import Any

from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from tests.unit.fakes import FakeWorker
from tests.unit.virtual import Virtual
from tests.unit.workers.test_sent_ahead import Jobs


class Async(Virtual):
    """A supervisor with the async handler `nap`, whose job 1 waits for the start of a worker of its own."""

    def __init__(self, **row: Any) -> None:
        super().__init__()
        info = HandlerInfo("nap", {}, "nap.py", 1, is_async=True)
        self.engine.config.replace(self.settings, [SourceReport("nap.py", (info,))])
        fork = self.backend.fork

        def fork_async(number: int, listener: Any, concurrency: int = 0) -> FakeWorker:
            process = fork(number, listener)
            process.async_jobs = Jobs()  # type: ignore[attr-defined]
            return process

        self.backend.fork = fork_async  # type: ignore[method-assign,assignment]
        self.serve()
        known = len(self.backend.forked)
        (self.id,) = self.enqueue("nap", **row)
        self.lose(self.id)
        self.loop.advance(0.001)
        assert len(self.backend.forked) == known + 1
        self.starting = self.backend.forked[-1]

    def sent(self) -> list[int]:
        return [lease.id for slot in self.pool.async_workers.slots for lease in slot.sent]


def test_a_job_that_was_cancelled_while_its_worker_starts_is_not_run() -> None:
    here = Async()
    assert len(here.engine.leases) == 1
    here.store.cancel([here.id])
    here.loop.create_task(here.engine.lease_keeper.check())
    here.starting.come_up()
    here.loop.advance(1.0)
    assert (here.sent(), here.starting.retired) == ([], True)


def test_its_timeout_ends_in_time() -> None:
    here = Async(timeout=0.2)
    here.loop.advance(1.05)  # the watchdog has just looked
    here.starting.come_up()
    assert here.sent() == [here.id]
    killed: list[Any] = []
    here.pool.kill = lambda slot, reason, with_stack=False: killed.append(here.loop.time())  # type: ignore[method-assign]
    began = here.loop.time()
    for _ in range(20):
        here.loop.advance(0.05)
        if killed:
            break
    assert killed[0] - began <= 0.3
