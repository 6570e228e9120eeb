"""A timeout fires whatever the handler does, is reported with the stack of the job, and ends all its processes."""

from __future__ import annotations

import re

import pytest

from supervisor.workers.parent.stack_text import UNANSWERED
from tests.system import hanging_jobs as hanging
from tests.system.command import Command, Running, wait_for

CONFIG = """
workers: {count: 1, timeout: 1s}
retry: {max_retries: 0}
"""
QUICK = """
from supervisor import handler

@handler
def quick(job):
    return job.payload
"""


def lines_of(run: Running, text: str) -> list[str]:
    return [line for line in run.log.splitlines() if text in line]


@pytest.mark.parametrize("way", [
    hanging.LOOP, hanging.SLEEP, hanging.REGEX, hanging.NAP, hanging.CALL, hanging.DEAF, hanging.BLOCKED, hanging.DEEP,
])  # fmt: skip
def test_a_job_is_killed_at_its_timeout_whatever_it_does_and_the_next_one_runs(command: Command, way: str) -> None:
    command.write(config=CONFIG, plugins={"hanging.py": hanging.PLUGIN, "quick.py": QUICK})
    mark = command.folder / "started"
    hung = command.enqueue(way, str(mark))
    next_one = command.enqueue("quick", "next")
    run = command.run()
    job = command.until(hung, "failed")
    assert mark.exists()
    (error,) = job["errors"]
    assert (error["cause"], error["signal"], error["attempt"]) == ("timeout", "SIGKILL", 1), error
    # Nothing in a process that ignores every signal, and holds the GIL, can show its stack.
    stack = UNANSWERED if way == hanging.DEEP else rf"in {way}\b"
    assert re.search(stack, error["stack"]), error["stack"]
    assert error["peak_memory"] > 1_000_000
    assert command.until(next_one, "succeeded")["errors"] == []
    assert error["pid"] not in command.processes()

    def only_supervisor_forkserver_and_worker() -> None:
        assert len(command.processes()) == 3, command.processes()

    wait_for(only_supervisor_forkserver_and_worker)
    assert len(lines_of(run, "cause=timeout after")) == 1


def test_timeouts_of_all_workers_fire_at_once(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 4, timeout: 1s}
            retry: {max_retries: 0}
        """,
        plugins={"hanging.py": hanging.PLUGIN, "quick.py": QUICK},
    )
    hung = [command.enqueue("call", str(command.folder / f"started-{number}")) for number in range(8)]
    quick = [command.enqueue("quick", number) for number in range(20)]
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert {command.job(id)["errors"][0]["cause"] for id in hung} == {"timeout"}
    assert all((command.job(id)["state"], command.job(id)["errors"]) == ("succeeded", []) for id in quick)
    assert len(lines_of(run, "cause=timeout after")) == 8


def test_a_job_that_ends_just_at_its_timeout_has_one_outcome_and_harms_no_other(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 4}
            retry: {max_retries: 0}
        """,
        plugins={"edge.py": """
            import time
            from supervisor import handler

            @handler(timeout=0.2)
            def edge(job):
                time.sleep(job.payload / 1000)

            @handler(timeout=0.2)
            def instant(job):
                pass
        """},
    )  # fmt: skip
    command.enqueue_many([
        {"handler": "instant"} if number % 2 else {"handler": "edge", "payload": 195 + number % 11}
        for number in range(240)
    ])  # fmt: skip
    run = command.run("--drain")
    assert run.wait(60) == 0
    jobs = command.jobs()
    assert len(jobs) == 240
    instant = [job for job in jobs if job["handler"] == "instant"]
    assert {(job["state"], job["retries"], len(job["errors"])) for job in instant} == {("succeeded", 0, 0)}
    for job in jobs:
        if job["handler"] == "edge":
            causes = [error["cause"] for error in job["errors"]]
            assert (job["state"], causes) in (("succeeded", []), ("failed", ["timeout"])), job


@pytest.mark.parametrize("where", ["workers", "handlers", "decorator"])
def test_a_timeout_of_none_is_no_limit(command: Command, where: str) -> None:
    command.write(
        config={
            "workers": "workers: {count: 1, timeout: none}",
            "handlers": "workers: {count: 1, timeout: 200ms}\nhandlers: {long: {timeout: none}}",
            "decorator": "workers: {count: 1, timeout: 200ms}",
        }[where],
        plugins={"long.py": f"""
            import time
            from supervisor import handler

            @handler({'timeout="none"' if where == "decorator" else ""})
            def long(job):
                time.sleep(1)
        """},
    )  # fmt: skip
    id = command.enqueue("long")
    assert command.run("--drain").wait() == 0
    job = command.job(id)
    assert (job["state"], job["errors"]) == ("succeeded", [])


def test_timeouts_are_retried_with_backoff_up_to_the_dead_letter(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1, timeout: 300ms}
            retry: {max_retries: 2, backoff: {base: 400ms, factor: 2, jitter: none}}
            dlq: {sinks: [{type: file, path: dead.jsonl}]}
        """,
        plugins={"hanging.py": hanging.PLUGIN},
    )
    id = command.enqueue("sleep", str(command.folder / "started"))
    run = command.run("--drain")
    assert run.wait(60) == 0
    job = command.job(id)
    assert (job["state"], job["retries"], job["dead_letter"]) == ("failed", 2, "delivered")
    assert [(error["attempt"], error["cause"]) for error in job["errors"]] == [
        (1, "timeout"),
        (2, "timeout"),
        (3, "timeout"),
    ]
    assert [line.rpartition("; ")[2] for line in lines_of(run, "failed: cause=timeout")] == [
        "retry 1 of 2 in 0.40s", "retry 2 of 2 in 0.80s", "now a dead letter",
    ]  # fmt: skip
    (dead_letter,) = (command.folder / "dead.jsonl").read_text().splitlines()
    assert f'"id":{id}' in dead_letter.replace(" ", "")
