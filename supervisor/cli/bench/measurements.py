"""The measurements of `supervisor bench`."""

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
from supervisor.cli.bench.supervisor_process import ForkedSupervisor, SupervisorEnded, forked_supervisor
from supervisor.cli.bench.temporary_store import TemporaryStore
from supervisor.client.client import Client
from supervisor.config.settings import DEFAULT_QUEUE, DlqSettings, Settings
from supervisor.jobs import NewJob

BULK = 100_000  # jobs in one call of enqueue_many
MAX_ONE_BY_ONE = 2_000
MAX_ONE_BY_ONE_SECONDS = 3.0  # a disk may take long for each sync
MAX_LATENCIES = 300
MAX_LATENCY_SECONDS = 30.0  # a store without notifications is polled
PAUSE = 0.005  # seconds between two latencies, after which all processes are idle again
MAX_PAYLOAD = 10_000  # bytes: the path of a pipe
TIMEOUT = 60.0  # seconds
QUIET_LEVELS = ("warning", "error")


def isolated(settings: Settings) -> Settings:
    """Return settings that run the benchmark's jobs only, without any plugin or sink of the user, and accept their payloads."""
    level = settings.log.level if settings.log.level in QUIET_LEVELS else QUIET_LEVELS[0]
    return settings.replace(
        plugins=settings.plugins.replace(paths=(bench_handlers.__name__,)),
        handlers={},
        dlq=DlqSettings(),
        limits=settings.limits.replace(payload=max(settings.limits.payload, MAX_PAYLOAD)),
        log=settings.log.replace(level=level),
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements, in order: jobs that one of them enqueues are drained by the next. `settings` come from `isolated`."""

    settings: Settings
    store: TemporaryStore
    jobs: int
    interrupts: Interrupts

    def heading(self) -> str:
        about = self.about()
        return (
            f"{self.jobs:,} jobs that do nothing, {about['workers']} workers, {about['cpus']} CPUs; "
            f"{self.store.description}, synchronous={about['synchronous']}"
        )

    def about(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "workers": self.settings.workers.most,
            "cpus": len(os.sched_getaffinity(0)),
            "synchronous": self.store.synchronous,
        }

    def figures(self, report: Callable[[str], None] | None) -> Iterator[tuple[str, Any]]:
        """Yield each figure by its key in JSON, and report it in a line for people as soon as it is measured."""
        report = report or (lambda line: None)
        with Client(self.settings, create=True) as client:
            one_by_one, count = self._enqueue_one_by_one(client)
            report(f"enqueue one by one   {one_by_one:>9,.0f} jobs/s")
            yield "enqueue_per_second", round(one_by_one, 1)
            in_bulk = self._enqueue_in_bulk(client)
            report(f"enqueue in bulk      {in_bulk:>9,.0f} jobs/s")
            yield "enqueue_many_per_second", round(in_bulk, 1)
        drained = self._drain(count + self.jobs)
        report(f"drain                {drained:>9,.0f} jobs/s")
        yield "drain_per_second", round(drained, 1)
        latencies = sorted(self._idle_latencies())
        p50, p99 = statistics.median(latencies), latencies[int(0.99 * len(latencies))]
        report(f"latency when idle    {p50:>9,.1f} ms p50, {p99:,.1f} ms p99, from enqueue to the handler's start")
        yield "idle_latency_ms", {"p50": round(p50, 3), "p99": round(p99, 3), "samples": len(latencies)}

    def _new_job(self, handler: str, payload: Any) -> NewJob:
        served = self.settings.workers.queues
        return NewJob(handler, payload, queue=min(served) if served else DEFAULT_QUEUE, max_retries=0)

    def _enqueue_one_by_one(self, client: Client) -> tuple[float, int]:
        """Enqueue jobs, and return the jobs per second and the number of jobs."""
        queue = self._new_job(NOOP, None).queue
        wanted = min(self.jobs, MAX_ONE_BY_ONE)
        done, start = 0, time.monotonic()
        while done < wanted and time.monotonic() - start < MAX_ONE_BY_ONE_SECONDS:
            self.interrupts.check()
            client.enqueue(NOOP, {"n": done}, queue=queue, max_retries=0)
            done += 1
        return done / (time.monotonic() - start), done

    def _enqueue_in_bulk(self, client: Client) -> float:
        seconds = 0.0
        for first in range(0, self.jobs, BULK):
            batch = [self._new_job(NOOP, {"n": n}) for n in range(first, min(first + BULK, self.jobs))]
            self.interrupts.check()
            start = time.monotonic()
            client.enqueue_many(batch)
            seconds += time.monotonic() - start
        return self.jobs / seconds

    def _drain(self, jobs: int) -> float:
        with forked_supervisor(self.settings, self.interrupts.wait, drain=True) as supervisor:
            supervisor.receive(TIMEOUT)
            report = supervisor.receive()
        if report["succeeded"] != jobs:
            raise SupervisorEnded(f"{report['succeeded']:,} of {jobs:,} jobs succeeded")
        return jobs / float(report["seconds"])

    def _idle_latencies(self) -> Iterator[float]:
        """Yield milliseconds. The first job, which wakes all processes for the first time, is left out."""
        path = self.store.folder / "stamps"
        os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR)  # open for writing too, or it would be at its end when a handler closes it
        job = self._new_job(STAMP, str(path))
        try:
            with forked_supervisor(self.settings, self.interrupts.wait) as supervisor, Client(self.settings) as client:
                supervisor.receive(TIMEOUT)
                deadline = time.monotonic() + MAX_LATENCY_SECONDS
                for number in range(min(self.jobs, MAX_LATENCIES) + 1):
                    if number > 1 and time.monotonic() > deadline:
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
        ready = self.interrupts.wait([pipe, supervisor.report_fd], TIMEOUT)
        if pipe not in ready:
            raise SupervisorEnded("its supervisor ended too early" if ready else f"no job started within {TIMEOUT:g}s")
        return int(os.read(pipe, 64))
