"""Whatever standard output and error are, jobs run and write nothing into other files."""

from __future__ import annotations

import os
import signal
import sqlite3

import orjson
import pytest

from tests.system.command import Command, wait_for

PLUGINS = {
    "loud.py": """
        import logging, os, subprocess, sys
        from supervisor import handler

        @handler
        def loud(job):
            print("x" * 1_000_000)
            print("é", file=sys.stderr)
            logging.getLogger("loud").warning("logged")
            os.write(1, b"raw\\xff")
            subprocess.run(["sh", "-c", "echo from a program; echo and its error >&2"], check=True)
            return "done"
    """
}


UNREAD = "2> >(exec sleep 3600)"


def end_readers(command: Command) -> None:
    """The reader of an unread log was started by the test, and is an orphan once the supervisor has exited."""
    for pid, line in command.processes().items():
        if line.startswith("sleep 3600"):
            os.kill(pid, signal.SIGKILL)


def drained(command: Command, redirected: str) -> None:
    command.write(config="workers: {count: 2}\nlog: {level: debug}\n", plugins=PLUGINS)
    ids = [command.enqueue("loud") for _ in range(4)]
    run = command.run("--drain", under=["bash", "-c", f'exec "$@" {redirected}', "bash"])
    assert run.wait() == 0
    assert [command.job(id)["result"] for id in ids] == ["done"] * 4
    with sqlite3.connect(command.folder / "jobs.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.mark.parametrize(
    "redirected",
    [
        pytest.param(">&- 2>&-", id="both closed"),
        pytest.param("<&- >&- 2>&-", id="all closed"),
        pytest.param(">/dev/full 2>/dev/full", id="full"),
        pytest.param("> >(head -1 >/dev/null) 2>&1", id="reader gone"),
    ],
)
def test_a_broken_standard_stream_harms_no_job(command: Command, redirected: str) -> None:
    drained(command, redirected)


def test_a_log_that_is_not_read_delays_nothing(command: Command) -> None:
    drained(command, UNREAD)
    end_readers(command)


def test_json_lines_name_the_job_in_a_field(command: Command) -> None:
    command.write(
        config="workers: {count: 1}\nretry: {max_retries: 0}\nlog: {level: debug, format: json}\n",
        plugins={"bad.py": "from supervisor import handler\n@handler\ndef bad(job): raise ValueError('no\\nway')\n"},
    )
    id = command.enqueue("bad")
    run = command.run("--drain")
    run.wait()
    lines = [orjson.loads(line) for line in run.log.splitlines()]
    (failed,) = [line for line in lines if "failed for good" in line["message"]]
    assert (failed["job"], failed["handler"], failed["cause"], failed["level"]) == (id, "bad", "exception", "warning")
    assert "ValueError: no" in failed["message"]


def test_a_supervisor_whose_log_is_not_read_stops_as_usual_on_signals(command: Command) -> None:
    command.write(config="workers: {count: 2}\nlog: {level: debug}\n", plugins=PLUGINS)
    run = command.run(under=["bash", "-c", f'exec "$@" {UNREAD}', "bash"])
    wait_for(lambda: len(command.status()["supervisors"]) == 1)
    for _ in range(50):
        command.enqueue("loud")
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGUSR1)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    end_readers(command)
