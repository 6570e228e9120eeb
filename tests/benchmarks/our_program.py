"""A program that runs a supervisor with the memory store, submits no-op jobs to it and prints the seconds until all succeeded.

python -m tests.benchmarks.our_program one_by_one|in_bulk JOBS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from supervisor import Client
from supervisor.config.settings import PluginSettings, Settings, StoreSettings, WorkerSettings
from supervisor.events import Event, JobsSettled, SupervisorStarted
from supervisor.jobs import JobState
from supervisor.runtime.supervisor import Supervisor
from tests.benchmarks import memory_store
from tests.benchmarks.pool_program import TIMEOUT, WORKERS, timed

SETTINGS = Settings(
    store=StoreSettings(url=None, type=memory_store.TYPE),
    plugins=PluginSettings(paths=(memory_store.__name__,)),
    workers=WorkerSettings(count=WORKERS, timeout=TIMEOUT),
)


def one_by_one(client: Client, jobs: int) -> None:
    for n in range(jobs):
        client.enqueue("noop", {"n": n})


def in_bulk(client: Client, jobs: int) -> None:
    client.enqueue_many([("noop", {"n": n}) for n in range(jobs)])


class Outcomes:
    """A subscriber that counts succeeded jobs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.serving = threading.Event()
        self.succeeded = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobsSettled):
            with self._changed:
                self.succeeded += sum(outcome.state is JobState.SUCCEEDED for outcome in event.outcomes)
                self._changed.notify()
        elif isinstance(event, SupervisorStarted):
            self.serving.set()

    def wait(self, wanted: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.succeeded >= wanted)


def main(enqueue: Callable[[Client, int], None], jobs: int) -> float:
    """Run the supervisor on the main thread, which gets signals, and submit on another."""
    outcomes = Outcomes()
    seconds: list[float] = []

    def submit() -> None:
        outcomes.serving.wait()
        with Client(SETTINGS) as client:

            def until_done(count: int) -> None:
                wanted = outcomes.succeeded + count
                enqueue(client, count)
                outcomes.wait(wanted)

            seconds.append(timed(jobs, until_done))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=submit, daemon=True).start()
    Supervisor(SETTINGS, subscribers=[outcomes]).run()
    return seconds[0]


if __name__ == "__main__":
    print(main({"one_by_one": one_by_one, "in_bulk": in_bulk}[sys.argv[1]], int(sys.argv[2])))
