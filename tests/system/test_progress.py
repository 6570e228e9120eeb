"""Jobs report how far they have come, and what they have logged is kept: in real workers, as commands show it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import orjson
import pytest

from tests.system.command import Command, Ended, wait_for

CONFIG = """
workers: {count: 1, start: %s}
retry: {max_retries: 1, backoff: {base: 10ms, max: 20ms}}
"""
PLUGIN = """
    import asyncio, logging, os, pathlib, subprocess, sys, threading, time
    from supervisor import handler

    def wait_for(name):
        while not pathlib.Path(name).exists():
            time.sleep(0.01)

    @handler
    def long(job):
        for done in range(1000):
            job.progress(done, 1000, "first")
        print("from print")
        logging.getLogger("app").warning("from logging")
        job.log("from %s", "job.log")
        wait_for("go")
        job.progress(1000, 1000, "last")

    @handler
    async def long_async(job):
        for done in range(1000):
            job.progress(done, 1000, "first")
        print("from print")
        logging.getLogger("app").warning("from logging")
        job.log("from %s", "job.log")
        await asyncio.to_thread(wait_for, "go")
        job.progress(1000, 1000, "last")

    @handler
    def quick(job):
        job.progress(1, 2)
        print("out")
        print("err", file=sys.stderr)
        subprocess.run(["echo", "program"])
        return ['"}]', "x,y"]

    @handler
    async def quick_async(job):
        job.log("one line")
        return 1

    @handler
    def silent(job):
        return 1

    @handler
    def fails(job):
        job.progress(job.attempt)
        job.log("attempt %d", job.attempt)
        raise ValueError("no")

    @handler
    def crashes(job):
        job.progress(3)
        print("last words")
        while not os.path.exists(f"go {job.attempt}"):
            time.sleep(0.01)
        os._exit(1)

    @handler
    def from_a_thread(job):
        def report():
            job.progress(5)
            job.log("from a thread")
        thread = threading.Thread(target=report)
        thread.start()
        thread.join()

    @handler
    def wrong(job):
        job.progress("half")

    @handler
    def flood(job):
        for n in range(5000):
            print(n)
"""


@pytest.fixture
def started(command: Command, request: pytest.FixtureRequest) -> Command:
    command.write(config=CONFIG % getattr(request, "param", "fork"), plugins={"p.py": PLUGIN})
    return command


def drained(command: Command, *handlers: str) -> list[dict[str, Any]]:
    ids = [command.enqueue(handler) for handler in handlers]
    command.run("--drain").wait()
    return [command.job(id) for id in ids]


def progress(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(job["progress"][key] for key in ("done", "total", "message", "attempt"))


@pytest.mark.parametrize("handler", ["long", "long_async"])
@pytest.mark.parametrize("started", ["fork", "spawn"], indirect=True)
def test_a_job_that_runs_shows_its_progress_and_its_log_and_is_followed_to_its_end(
    started: Command, handler: str
) -> None:
    id = started.enqueue(handler)
    run = started.run()
    followed: list[Ended] = []
    follower = threading.Thread(target=lambda: followed.append(started.call("jobs", "show", str(id), "--follow")))
    follower.start()

    def reported() -> dict[str, Any]:
        job = started.job(id)
        assert job["state"] == "in_flight" and job["progress"] and job["log"]
        assert progress(job) == (999, 1000, "first", 1)
        assert {*job["log"]["lines"]} == {"from print", "WARNING app: from logging", "INFO job: from job.log"}
        return job

    job = wait_for(reported)
    running = [worker["current_job"] for worker in started.status()["supervisors"][0]["workers"]]
    assert [it["progress"] for it in running if it] == [job["progress"]]
    assert "999/1,000 (100%) first" in started.ask("status")
    (started.folder / "go").touch()
    follower.join()
    (ended,) = followed
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[-2:] == ["progress: 1,000/1,000 (100%) last", f"job {id} ({handler}) succeeded"]
    assert [line for line in lines if line in job["log"]["lines"]] == job["log"]["lines"]
    assert progress(started.job(id)) == (1000, 1000, "last", 1)
    assert "job=1" in run.logged("from job.log")


def test_what_a_short_job_has_reported_and_written_last_is_kept_with_its_outcome(started: Command) -> None:
    quick, quick_async, silent = drained(started, "quick", "quick_async", "silent")
    assert progress(quick) == (1, 2, None, 1)
    assert sorted(quick["log"]["lines"]) == ["err", "out", "program"]
    assert quick["result"] == ['"}]', "x,y"]
    assert (quick_async["log"]["lines"], quick_async["result"]) == (["INFO job: one line"], 1)
    assert (silent["progress"], silent["log"], silent["result"]) == (None, None, 1)


def test_progress_and_log_are_those_of_the_last_attempt(started: Command) -> None:
    (job,) = drained(started, "fails")
    assert progress(job) == (2, None, None, 2)
    assert job["log"] == {"attempt": 2, "skipped": 0, "lines": ["INFO job: attempt 2"]}
    ended = started.call("jobs", "show", str(job["id"]), "--follow", "--json")
    assert (ended.code, orjson.loads(ended.out)["state"]) == (1, "failed")
    assert "log of attempt 2" in started.ask("jobs", "show", str(job["id"]))


def test_what_a_job_has_reported_before_it_crashed_is_kept(started: Command) -> None:
    id = started.enqueue("crashes")
    run = started.run("--drain")

    def has_reported(attempt: int) -> bool:
        return (started.job(id)["progress"] or {}).get("attempt") == attempt

    for attempt in (1, 2):
        wait_for(partial(has_reported, attempt))
        (started.folder / f"go {attempt}").touch()
    assert run.wait(60) == 0
    job = started.job(id)
    assert (job["state"], progress(job), job["log"]["lines"]) == ("failed", (3, None, None, 2), ["last words"])


def test_a_thread_of_a_job_reports_for_it(started: Command) -> None:
    (job,) = drained(started, "from_a_thread")
    assert (progress(job), job["log"]["lines"]) == ((5, None, None, 1), ["INFO job: from a thread"])


def test_progress_that_is_no_number_fails_the_job_by_name(started: Command) -> None:
    (job,) = drained(started, "wrong")
    assert job["errors"][-1]["message"] == "progress: done: expected a number, got 'half'"


def test_of_a_flood_the_last_hundred_lines_are_kept(started: Command) -> None:
    (job,) = drained(started, "flood")
    assert (job["log"]["lines"], job["log"]["skipped"]) == ([str(n) for n in range(4900, 5000)], 4900)
    assert "4900 lines left out" in started.ask("jobs", "show", str(job["id"])).replace(",", "")


def test_to_follow_a_job_that_does_not_exist_is_a_mistake(started: Command) -> None:
    started.enqueue("silent")
    ended = started.call("jobs", "show", "99", "--follow")
    assert (ended.code, ended.err) == (2, "Error: no job 99\n")


def test_call_prints_progress_and_messages(started: Command) -> None:
    ended = started.call("call", "from_a_thread")
    assert (ended.code, ended.out) == (0, "null\n")
    assert "progress: 5\n" in ended.err and "INFO job: from a thread\n" in ended.err
    (started.folder / "go").touch()
    lines = started.call("call", "long").err.splitlines()
    assert [line for line in lines if line.startswith("progress")] == [
        "progress: 0/1,000 (0%) first", "progress: 1,000/1,000 (100%) last",
    ]  # fmt: skip
