"""The command on PostgreSQL: whichever process is killed, the server too, every job is done, and not before it is due."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.system.command import Command, wait_for
from tests.system.test_sharing import JOBS, wait_ran

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With the settings that initdb makes, which are durable."""
    server = Server({})
    yield server
    server.remove()


@pytest.fixture
def postgres(command: Command, server: Server) -> Iterator[Command]:
    """A schema of its own; leases of 3 s."""
    configure(command, server, f"test_{os.getpid()}_{next(_numbers)}")
    yield command
    server.thaw()
    if server.process.poll() is not None:
        server.start()


def configure(command: Command, server: Server, schema: str, listen: bool = True) -> None:
    PostgresStore(server.url, schema=schema, create=True).close()
    store = json.dumps({"url": server.url, "schema": schema, "listen": listen})
    command.write(config=f"store: {store}\nworkers: {{count: 2, heartbeat: 200ms}}\nlease: {{ttl: 3s}}\n", plugins=JOBS)


def ran(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "ran").read_text().split()] if (folder / "ran").exists() else []


def nothing_in_flight(command: Command) -> None:
    assert command.jobs("--state", "in_flight") == []


REPORTING = """
    import pathlib, time
    from supervisor import handler

    @handler
    def reports(job):
        job.progress(1, 2, "half")
        print("a \\x00")
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        job.progress(2, 2)
        print("b")
"""


def test_progress_and_log_are_kept_while_a_job_runs_and_with_its_outcome(postgres: Command) -> None:
    postgres.write(plugins={"reports.py": REPORTING})
    id = postgres.enqueue("reports")
    run = postgres.run("--drain")

    def reported() -> None:
        job = postgres.job(id)
        assert job["state"] == "in_flight" and job["progress"] and job["log"]
        assert (job["progress"]["message"], job["log"]["lines"]) == ("half", ["a \\x00"])

    wait_for(reported)
    (postgres.folder / "go").touch()
    assert run.wait(30) == 0
    job = postgres.job(id)
    assert (job["progress"]["done"], job["log"]["lines"]) == (2, ["a \\x00", "b"])


def test_jobs_are_enqueued_and_drained(postgres: Command) -> None:
    id = postgres.enqueue("marks", {"nul": "a\u0000b"})
    later = postgres.enqueue("marks", None, "--delay", "300ms")
    assert postgres.run("--drain").wait(30) == 0
    assert postgres.job(id)["state"] == postgres.job(later)["state"] == "succeeded"
    assert postgres.job(id)["payload"] == {"nul": "a\u0000b"}
    assert postgres.status()["supervisors"] == []
    nothing_in_flight(postgres)


def test_a_store_that_was_dropped_is_made_by_a_supervisor_and_not_by_an_enqueue(
    postgres: Command, server: Server
) -> None:
    with server.connect() as connection:
        (schema,) = re.findall(r'"schema": "(\w+)"', (postgres.folder / "supervisor.yaml").read_text())
        connection.execute(f"drop schema {schema} cascade")
        refused = postgres.call("enqueue", "mark")
        assert refused.code == 2
        assert (
            f"no job store in its schema {schema} yet: nothing was enqueued; supervisor run makes a new" in refused.err
        )
        ended = postgres.call("check")
        assert ended.code == 0 and "it will be created" in ended.out
        assert connection.execute("select to_regnamespace(%s)", (schema,)).fetchone() == (None,)
    assert postgres.run("--drain").wait() == 0
    assert postgres.enqueue("mark") == 1


@pytest.mark.usefixtures("without_polls")
def test_an_idle_supervisor_is_notified_of_a_job(postgres: Command) -> None:
    run = postgres.run()
    run.logged("supervisor started")
    postgres.until(postgres.enqueue("marks"), "succeeded")
    postgres.until(postgres.enqueue("marks"), "succeeded")


