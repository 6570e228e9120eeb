"""A supervisor deletes ended jobs after their retention, but none with a pending dead letter."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from tests.system.command import Command, wait_for

JOBS = {
    "jobs.py": """
        from supervisor import handler, hookimpl

        @handler
        def noop(job): pass

        @handler(max_retries=0)
        def fails(job): raise ValueError("never")

        class Refusing:
            def publish(self, dead_letters): raise ConnectionError("nobody there")
            def close(self): pass

        @hookimpl
        def supervisor_sinks(): return {"refusing": Refusing}
    """
}


def test_jobs_are_deleted_after_their_retention_but_none_with_a_pending_dead_letter(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retention: {succeeded: 0s, cancelled: none, failed: 1s}
            dlq: {sinks: [{type: refusing}]}
        """,
        plugins=JOBS,
    )
    done, failed = command.enqueue("noop"), command.enqueue("fails")
    cancelled = command.enqueue("noop", None, "--delay", "1h")
    command.ask("jobs", "cancel", str(cancelled))
    command.run()
    command.until(done, "succeeded")
    command.until(failed, "failed")

    def pruned() -> None:
        assert {job["id"] for job in command.jobs()} == {failed, cancelled}

    wait_for(pruned, timeout=40, every=0.3)
    assert command.job(failed)["dead_letter"] == "pending"
    (queue,) = command.status()["queues"]
    assert (queue["queue_size"], queue["in_flight"], queue["failed"]) == (0, 0, 1)


def test_a_drain_reports_jobs_that_its_retention_deletes_at_once(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retention: {succeeded: 0s, cancelled: 0s, failed: 0s}
            dlq: {sinks: [{type: file, path: dead.jsonl}]}
        """,
        plugins=JOBS,
    )
    done, failed = command.enqueue("noop"), command.enqueue("fails")
    command.enqueue_many([{"handler": "noop"}] * 1500)
    run = command.run("--drain")
    assert run.wait(30) == 0
    assert ": 1,501 succeeded, 1 failed, 1 dead letter" in run.out
    assert f"job {failed} fails failed at attempt 1: exception: ValueError: never" in run.out
    assert "supervisor jobs show" not in run.out, "the jobs are deleted"
    assert [json.loads(line)["id"] for line in (command.folder / "dead.jsonl").read_text().splitlines()] == [failed]
    assert command.jobs() == [] and command.status()["queues"] == []
    shown = command.call("jobs", "show", str(done))
    assert (shown.code, shown.out, shown.err) == (2, "", f"Error: no job {done}\n")


def test_a_drain_succeeds_although_its_jobs_cannot_be_deleted(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretention: {succeeded: 0s}\n", plugins=JOBS)
    done = command.enqueue("noop")
    with closing(sqlite3.connect(command.folder / "jobs.db")) as database:
        database.execute(
            "create trigger keep before delete on jobs begin select raise(abort, 'kept for the audit'); end"
        )
    run = command.run("--drain")
    assert run.wait(30) == 0
    assert ": 1 succeeded" in run.out and "kept for the audit" in run.log
    assert command.job(done)["state"] == "succeeded"
    assert not list(command.folder.glob("jobs.db.notify/*")), "the supervisor has left the store"


def test_failed_jobs_without_dead_letters_are_deleted_and_none_keeps_jobs(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretention: {succeeded: none, failed: 1s}\n", plugins=JOBS)
    done = command.enqueue("noop")
    command.enqueue_many([{"handler": "fails"}] * 1500)
    command.run()

    def pruned() -> None:
        assert {job["id"] for job in command.jobs()} == {done}

    wait_for(pruned, timeout=60, every=0.3)
