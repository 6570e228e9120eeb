"""A person's session has locked the row of a running job: the outcome of that job waits for it, and nothing else does."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.stores.postgres.limits import DEFAULT_LIMITS
from tests.stores.postgres_server import FAST, Server
from tests.system.command import TIMEOUT, Command, Running, wait_for

TTL = 4.0
LOCK_SECONDS = DEFAULT_LIMITS.lock_milliseconds / 1000
JOBS = {
    "jobs.py": """
        import os, time
        from supervisor import handler, hookimpl

        def mark(job):
            fd = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"{job.id}\\n".encode())
            os.close(fd)

        @handler
        def marks(job):
            mark(job)

        @handler
        def waits(job):
            mark(job)
            while not os.path.exists(job.payload):
                time.sleep(0.01)

        class Lingers:
            def publish(self, dead_letters):
                return [dead_letter["id"] for dead_letter in dead_letters]

            def close(self):
                open("closing", "w").close()
                while not os.path.exists("close"):
                    time.sleep(0.01)

        @hookimpl
        def supervisor_sinks():
            return {"lingers": Lingers}
    """
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(FAST)
    yield server
    server.remove()


@pytest.fixture
def schema(command: Command, server: Server) -> str:
    schema = f"locks_{os.getpid()}_{next(_numbers)}"
    store = json.dumps({"url": server.url, "schema": schema})
    rest = f"workers: {{count: 3, heartbeat: 200ms}}\nlease: {{ttl: {TTL:g}s}}\nshutdown: {{grace: 500ms}}\n"
    command.write(config=f"store: {store}\n{rest}", plugins=JOBS)
    return schema


@contextmanager
def locked(server: Server, schema: str, id: int) -> Iterator[None]:
    with server.connect() as person, person.transaction():
        person.execute(f"select from {schema}.jobs where id = {id} for update")
        yield


def ran(command: Command) -> list[int]:
    file = command.folder / "ran"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def begun(command: Command, *payloads: str) -> list[int]:
    ids = [command.enqueue("waits", payload) for payload in payloads]
    wait_for(lambda: {*ids} <= {*ran(command)})
    return ids


def never_unavailable(*runs: Running) -> None:
    for run in runs:
        for word in ("store unavailable", "stale"):
            assert word not in run.log, run.log


def test_other_jobs_are_settled_and_extended_and_the_locked_one_is_settled_once_its_row_is_free(
    command: Command, server: Server, schema: str
) -> None:
    """Another supervisor stands by, and takes over jobs whose leases expired long enough ago."""
    run = command.run()
    run.logged("supervisor started")
    waits, longer = begun(command, "gate", "late")
    other = command.run()
    other.logged("supervisor started")

    def expired(id: int, by: float) -> bool:
        ago = f"select {schema}.clock() - lease_until from {schema}.jobs where id = {id}"
        with server.connect() as link:
            (micros,) = link.execute(ago).fetchone() or (0,)
        return bool(micros > by * 1e6)

    with locked(server, schema, waits):
        (command.folder / "gate").touch()
        command.until(command.enqueue("marks"), "succeeded", LOCK_SECONDS + TIMEOUT)
        run.logged("its row is locked by another session")
        began = time.monotonic()
        command.enqueue_many([{"handler": "marks"}] * 200)
        wait_for(lambda: len(command.jobs("--state", "succeeded")) == 201)
        assert time.monotonic() - began < LOCK_SECONDS, "they have waited for the lock"
        wait_for(lambda: expired(waits, TTL / 2 + 2.0))
        assert not expired(longer, 0.0)
        assert command.job(waits)["state"] == "in_flight"
    assert command.until(waits, "succeeded")["errors"] == []
    with locked(server, schema, longer):
        (command.folder / "late").touch()
        run.logged(f"job={longer} handler=waits its row is locked by another session")
        run.signal(signal.SIGTERM)
        run.logged("supervisor stopping")
    assert run.wait() == 0, "it has tried once more"
    assert command.until(longer, "succeeded")["errors"] == []
    assert len(ran(command)) == 203
    never_unavailable(run, other)


def test_a_supervisor_that_ends_while_a_row_is_locked_logs_what_it_leaves_behind(
    command: Command, server: Server, schema: str
) -> None:
    """No call has met the lock before."""
    run = command.run()
    run.logged("supervisor started")
    waits, longer = begun(command, "gate", "late")
    with locked(server, schema, waits):
        run.signal(signal.SIGTERM)
        assert run.wait() == 1, "an outcome could not be settled: that is not a clean end"
        run.logged("exit code 1; left behind: 1 unsettled")
        run.logged("its row is locked by another session")
        never_unavailable(run)
        assert (command.job(waits)["state"], command.job(longer)["state"]) == ("in_flight", "ready")
    for gate in ("gate", "late"):
        (command.folder / gate).touch()
    assert command.run("--drain").wait() == 0
    assert command.job(waits)["state"] == command.job(longer)["state"] == "succeeded"


def test_an_outcome_that_is_settled_while_the_sinks_close_is_not_left_behind(
    command: Command, server: Server, schema: str
) -> None:
    command.config.write_text(command.config.read_text() + "dlq: {sinks: [{type: lingers}]}\n")
    run = command.run()
    run.logged("supervisor started")
    (waits,) = begun(command, "gate")
    with locked(server, schema, waits):
        (command.folder / "gate").touch()
        run.logged("its row is locked by another session")
        run.signal(signal.SIGTERM)
        wait_for((command.folder / "closing").exists)
    command.until(waits, "succeeded")
    (command.folder / "close").touch()
    assert run.wait() == 0
    assert "left behind" not in run.log
