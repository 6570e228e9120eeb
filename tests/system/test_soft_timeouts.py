"""A soft timeout and a cancel are raised in the handler that runs, so that it can tidy up before its worker is killed."""

from __future__ import annotations

import pytest

from tests.system.command import Command, wait_for

CONFIG = """
workers: {{count: 1, start: {start}, timeout: 20s, async: {{cancel_grace: {async_grace}}}}}
handlers: {{bare: {{soft_timeout: 200ms}}}}
retry: {{max_retries: 0}}
"""
PLUGIN = """
    import asyncio, ctypes, os, re, subprocess, threading, time
    from supervisor import JobCancelled, JobTimeout, handler

    def note(text):
        with open("notes", "a") as file:
            print(text, file=file)

    @handler
    def bare(job):
        time.sleep(3600)

    @handler(soft_timeout="200ms")
    def tidies(job):
        try:
            time.sleep(3600)
        except JobTimeout as error:
            return f"tidied up: {error}"

    @handler(soft_timeout="200ms", max_retries=1)
    def retried(job):
        if job.attempt == 1:
            while True:
                pass
        return "the second attempt"

    @handler(soft_timeout="200ms")
    def program(job):
        try:
            subprocess.run(["sleep", "3600"])
        finally:
            note("program ended")

    @handler(soft_timeout="200ms")
    def own_loop(job):
        asyncio.run(asyncio.sleep(3600))

    @handler(soft_timeout="200ms")
    def waits_for_a_lock(job):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    @handler(soft_timeout="200ms")
    def reads(job):
        os.read(os.pipe()[0], 1)

    @handler(soft_timeout="200ms")
    def forks(job):
        "The copy is not interrupted, and its end is that of the job."
        if (pid := os.fork()) == 0:
            time.sleep(0.6)
            os._exit(7)
        while True:
            try:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            except JobTimeout:
                note("parent")

    @handler(soft_timeout="200ms", timeout="1s")
    def c_code(job):
        re.match("(a+)+b", "a" * 60)

    @handler(soft_timeout="200ms", timeout="1s")
    def nap(job):
        ctypes.PyDLL(None).sleep(3600)

    @handler(soft_timeout="200ms", timeout="1s")
    def catches_all(job):
        while True:
            try:
                time.sleep(3600)
            except BaseException as error:
                note(type(error).__name__)

    @handler(soft_timeout="200ms")
    def catches_exceptions(job):
        while True:
            try:
                time.sleep(3600)
            except Exception:
                note("caught")

    @handler(cancel_grace="10s")
    def cancelled(job):
        note("started")
        before = job.cancelled
        try:
            time.sleep(3600)
        except JobCancelled:
            note(f"{before} {job.cancelled}")
            raise

    @handler(cancel_grace="10s")
    def computes(job):
        note("started")
        try:
            while True:
                pass
        except JobCancelled:
            note("tidied up")

    @handler(cancel_grace="300ms")
    def stubborn(job):
        note("started")
        while True:
            try:
                time.sleep(3600)
            except BaseException as error:
                note(type(error).__name__)

    @handler
    def at_once(job):
        note("started")
        try:
            time.sleep(3600)
        except BaseException as error:
            note(type(error).__name__)

    @handler
    def quick(job):
        note("quick")

    @handler(soft_timeout="200ms")
    async def async_tidies():
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(3600))
        except JobTimeout as error:
            await asyncio.sleep(0.01)
            return f"tidied up: {error}"

    @handler(soft_timeout="200ms")
    async def async_bare():
        await asyncio.sleep(3600)

    @handler
    async def async_plain(job):
        note("started")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            note(f"{type(error).__name__} {job.cancelled}")
            raise

    @handler(cancel_grace="9s")
    async def async_cancelled(job):
        note("started")
        try:
            await asyncio.sleep(3600)
        except JobCancelled:
            note(f"tidied up {job.cancelled}")
            raise
"""
TEXT = "still running after its soft_timeout of 0.2s"


@pytest.fixture
def here(command: Command) -> Command:
    command.write(config=CONFIG.format(start="fork", async_grace="10s"), plugins={"plugin.py": PLUGIN})
    return command


def notes(command: Command) -> list[str]:
    file = command.folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def has_noted(command: Command, note: str) -> None:
    wait_for(lambda: note in notes(command))


def failed(command: Command, handler: str) -> dict[str, str]:
    id = command.enqueue(handler)
    command.run()
    error: dict[str, str] = command.until(id, "failed")["errors"][-1]
    return error


@pytest.mark.parametrize("handler", ["bare", "async_bare"])
def test_a_handler_that_does_not_catch_its_soft_timeout_fails_by_timeout(here: Command, handler: str) -> None:
    error = failed(here, handler)
    assert (error["cause"], error["type"], error["message"]) == ("timeout", "supervisor.handlers.JobTimeout", TEXT)
    assert "sleep(3600)" in error["traceback"]
    assert "interrupt" not in error["traceback"]


@pytest.mark.parametrize("handler", ["tidies", "async_tidies"])
def test_a_handler_that_catches_its_soft_timeout_and_returns_has_succeeded(here: Command, handler: str) -> None:
    id = here.enqueue(handler)
    here.run()
    assert here.until(id, "succeeded")["result"] == f"tidied up: {TEXT}"


