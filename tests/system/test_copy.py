"""`supervisor copy`: from SQLite to PostgreSQL, and a death in the middle of it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.stores.postgres_server import Server, server
from tests.system.command import Command, wait_for

JOBS = {
    "jobs.py": "from supervisor import handler\n@handler(max_retries=0)\ndef fails(job): 1 / 0\n@handler\ndef mail(job): return job.payload"
}


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty one."""
    running: Server = server()
    name = f"copy_{os.getpid()}"
    with running.connect() as admin:
        admin.execute(f"create database {name}")
        yield running.url.replace("/postgres?", f"/{name}?")
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def filled(command: Command) -> Command:
    """A failed job with a delivered letter, two that wait, one of them in a paused queue, and one for later."""
    command.write("workers: {count: 2}\ndlq: {sinks: [{type: file, path: dead.jsonl}]}\n", JOBS)
    command.enqueue("fails", 1)
    assert command.run("--drain").wait(30) == 0
    command.enqueue("mail", {"nul": "a\u0000b"})
    command.enqueue("mail", 2, "--queue", "post")
    command.enqueue("mail", 3, "--delay", "1h", "--max-retries", "9")
    command.ask("queues", "pause", "post")
    return command


def go_over(command: Command, url: str) -> None:
    command.write(f"{command.config.read_text()}store: {url}\n")


def test_a_user_goes_over_to_postgresql(database: str, filled: Command) -> None:
    wanted = filled.jobs()
    ended = filled.call("copy", "--from", "sqlite:///jobs.db", "--to", database)
    assert (ended.code, ended.err) == (0, "")
    assert "moved 2 ready, 1 scheduled, 1 failed jobs and 1 paused queues from sqlite:///" in ended.out
    assert "is shut: set store to the other one" in ended.out
    late = filled.call("enqueue", "mail")
    assert (late.code, late.out) == (2, "") and "its jobs were moved to postgresql://" in late.err
    assert "its jobs were moved to postgresql://" in filled.call("check").err
    run = filled.run()
    assert run.wait(30) == 2 and "its jobs were moved to postgresql://" in run.log
    go_over(filled, database)
    assert filled.jobs() == wanted
    assert filled.run("--drain", "--horizon", "1s").wait(30) == 0
    assert [job["state"] for job in filled.jobs()] == ["scheduled", "ready", "succeeded", "failed"]
    assert "were moved to" in filled.call("copy", "--from", "sqlite:///jobs.db").out


def test_what_is_in_the_way_is_said_and_nothing_changes(database: str, command: Command) -> None:
    command.write(plugins=JOBS)
    command.enqueue("mail")
    run = command.run()
    run.says("supervisor started")
    arguments = ("copy", "--from", "sqlite:///jobs.db", "--to", database)
    ended = command.call(*arguments)
    assert ended.code == 2 and "in use by a supervisor (" in ended.err and f"pid {run.pid}); stop it first" in ended.err
    run.signal(signal.SIGTERM)
    assert run.wait(30) == 0
    for wrong, said in (
        (("--from", "sqlite:///none.db", "--to", database), "none.db: no such database"),
        (("--from", "sqlite:///jobs.db", "--to", "memory://"), "memory://: jobs of such a store can't be moved"),
        (("--from", "sqlite:///jobs.db"), "are the same store"),
    ):
        ended = command.call("copy", *wrong)
        assert (ended.code, ended.out) == (2, "") and said in ended.err
    assert command.call(*arguments).code == 0


def test_killed_in_the_middle_and_called_again(database: str, command: Command) -> None:
    command.enqueue_many([{"handler": "mail", "payload": "x" * 500} for _ in range(20_000)])
    arguments = command.arguments("copy", "--from", "sqlite:///jobs.db", "--to", database)
    process = subprocess.Popen(arguments, cwd=command.folder, env=command.env, start_new_session=True)
    with (
        psycopg.connect(database, autocommit=True) as watching,
        closing(sqlite3.connect(command.folder / "jobs.db")) as source,
    ):
        wait_for(
            lambda: bool(source.execute("select 1 from sqlite_master where name = 'shut'").fetchone()), every=0.001
        )
        process.kill()
        process.wait()
        there = watching.execute("select count(*) from supervisor.jobs").fetchone()
    assert there in ((0,), (20_000,))
    refused = command.call("enqueue", "mail")
    assert refused.code == 2 and "were moved to" in refused.err
    assert command.call(*arguments[3:-2]).code == 0
    go_over(command, database)
    assert command.status()["queues"][0]["queue_size"] == 20_000
