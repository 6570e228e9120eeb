"""The database is unavailable for a while. The end does not wait for it forever."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing

import pytest

from tests.system.command import Command, wait_for
from tests.system.test_sharing import JOBS, locked, serve_waits, wait_ran


@pytest.mark.usefixtures("without_polls")
def test_a_supervisor_that_was_idle_during_an_outage_claims_jobs_at_once_after_it(command: Command) -> None:
    command.write(config="workers: {count: 1, heartbeat: 200ms}\nlease: {ttl: 3s}\n", plugins=JOBS)
    command.enqueue("marks")
    run = command.run()
    wait_ran(command, 1)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
    run.logged("store available again")
    command.until(command.enqueue("marks"), "succeeded")
    assert " exited: " not in run.log


def test_a_second_signal_ends_a_supervisor_whose_outcomes_wait_for_the_store(command: Command) -> None:
    run, id = serve_waits(command)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
        (command.folder / "go").touch()
        run.signal(signal.SIGTERM)
        wait_for(lambda: len(command.processes()) == 2)  # its workers have exited: only their outcomes are left
        run.signal(signal.SIGINT)
        asked = time.monotonic()
        assert run.wait(30) == 1, "its outcome could not be settled"
        print(f"ended {time.monotonic() - asked:.2f}s after the second signal")
        assert time.monotonic() - asked < 4.5
    assert command.run("--drain").wait() == 0
    assert command.job(id)["state"] == "succeeded"


def test_claims_that_were_refused_to_the_end_are_not_reported_as_done_again(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    command.enqueue("marks")
    execute(
        command, "create trigger refuses before update on jobs when new.state = 2 begin select raise(abort, 'no'); end"
    )
    run = command.run()
    run.logged("the store fails to claim jobs")
    run.signal(signal.SIGTERM)
    assert run.wait(30) == 0
    assert "able to claim" not in run.log
    run = command.run()
    run.logged("the store fails to claim jobs")
    execute(command, "drop trigger refuses")
    run.logged("the store is able to claim jobs again")


def execute(command: Command, sql: str) -> None:
    with closing(sqlite3.connect(command.folder / "jobs.db")) as connection, connection:
        connection.execute(sql)
