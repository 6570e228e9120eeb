"""Commands of an operator while a supervisor runs."""

from __future__ import annotations

import os
import signal

import pytest

from supervisor.stores.supervisors import ABOUT
from tests.system.command import Command, Running, wait_for

JOBS = {
    "jobs.py": """
        import os, time
        from supervisor import handler

        @handler
        def noop(job):
            return job.attempt

        @handler
        def hang(job):
            with open("begun", "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(3600)

        @handler(max_retries=0)
        def fails(job):
            if not os.path.exists("mended"):
                raise ValueError("never")

        @handler(max_retries=1, backoff={"base": "1h", "max": "1h", "jitter": "none"})
        def once_more(job):
            if job.attempt == 1:
                raise ValueError("not yet")
            return job.attempt
    """
}
FILE = "workers: {count: 2}\ndlq: {sinks: [{type: file, path: dead.jsonl}]}\n"
JOB_KEYS = {"id", "handler", "payload", "queue", "priority", "state", "attempt", "retries", "max_retries", "due_at", "snoozes", "snoozed_until",
} | {
    "created_at", "started_at", "finished_at", "result", "headers", "errors", "dead_letter", "missing_sinks"}  | {"expired_count", "lease", "waiting_because", "progress", "log",
}  # fmt: skip
JOB_KEYS |= {"unique", "key", "group", "after", "tags", "expires_at", "key_held_by", "parents", "children"}
JOB_KEYS |= {"on_failure", "on_parent_failed", "unique_while", "options"}
LEASES = {"in_flight", "lease_until"}
QUEUE_KEYS = {
    "queue",
    "queue_size",
    "retry_queue_size",
    "blocked",
    "scheduled",
    "in_flight",
    "failed",
    "paused",
    "processing",
}


def serve(command: Command, config: str = "workers: {count: 2}\n") -> Running:
    command.write(config=config, plugins=JOBS)
    run = command.run()
    run.logged("supervisor started")
    return run


def pids(command: Command) -> list[int]:
    file = command.folder / "begun"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_begun(command: Command, count: int = 1) -> None:
    def begun() -> None:
        assert len(pids(command)) >= count

    wait_for(begun)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_cancel_of_a_running_job_kills_its_worker(command: Command) -> None:
    run = serve(command, FILE)
    id = command.enqueue("hang")
    wait_begun(command)
    assert command.ask("jobs", "cancel", str(id)) == f"cancelled: {id}\n"
    assert command.job(id)["state"] == "cancelled"
    wait_for(lambda: not alive(pids(command)[0]))
    assert command.until(command.enqueue("noop"), "succeeded")["result"] == 1
    job = command.job(id)
    assert (job["state"], job["retries"], job["dead_letter"], job["errors"]) == ("cancelled", 0, None, [])
    run.logged(f"job={id} handler=hang cancelled")
    assert " INFO " in run.logged(f"killed: job={id} handler=hang cause=cancelled")
    assert "stale" not in run.log
    assert len(pids(command)) == 1


def test_cancel_of_a_running_job_ends_a_drain_that_waits_for_it(command: Command) -> None:
    run = serve(command, FILE + "shutdown: {grace: 1h}\n")
    id = command.enqueue("hang")
    wait_begun(command)
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    command.ask("jobs", "cancel", str(id))
    assert run.wait() == 0
    assert command.job(id)["state"] == "cancelled"


def test_cancel_of_waiting_jobs_ends_them(command: Command) -> None:
    serve(command)
    delayed = command.enqueue("noop", None, "--delay", "1h")
    command.ask("queues", "pause", "slow")
    waiting = command.enqueue("noop", None, "--queue", "slow")
    command.ask("jobs", "cancel", str(delayed), str(waiting))
    assert {job["state"] for job in command.jobs()} == {"cancelled"}
    ended = command.call("jobs", "cancel", str(delayed))
    assert (ended.code, "cancelled" in ended.err) == (2, True)


def test_a_job_in_flight_is_not_deleted(command: Command) -> None:
    serve(command)
    id = command.enqueue("hang")
    wait_begun(command)
    ended = command.call("jobs", "delete", str(id))
    assert ended.code == 2
    assert f"job {id}" in ended.err
    assert command.job(id)["state"] == "in_flight"
    command.ask("jobs", "cancel", str(id))
    command.ask("jobs", "delete", str(id))
    assert command.call("jobs", "show", str(id)).code == 2


def test_retry_of_a_job_in_backoff_makes_it_due_now(command: Command) -> None:
    serve(command, "workers: {count: 2}\nretry: {backoff: {max: 1h}}\n")
    id = command.enqueue("once_more")
    job = command.until(id, "scheduled")
    assert job["retries"] == 1
    command.ask("jobs", "retry", str(id))
    job = command.until(id, "succeeded")
    assert (job["retries"], job["result"], len(job["errors"])) == (1, 2, 1)


def test_retry_of_a_failed_job_runs_it_again_and_keeps_its_history(command: Command) -> None:
    serve(command)
    id = command.enqueue("fails")
    command.until(id, "failed")
    (command.folder / "mended").touch()
    command.ask("jobs", "retry", str(id))
    job = command.until(id, "succeeded")
    assert (job["retries"], job["attempt"], len(job["errors"])) == (0, 1, 1)


