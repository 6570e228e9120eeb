"""The order of starts, end to end."""

from __future__ import annotations

from typing import Any

from tests.system.command import Command, wait_for

PLUGIN = {
    "named.py": """
        import time
        from pathlib import Path
        from supervisor import handler

        @handler
        def named(job):
            "Record the name and attempt at the start."
            with open("started", "a") as started:
                started.write(f"{job.payload['name']}{'r' if job.attempt > 1 else ''}\\\\n")
            time.sleep(job.payload.get("seconds", 0))
            if job.attempt <= job.payload.get("fails", 0):
                raise RuntimeError("not yet")

        @handler
        def waits(job):
            Path("started").touch()
            while not Path("go").exists():
                time.sleep(0.005)
    """.replace("\\\\", "\\")
}


def named(name: str, **payload: Any) -> dict[str, Any]:
    return {"handler": "named", "payload": {"name": name, **payload}}


def order(command: Command) -> list[str]:
    path = command.folder / "started"
    return path.read_text().split() if path.exists() else []


def drained(command: Command) -> list[str]:
    assert command.run("--drain").wait(60) == 0
    return order(command)


def test_a_retry_is_the_next_job_to_start_after_the_one_that_ran_when_its_backoff_ended(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retry: {backoff: {base: 100ms, jitter: none}}
        """,
        plugins=PLUGIN,
    )
    command.enqueue_many([
        named("A1", seconds=0.6, fails=1), *(named(name, seconds=0.6) for name in ("A2", "A3", "B1", "B2", "B3")),
    ])  # fmt: skip
    assert drained(command) == ["A1", "A2", "A1r", "A3", "B1", "B2", "B3"]


def test_two_retries_that_are_due_go_first_in_the_order_of_their_age(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retry: {backoff: {base: 100ms, jitter: none}}
        """,
        plugins=PLUGIN,
    )
    command.enqueue_many([
        named("A1", seconds=0.05, fails=1), named("C5", seconds=0.05, fails=1),
        *(named(name, seconds=0.6) for name in ("A0", "A2", "A3", "B1")),
    ])  # fmt: skip
    assert drained(command) == ["A1", "C5", "A0", "A1r", "C5r", "A2", "A3", "B1"]


def test_a_lone_retry_overtakes_two_thousand_fresh_jobs(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 2}
            retry: {backoff: {base: 50ms, jitter: none}}
        """,
        plugins=PLUGIN,
    )
    command.enqueue_many([named("lone", fails=1), *(named("fresh", seconds=0.002) for _ in range(2000))])
    at = drained(command).index("loner")
    assert at < 250, "after the jobs of its backoff and those under way, not after all"


def test_priority_goes_before_age_and_urgent_jobs_before_retries(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retry: {backoff: {base: 1ms, jitter: none}}
        """,
        plugins=PLUGIN,
    )
    command.enqueue_many([
        {**named("low"), "priority": -5}, named("first"), named("second"), {**named("high", fails=1), "priority": 10},
        {**named("urgent"), "priority": 100}, {**named("most"), "priority": 200},
    ])  # fmt: skip
    started = drained(command)
    assert [name for name in started if name != "highr"] == ["most", "urgent", "high", "first", "second", "low"]


def test_a_long_job_blocks_no_quick_ones(command: Command) -> None:
    """Quick jobs may have been sent behind it, since the handler was known to be quick."""
    command.write(config="workers: {count: 2, timeout: none}\n", plugins=PLUGIN)
    run = command.run()
    quick = [command.enqueue("named", {"name": "warm"}) for _ in range(20)]
    for id in quick:
        command.until(id, "succeeded")
    command.enqueue_many([named("long", seconds=3600), *(named("quick") for _ in range(20))])

    def all_quick_ones() -> None:
        assert order(command).count("quick") == 20, order(command)
        jobs = command.jobs("--handler", "named")
        assert [job["payload"]["name"] for job in jobs if job["state"] != "succeeded"] == ["long"]

    wait_for(all_quick_ones)
    assert run.code is None


def test_retries_take_no_more_than_their_share_while_fresh_jobs_wait(command: Command) -> None:
    command.write(
        config="""
            workers: {count: 1}
            retry: {fetch_ratio: 0.2, burst: 4, max_in_flight: none, backoff: {base: 1ms, jitter: none}}
        """,
        plugins=PLUGIN,
    )
    command.enqueue_many([
        *({**named("failing", fails=1), "priority": 50} for _ in range(100)), *(named("fresh") for _ in range(600)),
    ])  # fmt: skip
    started = drained(command)
    assert len(started) == 100 + 100 + 600
    both_wait = started[100 : 100 + started[100:].index("failingr") + 300]
    share = both_wait.count("failingr") / len(both_wait)
    assert share <= 0.2 + 8 / len(both_wait), share
    last_fresh = len(started) - 1 - started[::-1].index("fresh")
    assert started[:last_fresh].count("failingr") > 50, "and not much less"
