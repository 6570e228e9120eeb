"""The value of the fixture `job_runner`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Unpack, overload

from supervisor.client.by_function import job_of
from supervisor.client.new_jobs import Options, enqueue_row
from supervisor.client.replacement import Replacement, replace_stores
from supervisor.config.settings import Settings
from supervisor.errors import JobFailed
from supervisor.jobs import Job, JobState, Progress
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.testing.enqueued import EnqueuedJob, enqueued_in, enqueued_job
from supervisor.testing.handlers import Handlers
from supervisor.testing.inline import InlineWorker
from supervisor.testing.real_workers import plugins_of, real_workers
from supervisor.text.units import counted, parse_duration

P = ParamSpec("P")


class JobRunner:
    """Runs jobs in the process of a test, and keeps the jobs of all clients of this process in memory meanwhile."""

    def __init__(
        self, settings: Settings, *, new_folder: Callable[[], Path],
        let_through: tuple[type[BaseException], ...] = (),
    ) -> None:  # fmt: skip
        self._settings, self._new_folder = settings, new_folder
        self._offset = 0.0
        self._state = MemoryState(lambda: time.time() + self._offset)
        self._handlers = Handlers(settings)
        self._worker = InlineWorker(settings, self._handlers, self._state, let_through)
        self._real_store: Path | None = None
        self._thread = threading.get_ident()

    def __enter__(self) -> JobRunner:
        self._keep_in_memory()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        replace_stores(None)
        self._worker.close()
        self._handlers.close()

    def _keep_in_memory(self) -> None:
        replace_stores(Replacement(lambda: MemoryStore(state=self._state), self._handlers.add, self._run_awaited))

    # --- run a handler

    def load(self, *plugins: str | Callable[..., Any]) -> None:
        """Load the handlers and hooks of plugins: directories, files or modules, as in `plugins` of the configuration, and functions
        marked by @handler. Functions that are run or enqueued are known without this."""
        for plugin in plugins:
            if isinstance(plugin, str):
                self._handlers.load(plugin)
            else:
                self._handlers.add(plugin)

    @overload
    def run(self, handler: str | Callable[[Job], Any], payload: Any = None, /) -> Any: ...
    @overload
    def run(self, handler: Callable[Concatenate[Job, P], Any], /, *arguments: P.args, **named: P.kwargs) -> Any: ...
    @overload
    def run(self, handler: Callable[P, Any], /, *arguments: P.args, **named: P.kwargs) -> Any: ...
    def run(self, handler: Any, /, *arguments: Any, **named: Any) -> Any:
        """Run a job to its end, here and now, and return its result as a program reads it. It is in no store and not in `enqueued`.

        The arguments are those of `Client.enqueue` without options. Retries and snoozes follow at once. Raises JobFailed, from the exception of
        the last attempt.
        """
        return self.options().run(handler, *arguments, **named)

    def options(self, **options: Unpack[Options]) -> WithOptions:
        """Return an object whose `run` gives a job these options of `Client.enqueue`."""
        return WithOptions(self, options)

    def _run(self, handler: Any, arguments: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return self._worker.run_to_end(self._row(handler, arguments, named, options))

    def _row(self, handler: Any, arguments: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> EnqueueRow:
        if callable(handler):
            return enqueue_row(self._settings, {**job_of(self._settings, handler, arguments, named), **options})
        payload = _payload(*arguments, **named)
        return enqueue_row(self._settings, {"handler": handler, "payload": payload, **options})

    @property
    def progress(self) -> list[Progress]:
        """All progress that jobs have reported in the process of the test, in this order: tuples of done, total and message."""
        return list(self._worker.progress)

    # --- the jobs that were enqueued

    @property
    def enqueued(self) -> list[EnqueuedJob]:
        """The jobs that were enqueued since the test began, in this order, each as it is now."""
        if self._real_store is not None:
            return enqueued_in(self._real_store)
        with self._state.lock:
            return [self._enqueued(record) for record in self._state.jobs.values()]

    def clear(self) -> None:
        """Delete all jobs that were enqueued, and forget their unique keys."""
        self._require_memory("clear")
        with self._state.transaction():
            for record in list(self._state.jobs.values()):
                self._state.remove(record)
            self._state.unique.clear()

    def run_enqueued(self, *, limit: int = 1000, raise_failures: bool = True) -> list[EnqueuedJob]:
        """Run the jobs that are due now, with those that they enqueue, one by one in the order of a supervisor.

        Return them in the order of their first runs. If one has failed for good, raise its JobFailed once all have run, unless
        `raise_failures` is false. Raise RuntimeError if more than `limit` attempts are due.
        """
        self._require_memory("run_enqueued")
        ran: dict[int, None] = {}
        for _ in range(limit):
            if (id := self._worker.run_next()) is None:
                break
            ran[id] = None
        else:
            with self._state.lock:
                waiting = [
                    job for job in self._state.jobs.values() if job.state in (JobState.READY, JobState.SCHEDULED)
                ]
            if any(job.due_at <= self._state.now() for job in waiting):
                attempts = counted(limit, "attempt", "have")
                raise RuntimeError(
                    f"{attempts} run and more are due: does a job enqueue itself? Or give a larger limit"
                )
        with self._state.lock:
            jobs = [self._enqueued(self._state.jobs[id]) for id in ran if id in self._state.jobs]
        for job in jobs:
            if raise_failures and job.state == JobState.FAILED:
                raise JobFailed(job.id, job.handler, job.state, list(job.errors)) from self._worker.raised.get(job.id)
        return jobs

    def advance(self, duration: float | str) -> None:
        """Let the clock of the jobs go on by seconds, or text such as "10m": delayed jobs and retries come due. None is run."""
        self._require_memory("advance")
        self._offset += parse_duration(duration, zero=True)

    @contextmanager
    def workers(self, *plugins: str, count: int = 2) -> Iterator[None]:
        """Let the jobs that are enqueued meanwhile run in real workers of a supervisor: timeouts, crashes and delays are real.

        Its plugins are those given, else those that `load` was called with, else those of the settings; its store is a temporary
        SQLite file, also for clients in its workers. At the end, jobs that run are killed.
        """
        self._require_memory("workers")
        chosen = plugins_of(self._settings, plugins, self._handlers.paths)
        with real_workers(self._settings, chosen, count, self._new_folder()) as store:
            self._real_store = store
            replace_stores(Replacement(lambda: SqliteStore(store)))
            try:
                yield
            finally:
                self._real_store = None
                self._keep_in_memory()

    def _require_memory(self, call: str) -> None:
        if self._real_store is not None:
            raise RuntimeError(
                f"{call}: not inside of workers(), which run the jobs by themselves: wait with Client.result"
            )

    def _enqueued(self, record: JobRecord) -> EnqueuedJob:
        row = record.row
        delay = row.delay or 0.0 if row.at is None else max(0.0, (row.at - record.created_at) / 1e6)
        return enqueued_job(record.shown(), delay)

    def _run_awaited(self, ids: Collection[int], timeout: float | None) -> None:
        """Run what is due, since the thread of the test, which could do so, will wait for these jobs. Raises RuntimeError if it would
        wait for ever."""
        if threading.get_ident() != self._thread:
            return
        self.run_enqueued(raise_failures=False)
        with self._state.lock:
            jobs = [self._state.jobs[id] for id in ids if id in self._state.jobs]
        unfinished = [job for job in jobs if not job.state.terminal]
        if unfinished and timeout is None:
            job = min(unfinished, key=lambda it: it.due_at)
            now = f"is due in {(job.due_at - self._state.now()) / 1e6:.1f}s"
            if job.state is JobState.IN_FLIGHT:
                now = "runs in this thread"
            raise RuntimeError(
                f"job {job.id} ({job.row.handler}) {now}, and nobody would end it while this thread waits: "
                "call job_runner.advance(...) before, or wait with a timeout"
            )


class WithOptions:
    """Runs jobs that have the same options."""

    def __init__(self, runner: JobRunner, options: Mapping[str, Any]) -> None:
        self._runner, self._options = runner, options

    @overload
    def run(self, handler: str | Callable[[Job], Any], payload: Any = None, /) -> Any: ...
    @overload
    def run(self, handler: Callable[Concatenate[Job, P], Any], /, *arguments: P.args, **named: P.kwargs) -> Any: ...
    @overload
    def run(self, handler: Callable[P, Any], /, *arguments: P.args, **named: P.kwargs) -> Any: ...
    def run(self, handler: Any, /, *arguments: Any, **named: Any) -> Any:
        """Run a job as `JobRunner.run` does."""
        return self._runner._run(handler, arguments, named, self._options)


def _payload(payload: Any = None) -> Any:
    return payload
