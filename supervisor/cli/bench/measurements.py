"""What `supervisor bench` measures."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from supervisor.cli.bench import handlers as bench_handlers
from supervisor.cli.bench.handlers import NOOP, STAMP
from supervisor.cli.bench.interrupts import Interrupts
from supervisor.cli.bench.own_store import OwnStore
from supervisor.cli.bench.supervisor_process import ForkedSupervisor, SupervisorEnded, forked_supervisor
from supervisor.client.client import Client
from supervisor.config.settings import DEFAULT_QUEUE, DlqSettings, Settings
from supervisor.jobs import NewJob

BULK = 100_000  # jobs in one call of enqueue_many
ONE_BY_ONE = 2_000  # at most
ONE_BY_ONE_SECONDS = 3.0  # a disk may take long for each sync
LATENCIES = 300  # at most
LATENCIES_SECONDS = 30.0  # a store that nobody is woken by is polled
PAUSE = 0.005  # seconds between two of them, so that each finds everybody idle
LARGEST = 10_000  # bytes of payload: the path of a pipe
TIMEOUT = 60.0  # seconds
QUIET = ("warning", "error")


def harmless(settings: Settings) -> Settings:
    """Nobody outside hears of the benchmark's jobs: no plugin of the user's, no sink. None of them is too large, either."""
    level = settings.log.level if settings.log.level in QUIET else QUIET[0]
    return settings.replace(
        plugins=settings.plugins.replace(paths=(bench_handlers.__name__,)),
        handlers={},
        dlq=DlqSettings(),
        limits=settings.limits.replace(payload=max(settings.limits.payload, LARGEST)),
        log=settings.log.replace(level=level),
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """The rows, in the order in which they are measured: what is enqueued is then drained. `settings` are those of the own
    store, made harmless."""

    settings: Settings
    own: OwnStore
    jobs: int
    interrupts: Interrupts

    def heading(self) -> str:
        about = self.about()
        return (
            f"{self.jobs:,} jobs that do nothing, {about['workers']} workers, {about['cpus']} CPUs; "
            f"{self.own.place}, synchronous={about['synchronous']}"
        )

    def about(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "workers": self.settings.workers.count,
            "cpus": len(os.sched_getaffinity(0)),
            "synchronous": self.own.synchronous,
        }

    def rows(self, echo: Callable[[str], None] | None) -> Iterator[tuple[str, Any]]:
        output = echo or (lambda text: None)
        with Client(self.settings, create=True) as client:
            one_by_one, alone = self._enqueue_one_by_one(client)
            output(f"enqueue one by one   {one_by_one:>9,.0f} jobs/s")
            yield "enqueue_per_second", round(one_by_one, 1)
            in_bulk = self._enqueue_in_bulk(client)
            output(f"enqueue in bulk      {in_bulk:>9,.0f} jobs/s")
            yield "enqueue_many_per_second", round(in_bulk, 1)
        drained = self._drain(alone + self.jobs)
        output(f"drain                {drained:>9,.0f} jobs/s")
        yield "drain_per_second", round(drained, 1)
        latencies = sorted(self._idle_latencies())
        middle, late = statistics.median(latencies), latencies[int(0.99 * len(latencies))]
        output(f"latency when idle    {middle:>9,.1f} ms p50, {late:,.1f} ms p99, from enqueue to the handler's start")
        yield "idle_latency_ms", {"p50": round(middle, 3), "p99": round(late, 3), "samples": len(latencies)}

    def _new_job(self, handler: str, payload: Any) -> NewJob:
        served = self.settings.workers.queues
        return NewJob(handler, payload, queue=min(served) if served else DEFAULT_QUEUE, max_retries=0)

    def _enqueue_one_by_one(self, client: Client) -> tuple[float, int]:
        """Jobs per second, and how many were enqueued."""
        queue = self._new_job(NOOP, None).queue
        most = min(self.jobs, ONE_BY_ONE)
        done, began = 0, time.monotonic()
        while done < most and time.monotonic() - began < ONE_BY_ONE_SECONDS:
            self.interrupts.check()
            client.enqueue(NOOP, {"n": done}, queue=queue, max_retries=0)
            done += 1
        return done / (time.monotonic() - began), done

    def _enqueue_in_bulk(self, client: Client) -> float:
        spent = 0.0
        for start in range(0, self.jobs, BULK):
            batch = [self._new_job(NOOP, {"n": n}) for n in range(start, min(start + BULK, self.jobs))]
            self.interrupts.check()
            began = time.monotonic()
            client.enqueue_many(batch)
            spent += time.monotonic() - began
        return self.jobs / spent

    def _drain(self, waiting: int) -> float:
        with forked_supervisor(self.settings, self.interrupts.wait, drain=True) as supervisor:
            supervisor.hear(TIMEOUT)
            report = supervisor.hear()
        if report["succeeded"] != waiting:
            raise SupervisorEnded(f"{report['succeeded']:,} of {waiting:,} jobs succeeded")
        return waiting / float(report["seconds"])

    def _idle_latencies(self) -> Iterator[float]:
        """Milliseconds; the first, for which everybody had to wake up, is left out."""
        path = self.own.folder / "stamps"
        os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR)  # writing too, so that it doesn't end when a handler closes it
        job = self._new_job(STAMP, str(path))
        try:
            with forked_supervisor(self.settings, self.interrupts.wait) as supervisor, Client(self.settings) as client:
                supervisor.hear(TIMEOUT)
                until = time.monotonic() + LATENCIES_SECONDS
                for number in range(min(self.jobs, LATENCIES) + 1):
                    if number > 1 and time.monotonic() > until:
                        break
                    before = time.monotonic_ns()
                    client.enqueue_many([job])
                    started = self._read_stamp(pipe, supervisor)
                    if number:
                        yield (started - before) / 1e6
                    time.sleep(PAUSE)
                supervisor.stop()
        finally:
            os.close(pipe)

    def _read_stamp(self, pipe: int, supervisor: ForkedSupervisor) -> int:
        ready = self.interrupts.wait([pipe, supervisor.shown], TIMEOUT)
        if pipe not in ready:
            raise SupervisorEnded("its supervisor ended too early" if ready else f"no job began within {TIMEOUT:g}s")
        return int(os.read(pipe, 64))