def test_an_attempt_that_a_soft_timeout_ends_is_retried(here: Command) -> None:
    id = here.enqueue("retried")
    here.run()
    job = here.until(id, "succeeded")
    assert (job["result"], [error["cause"] for error in job["errors"]]) == ("the second attempt", ["timeout"])


def test_a_soft_timeout_ends_the_wait_for_a_program(here: Command) -> None:
    assert failed(here, "program")["type"] == "supervisor.handlers.JobTimeout"
    assert notes(here) == ["program ended"]


@pytest.mark.parametrize("handler", ["c_code", "nap"])
def test_c_code_that_never_returns_is_killed_at_the_timeout(here: Command, handler: str) -> None:
    error = failed(here, handler)
    assert (error["cause"], error["type"], error["signal"]) == ("timeout", "Timeout", "SIGKILL")


@pytest.mark.parametrize("handler", ["own_loop", "waits_for_a_lock", "reads"])
def test_a_soft_timeout_ends_other_waits(here: Command, handler: str) -> None:
    assert failed(here, handler)["type"] == "supervisor.handlers.JobTimeout"


def test_a_copy_that_a_job_forks_is_not_interrupted(here: Command) -> None:
    id = here.enqueue("forks")
    here.run()
    assert here.until(id, "succeeded")["result"] == 7
    assert notes(here) == ["parent"]


def test_spawned_workers_interrupt_their_handlers_too(command: Command) -> None:
    command.write(config=CONFIG.format(start="spawn", async_grace="10s"), plugins={"plugin.py": PLUGIN})
    ids = [command.enqueue("tidies"), command.enqueue("async_tidies")]
    command.run()
    for id in ids:
        assert command.until(id, "succeeded")["result"] == f"tidied up: {TEXT}"
    id = command.enqueue("cancelled")
    has_noted(command, "started")
    command.ask("jobs", "cancel", str(id))
    has_noted(command, "False True")


def test_a_handler_that_catches_everything_gets_one_exception_and_is_killed_at_the_timeout(here: Command) -> None:
    error = failed(here, "catches_all")
    assert (error["type"], error["signal"], notes(here)) == ("Timeout", "SIGKILL", ["JobTimeout"])


def test_a_soft_timeout_is_not_caught_as_an_exception(here: Command) -> None:
    assert failed(here, "catches_exceptions")["type"] == "supervisor.handlers.JobTimeout"
    assert notes(here) == []


SHORT = """
    import time
    from supervisor import JobTimeout, handler, hookimpl

    @hookimpl(wrapper=True)
    def supervisor_run(job):
        try:
            result = yield
        except JobTimeout:
            if job.payload != job.headers.get("payload", job.payload):
                raise ValueError("of another job")
            return "interrupted"
        for _ in range(100):
            pass
        return result

    @handler(soft_timeout="10ms")
    def short(job):
        end = time.perf_counter() + job.payload / 1000
        while time.perf_counter() < end:
            pass
        return "ended"

    @handler
    def unlimited(job):
        time.sleep(job.payload / 1000)
        return "ended"
"""


def test_no_job_is_hit_by_the_soft_timeout_of_another_one(command: Command) -> None:
    """Jobs of about 10 ms end while the timer expires; those beside them are far too short for it, or have none."""
    command.write(config="workers: {count: 2}\nretry: {max_retries: 0}", plugins={"plugin.py": SHORT})
    jobs = []
    for number in range(700):
        jobs.append({"handler": "short", "payload": 9.5 + number % 10 / 10, "queue": "long"})
        jobs.append({"handler": "short", "payload": 0})
        jobs.append({"handler": "unlimited", "payload": 0.1})
    command.enqueue_many(jobs)
    assert command.run("--drain").wait(120) == 0
    ended = command.jobs()
    assert {job["state"] for job in ended} == {"succeeded"}
    others = [job for job in ended if job["queue"] != "long"]
    assert {job["result"] for job in others if job["handler"] == "unlimited"} == {"ended"}
    assert "interrupted" in {job["result"] for job in ended}, "none of the long ones was interrupted"


@pytest.mark.parametrize(
    ("handler", "note"),
    [
        ("cancelled", "False True"),
        ("computes", "tidied up"),
        ("async_cancelled", "tidied up True"),
        ("async_plain", "CancelledError True"),
    ],
)
def test_a_cancelled_job_may_tidy_up(here: Command, handler: str, note: str) -> None:
    id = here.enqueue(handler)
    run = here.run()
    has_noted(here, "started")
    here.ask("jobs", "cancel", str(id))
    has_noted(here, note)
    later = here.enqueue("quick")
    here.until(later, "succeeded")
    job = here.job(id)
    assert (job["state"], job["errors"]) == ("cancelled", [])
    assert "killed" not in run.log, run.log


@pytest.mark.parametrize(("handler", "seen"), [("stubborn", ["JobCancelled"]), ("at_once", [])])
def test_a_cancelled_job_that_goes_on_is_killed_after_its_grace(here: Command, handler: str, seen: list[str]) -> None:
    id = here.enqueue(handler)
    run = here.run()
    has_noted(here, "started")
    here.ask("jobs", "cancel", str(id))
    run.logged(f"killed: job={id} handler={handler} cause=cancelled")
    assert notes(here) == ["started", *seen]