def test_only_the_first_of_many_refused_jobs_are_named(command: Command) -> None:
    command.enqueue("noop")
    ended = command.call("jobs", "cancel", *map(str, range(100, 1500)))
    assert ended.code == 2
    assert ended.err.startswith("Error: job 100: no such job; job 101: ")
    assert ended.err.endswith("; job 119: no such job; and 1,380 more\n")


def test_dead_letters_are_listed_shown_redriven_and_purged(command: Command) -> None:
    serve(command, FILE)
    ids = [command.enqueue("fails") for _ in range(3)]

    def delivered() -> None:
        assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}

    wait_for(delivered)
    assert command.ask("dlq", "list", "--json").count("\n") == 3
    assert "ValueError" in command.ask("dlq", "show", str(ids[0]))
    assert command.ask("dlq", "purge", "--yes") == "purged: 3 jobs\n"
    assert command.ask("dlq", "list", "--json") == ""
    ids = [command.enqueue("fails") for _ in range(3)]
    wait_for(delivered)
    (command.folder / "mended").touch()
    command.ask("dlq", "redrive", str(ids[0]))
    command.until(ids[0], "succeeded")
    command.ask("dlq", "redrive", "--all")
    for id in ids[1:]:
        assert len(command.until(id, "succeeded")["errors"]) == 1
    assert command.ask("dlq", "redrive", "--all") == "no dead letters\n"


@pytest.mark.usefixtures("without_polls")
def test_a_paused_queue_starts_no_job_and_resume_notifies_the_supervisor(command: Command) -> None:
    serve(command, "workers: {count: 1}\n")
    for _ in range(200):  # so that the run time is known, and the supervisor claims jobs behind the running one
        command.enqueue("noop")

    def all_done() -> None:
        assert command.jobs("--state", "ready") == []

    wait_for(all_done)
    hanging = command.enqueue("hang")
    wait_begun(command)
    ids = [command.enqueue("noop") for _ in range(50)]
    command.ask("queues", "pause", "default")
    command.ask("jobs", "cancel", str(hanging))
    other = command.enqueue("noop", None, "--queue", "other")
    command.until(other, "succeeded")

    def released() -> None:
        assert {command.job(id)["state"] for id in ids} == {"ready"}

    wait_for(released)
    assert [row["paused"] for row in command.status()["queues"] if row["queue"] == "default"] == [True]
    command.ask("queues", "resume", "default")
    for id in ids:
        assert command.until(id, "succeeded")["retries"] == 0


def test_jobs_are_listed_by_state_queue_and_handler(command: Command) -> None:
    serve(command)
    failed = command.enqueue("fails", None, "--queue", "a")
    done = command.enqueue("noop", None, "--queue", "b")
    command.until(failed, "failed")
    command.until(done, "succeeded")

    def listed(*options: str) -> list[int]:
        return [job["id"] for job in command.jobs(*options)]

    assert listed() == [done, failed]
    assert listed("--state", "failed") == listed("--queue", "a") == listed("--handler", "fails") == [failed]
    assert listed("--handler", "noop", "--queue", "b", "--state", "succeeded") == [done]
    assert listed("--handler", "noop", "--queue", "a") == []
    assert command.ask("jobs", "list", "--json", "--limit", "1").count("\n") == 1


def test_json_has_exactly_the_documented_keys(command: Command) -> None:
    run = serve(command)
    id = command.enqueue("hang", {"to": "me"})
    wait_begun(command)
    assert set(command.job(id)) == JOB_KEYS

    def shown() -> None:
        status = command.status()
        assert {"queues", "supervisors"} <= set(status)
        (queue,) = status["queues"]
        assert set(queue) == QUEUE_KEYS
        assert (queue["queue"], queue["in_flight"], queue["queue_size"], queue["paused"]) == ("default", 1, 0, False)
        (row,) = status["supervisors"]
        assert set(row) == {"owner", "host", "pid", "state", "seen_at", "workers", "sinks", *LEASES, *ABOUT}
        assert (row["pid"], row["state"]) == (run.pid, "running")
        busy = [worker for worker in row["workers"] if worker["current_job"]]
        assert len(busy) == 1
        assert set(busy[0]) == {"pid", "state", "group", "async", "current_job"}
        assert (busy[0]["pid"], busy[0]["state"]) == (pids(command)[0], "busy")
        current = busy[0]["current_job"]
        assert set(current) == {
            "job_id",
            "handler",
            "retry_count",
            "is_retry",
            "running_for",
            "running_since",
            "progress",
        }
        assert (current["job_id"], current["handler"]) == (id, "hang")
        assert (current["retry_count"], current["is_retry"]) == (0, False)
        assert current["running_for"] >= 0

    wait_for(shown)
    assert "hang" in command.ask("status")


def test_a_command_on_a_job_that_does_not_exist_is_a_mistake(command: Command) -> None:
    serve(command)
    for name in ("cancel", "retry", "delete", "show"):
        ended = command.call("jobs", name, "4711")
        assert (ended.code, "4711" in ended.err, "Traceback" in ended.err) == (2, True, False), ended