def test_a_supervisor_without_notifications_polls(command: Command, postgres: Command, server: Server) -> None:
    configure(command, server, f"test_{os.getpid()}_{next(_numbers)}", listen=False)
    run = command.run()
    run.logged("supervisor started")
    command.until(command.enqueue("marks"), "succeeded")


def test_the_jobs_of_a_killed_supervisor_are_taken_over_at_once_on_its_machine(postgres: Command) -> None:
    run = postgres.run()
    id = postgres.enqueue("waits")
    wait_ran(postgres, 1)
    wait_for(lambda: postgres.job(id)["started_at"] is not None)
    run.kill()
    killed = time.monotonic()
    postgres.run().logged("supervisor started")
    wait_for(lambda: ran(postgres.folder) == [id, id])
    print(f"taken over after {time.monotonic() - killed:.1f}s")
    (postgres.folder / "go").touch()
    assert postgres.until(id, "succeeded")["errors"] == []
    assert len(postgres.status()["supervisors"]) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_the_server_is_restarted_while_a_job_runs(postgres: Command, server: Server, how: signal.Signals) -> None:
    run = postgres.run()
    id = postgres.enqueue("waits")
    wait_ran(postgres, 1)
    server.stop(how)
    run.logged("store unavailable")
    (postgres.folder / "go").touch()
    time.sleep(3.5)  # past the lease
    server.start()
    run.logged("store available again")
    job = postgres.until(id, "succeeded")
    assert (job["result"], job["errors"]) == ("finished", [])
    again = postgres.enqueue("marks")
    postgres.until(again, "succeeded")
    assert ran(postgres.folder) == [id, again]


def test_a_server_that_hangs_stops_neither_a_running_job_nor_the_shutdown(postgres: Command, server: Server) -> None:
    run = postgres.run()
    id = postgres.enqueue("waits")
    wait_ran(postgres, 1)
    server.freeze()
    (postgres.folder / "go").touch()
    run.logged("store unavailable", 30)
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    server.thaw()
    assert run.wait(30) == 0
    assert postgres.job(id)["state"] == "succeeded"


def test_a_supervisor_that_is_stopped_during_an_outage_exits_in_time(postgres: Command, server: Server) -> None:
    run = postgres.run()
    id = postgres.enqueue("waits")
    wait_ran(postgres, 1)
    server.stop()
    run.logged("store unavailable")
    (postgres.folder / "go").touch()
    run.signal(signal.SIGTERM)
    asked = time.monotonic()
    assert run.wait(60) == 1, "its outcome could not be settled: that is not a clean end"
    print(f"ended after {time.monotonic() - asked:.1f}s")
    server.start()
    assert postgres.run("--drain").wait(30) == 0
    assert postgres.job(id)["state"] == "succeeded"


def test_two_supervisors_share_the_work(postgres: Command) -> None:
    postgres.enqueue_many([{"handler": "marks", "payload": n} for n in range(2000)])
    runs = [postgres.run("--drain") for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert sorted(ran(postgres.folder)) == list(range(1, 2001))


def test_an_outcome_is_kept_while_the_server_refuses_all_connections(postgres: Command, server: Server) -> None:
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    run = postgres.run()
    id = postgres.enqueue("waits")
    wait_ran(postgres, 1)
    admin = server.connect()
    try:
        rules.write_text("local postgres_only postgres trust\n")
        admin.execute("select pg_reload_conf()")
        wait_for(lambda: refuses(server))
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid != pg_backend_pid() and backend_type = 'client backend'"
        )
        (postgres.folder / "go").touch()
        run.logged("store unavailable")
    finally:
        rules.write_text(before)
        admin.execute("select pg_reload_conf()")
        admin.close()
    postgres.until(id, "succeeded")
    assert len(ran(postgres.folder)) == 1
    assert run.code is None


def refuses(server: Server) -> bool:
    try:
        server.connect().close()
    except psycopg.OperationalError:
        return True
    return False
