"""`supervisor copy`: from SQLite to PostgreSQL and back, also if it is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from supervisor import Client
from supervisor.stores.opening import open_store, settings_of
from tests.stores.postgres_server import Server, server
from tests.system.command import Command, wait_for

JOBS = {
    "jobs.py": "from supervisor import handler\n@handler(max_retries=0)\ndef fails(job): 1 / 0\n@handler\ndef mail(job): return job.payload"
}


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database."""
    running: Server = server()
    url = running.url.replace("/postgres?", f"/copy_{os.getpid()}?")
    with running.connect() as admin:
        admin.execute(f"create database {database_of(url)}")
        yield url
        admin.execute(f"drop database if exists {database_of(url)} with (force)")


def database_of(url: str) -> str:
    return conninfo_to_dict(url)["dbname"]


@pytest.fixture
def filled(command: Command) -> Command:
    """A store with a failed job and its delivered dead letter, two ready jobs, one of them in a paused queue, and a scheduled job."""
    command.write("workers: {count: 2}\ndlq: {sinks: [{type: file, path: dead.jsonl}]}\n", JOBS)
    command.enqueue("fails", 1)
    assert command.run("--drain").wait(30) == 0
    command.enqueue("mail", {"nul": "a\u0000b"})
    command.enqueue("mail", 2, "--queue", "post")
    command.enqueue("mail", 3, "--delay", "1h", "--max-retries", "9")
    command.ask("queues", "pause", "post")
    return command


def stored(command: Command) -> list[dict[str, Any]]:
    """Return all jobs, without the reasons why they wait: these depend on the time."""
    return [{**job, "waiting_because": None} for job in command.jobs()]


def configure_store(command: Command, url: str) -> None:
    command.write(f"{command.config.read_text()}store: {url}\n")


def test_copy_transfers_all_waiting_and_failed_jobs_to_postgresql(database: str, filled: Command) -> None:
    wanted = stored(filled)
    ended = filled.call("copy", "--from", "sqlite:///jobs.db", "--to", database)
    assert (ended.code, ended.err) == (0, "")
    assert "transferred 2 ready, 1 scheduled, 1 failed jobs and 1 paused queue from sqlite:///" in ended.out
    assert "is closed: write 'store: postgresql:" in ended.out
    late = filled.call("enqueue", "mail")
    assert (late.code, late.out) == (2, "") and "its jobs were transferred to postgresql://" in late.err
    assert "its jobs were transferred to postgresql://" in filled.call("check").err
    run = filled.run()
    assert run.wait(30) == 2 and "its jobs were transferred to postgresql://" in run.log
    configure_store(filled, database)
    assert stored(filled) == wanted
    assert filled.run("--drain", "--horizon", "1s").wait(30) == 0
    assert [job["state"] for job in stored(filled)] == ["scheduled", "ready", "succeeded", "failed"]
    assert "transferred before: " in filled.call("copy", "--from", "sqlite:///jobs.db").out


def test_a_copy_that_is_refused_changes_nothing(database: str, command: Command) -> None:
    command.write(plugins=JOBS)
    command.enqueue("mail")
    run = command.run()
    run.logged("supervisor started")
    arguments = ("copy", "--from", "sqlite:///jobs.db", "--to", database)
    ended = command.call(*arguments)
    assert ended.code == 2 and "in use by a supervisor (" in ended.err and f"pid {run.pid}); stop it first" in ended.err
    run.signal(signal.SIGTERM)
    assert run.wait(30) == 0
    for wrong, error in (
        (("--from", "sqlite:///none.db", "--to", database), "none.db: no such database"),
        (
            ("--from", "sqlite:///jobs.db", "--to", "memory://"),
            "copy is only for SQLite and PostgreSQL, and this is memory://",
        ),
        (("--from", "sqlite:///jobs.db"), "are the same store"),
    ):
        ended = command.call("copy", *wrong)
        assert (ended.code, ended.out) == (2, "") and error in ended.err
    assert command.call(*arguments).code == 0


