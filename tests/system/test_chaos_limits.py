"""Jobs under a limit of two at once, while supervisors are killed with SIGKILL at random: never more run.

SUPERVISOR_CHAOS_LIMITED_JOBS is the number of jobs (250, for each store and kind of limit). The kills follow SUPERVISOR_CHAOS_SEED.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import server
from tests.system.command import Command, wait_for
from tests.system.places import taken_in

JOBS = int(os.environ.get("SUPERVISOR_CHAOS_LIMITED_JOBS", "250"))
LIMIT = 2
SUPERVISORS = 2
MOST_STARTS = 100  # of jobs from one kill to the next
MAX_SHOWN = 5
CONFIG = """
workers: {count: 3}
retry: {max_retries: 3, backoff: {base: 20ms, jitter: none}}
log: {level: warning}
"""
PLUGIN = {
    "mail.py": """
        import os, time
        from supervisor import handler
        from tests.system.places import place

        FOLDER = os.getcwd()

        @handler
        def mail(job):
            with place(job.id, FOLDER):
                time.sleep(0.01)
    """
}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The `store` of a config: on PostgreSQL a schema of its own. It must be there before the `command`, whose supervisors use it to the
    end."""
    if request.param == "sqlite":
        yield "sqlite:///jobs.db"
        return
    schema = f"limits_{os.getpid()}"
    PostgresStore(server().url, schema=schema, create=True).close()
    yield json.dumps({"url": server().url, "schema": schema})
    with server().connect() as admin:
        admin.execute(f"drop schema {schema} cascade")


@pytest.mark.timeout(120 + JOBS / 5)
@pytest.mark.parametrize(
    "limited",
    ["handlers: {mail: {limit:", "queues: {default: {limit:", "queues: {default: {group_limit:"],
    ids=["handler", "queue", "group"],
)
def test_no_more_jobs_run_at_once_though_supervisors_are_killed(
    store: str, command: Command, limited: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lease is long, so the jobs of a killed supervisor run again only once all of its processes have ended. So the limit holds
    without an exception, and each job that found two others at work is a failure."""
    seed = os.environ.get("SUPERVISOR_CHAOS_SEED") or str(secrets.randbelow(10**9))
    command.write(f"{CONFIG}store: {store}\n{limited} {{running: {LIMIT}}}}}}}", PLUGIN)
    command.enqueue_many([{"handler": "mail", "group": "one"} for _ in range(JOBS)])
    begun = time.monotonic()
    kills = Kills(command, random.Random(seed))
    wait_for(kills.all_jobs_have_ended, 60.0 + JOBS / 10)
    taken = taken_in(command.folder)
    running = Counter(it.running for it in taken)
    with capsys.disabled():
        print(
            f"\nlimits: SUPERVISOR_CHAOS_SEED={seed} SUPERVISOR_CHAOS_LIMITED_JOBS={JOBS}: {kills.number} kills,",
            end=" ",
        )
        print(f"{len(taken)} starts as one of {dict(sorted(running.items()))}, {time.monotonic() - begun:.0f} s")
    crowded = [it for it in taken if it.running > LIMIT]
    assert not crowded, f"seed {seed}: {len(crowded)} times more than {LIMIT} ran: {crowded[:MAX_SHOWN]}"
    assert kills.most_in_flight <= LIMIT, f"seed {seed}: {kills.most_in_flight} leases were live at once"
    assert kills.number and running[LIMIT], "nothing was tested"
    assert {it.job for it in taken} == {job["id"] for job in command.jobs("--state", "succeeded")}
    errors = [error for job in command.jobs() for error in job["errors"]]
    assert {error["cause"] for error in errors} <= {"lease_expired"}, errors
    wait_for(lambda: len(command.status()["supervisors"]) == SUPERVISORS)  # those that were killed are gone


class Kills:
    """Kills a supervisor after a random number of jobs have started, again and again, and starts another in its place."""

    def __init__(self, command: Command, chance: random.Random) -> None:
        self._command, self._chance = command, chance
        self._runs = [command.run() for _ in range(SUPERVISORS)]
        self.number = self.most_in_flight = 0
        self._due = chance.randrange(1, MOST_STARTS)

    def all_jobs_have_ended(self) -> bool:
        if (starts := len(taken_in(self._command.folder))) >= self._due:
            self._kill(self._chance.randrange(SUPERVISORS))
            self._due = starts + self._chance.randrange(1, MOST_STARTS)
        (queue,) = self._command.status()["queues"]
        self.most_in_flight = max(self.most_in_flight, queue["in_flight"])
        return not any(queue[kind] for kind in ("queue_size", "retry_queue_size", "scheduled", "blocked", "in_flight"))

    def _kill(self, victim: int) -> None:
        self._runs[victim].kill()
        self._runs[victim] = self._command.run()
        self.number += 1
