"""Handlers that snooze, end to end: the job runs again without a retry, and its limit outlives the supervisor."""

from __future__ import annotations

import re

import pytest

from tests.system.command import Command, wait_for

PLUGIN = {
    "jobs.py": """
        import asyncio, os
        from datetime import UTC, datetime, timedelta
        from supervisor import Snooze, handler

        def attempt(job):
            with open(f"runs.{job.id}", "a") as runs:
                print(os.getppid(), job.attempt, file=runs)

        @handler(max_retries=0)
        def polls(job):
            attempt(job)
            if not os.path.exists("ready"):
                raise Snooze("100ms")
            return job.attempt

        @handler(max_retries=0)
        async def apolls(job):
            attempt(job)
            if not os.path.exists("ready"):
                async with asyncio.TaskGroup() as group:
                    group.create_task(later())
            return job.attempt

        async def later():
            raise Snooze("100ms")

        @handler(max_retries=0)
        def limited(job):
            attempt(job)
            raise Snooze("10ms", max_snoozes=3)

        @handler(max_retries=0)
        def past(job):
            raise Snooze("1h", until=datetime.now(UTC) + timedelta(minutes=30))

        @handler
        def long(job):
            raise Snooze("1h")

        @handler(max_retries=0)
        def wrong(job):
            raise Snooze("soon")

        @handler(max_retries=0)
        def dies(job):
            attempt(job)
            raise Snooze("1h", max_snoozes=1)
    """
}
CONFIG = "workers: {count: 1}\n"


@pytest.fixture
def snoozing(command: Command) -> Command:
    command.write(config=CONFIG, plugins=PLUGIN)
    return command


def runs(command: Command, id: int) -> list[str]:
    path = command.folder / f"runs.{id}"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("handler", ["polls", "apolls"])
def test_a_job_that_polls_succeeds_at_its_first_attempt(snoozing: Command, handler: str) -> None:
    id = snoozing.enqueue(handler)
    snoozing.run()

    def thrice() -> None:
        assert len(runs(snoozing, id)) >= 3

    wait_for(thrice)
    (snoozing.folder / "ready").touch()
    job = snoozing.until(id, "succeeded")
    assert (job["result"], job["retries"], job["errors"]) == (1, 0, [])
    assert job["snoozes"] == len(runs(snoozing, id)) - 1


def test_the_limit_holds_and_the_drain_says_what_happened(snoozing: Command) -> None:
    id = snoozing.enqueue("limited")
    drain = snoozing.run("--drain")
    assert drain.wait() == 0
    job = snoozing.job(id)
    assert (job["state"], job["snoozes"], len(runs(snoozing, id))) == ("failed", 3, 4)
    (error,) = job["errors"]
    assert error["message"] == "it has snoozed 3 times, the most that max_snoozes=3 allows"
    assert re.search(r"drained in .*: 1 failed, 3 snoozed", drain.out + drain.log)


def test_the_count_outlives_supervisors_that_are_killed(snoozing: Command) -> None:
    id = snoozing.enqueue("dies")
    first = snoozing.run()
    assert snoozing.until(id, "scheduled")["snoozes"] == 1
    first.kill()
    snoozing.ask("jobs", "retry", str(id))
    snoozing.run()
    assert snoozing.until(id, "failed")["snoozes"] == 1
    assert len({line.split()[0] for line in runs(snoozing, id)}) == 2


def test_past_until_it_fails_and_a_wrong_delay_is_an_error_of_the_handler(snoozing: Command) -> None:
    past, wrong = snoozing.enqueue("past"), snoozing.enqueue("wrong")
    snoozing.run()
    assert "the snooze for 1h would end after until=" in snoozing.until(past, "failed")["errors"][0]["message"]
    (error,) = snoozing.until(wrong, "failed")["errors"]
    assert (error["type"], "expected a duration" in error["message"]) == ("ValueError", True)
    assert "raise Snooze" in error["traceback"]


def test_jobs_show_says_until_when_it_snoozes(snoozing: Command) -> None:
    id = snoozing.enqueue("long")
    snoozing.run()
    job = snoozing.until(id, "scheduled")
    shown = snoozing.ask("jobs", "show", str(id))
    assert re.search(r"snoozes +1\n", shown)
    assert f"its handler has snoozed, 1 time so far, until {job['snoozed_until']}, in " in shown


def test_a_call_says_what_a_job_would_do(snoozing: Command) -> None:
    done = snoozing.call("call", "long")
    assert done.code == 1
    assert done.err.rstrip().endswith(
        "Error: snoozed: Snooze: for 1h (a job would run again then, with no retry counted)"
    )