def kill_in_the_middle(command: Command, source: str, target: str) -> None:
    """Start a copy, and kill it as soon as the source is closed."""
    arguments = command.arguments("copy", "--from", source, "--to", target)
    process = subprocess.Popen(arguments, cwd=command.folder, env=command.env, start_new_session=True)
    with closing(open_store(settings_of(source), create=False, base=command.folder)) as store:
        wait_for(lambda: store.transfer_record() is not None, every=0.001)  # type: ignore[attr-defined]
    process.kill()
    process.wait()


def jobs_in(database: str) -> int:
    with psycopg.connect(database) as connection:
        (count,) = connection.execute("select count(*) from supervisor.jobs").fetchone() or (0,)
    return int(count)


MANY = [{"handler": "mail", "payload": "x" * 500} for _ in range(20_000)]


def test_a_killed_copy_is_finished_by_the_same_command(database: str, command: Command) -> None:
    command.enqueue_many(MANY)
    arguments = ("copy", "--from", "sqlite:///jobs.db", "--to", database)
    kill_in_the_middle(command, *arguments[2::2])
    assert jobs_in(database) in (0, 20_000)
    refused = command.call("enqueue", "mail")
    assert refused.code == 2 and "were transferred to" in refused.err
    assert command.call(*arguments).code == 0
    configure_store(command, database)
    assert command.status()["queues"][0]["queue_size"] == 20_000
    undone = command.call(*arguments, "--reopen")
    assert (undone.code, undone.out) == (2, "") and ": its jobs are in postgresql://" in undone.err


def test_a_killed_copy_is_undone_by_reopen(database: str, command: Command) -> None:
    command.enqueue_many(MANY)
    kill_in_the_middle(command, "sqlite:///jobs.db", database)
    undone = command.call("copy", "--from", "sqlite:///jobs.db", "--to", database, "--reopen")
    if jobs_in(database):  # the kill came too late
        assert undone.code == 2 and "its jobs are in" in undone.err
        return
    assert (undone.code, undone.err) == (0, "")
    assert undone.out.endswith("is open again, with the 20,000 ready jobs that it had when it was closed\n")
    command.enqueue("mail")
    assert command.status()["queues"][0]["queue_size"] == 20_001
    again = command.call("copy", "--from", "sqlite:///jobs.db", "--to", database, "--reopen")
    assert again.code == 2 and "it is not closed" in again.err


@pytest.mark.parametrize("way", ["from SQLite", "to SQLite"])
def test_a_killed_copy_whose_target_is_lost_is_undone_by_force(database: str, command: Command, way: str) -> None:
    source, target = "sqlite:///jobs.db", database
    if way == "to SQLite":
        source, target = database, "sqlite:///new.db"
        configure_store(command, database)
        with Client(database, create=True):
            pass
    command.enqueue_many(MANY)
    kill_in_the_middle(command, source, target)
    if way == "to SQLite":
        for file in command.folder.glob("new.db*"):
            file.unlink()
    else:
        with server().connect() as admin:
            admin.execute(f"drop database {database_of(database)} with (force)")
    reopen = ("copy", "--from", source, "--to", target, "--reopen")
    refused = command.call(*reopen)
    assert (refused.code != 0, refused.out) == (True, "")
    assert "stays closed. If nobody will run the jobs in" in refused.err and "add --force to open it" in refused.err
    assert "were transferred to" in command.call("enqueue", "mail").err
    opened = command.call(*reopen, "--force")
    assert (opened.code, opened.err) == (0, "")
    first, reason, warning = opened.out.splitlines()
    assert first.endswith("is open again, with the 20,000 ready jobs that it had when it was closed")
    assert reason.startswith("opened by force, although: ")
    assert warning.endswith("run again here, and jobs that still wait there must not run there")
    command.enqueue("mail")
    assert command.status()["queues"][0]["queue_size"] == 20_001


def test_force_without_reopen_is_a_mistake(command: Command) -> None:
    command.enqueue("mail")
    ended = command.call("copy", "--from", "sqlite:///jobs.db", "--to", "sqlite:///new.db", "--force")
    assert ended.code == 2 and "--force goes with --reopen" in ended.err
    command.enqueue("mail")
