"""Async handlers: many jobs at once in one worker, each with a deadline, output and an outcome of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.system.command import Command, wait_for

CONFIG = """
workers: {{count: 1, start: {start}, async: {{concurrency: 20, cancel_grace: 200ms}}}}
retry: {{max_retries: {retries}, backoff: {{base: 10ms, max: 20ms}}}}
log: {{level: info}}
"""
PLUGIN = """
    import asyncio, logging, os, pathlib, time
    from datetime import date
    from supervisor import handler, hookimpl

    logger = logging.getLogger(__name__)

    @handler
    async def meet(name: str, number: int):
        "Return once so many jobs have come."
        pathlib.Path(f"{name}.{os.getpid()}.{id(asyncio.current_task())}").touch()
        while len(list(pathlib.Path().glob(f"{name}.*"))) < number:
            await asyncio.sleep(0.01)
        return os.getpid()

    @handler
    async def typed(day: date):
        return day

    @handler
    def sync(job):
        return os.getpid()

    @handler(timeout="300ms")
    async def endless():
        await asyncio.sleep(3600)

    @handler(timeout="300ms")
    async def late():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "tidied up"

    @handler(timeout="300ms")
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    @handler(timeout="300ms")
    async def blocks():
        time.sleep(3600)

    @handler
    async def blocks_for(seconds: float):
        time.sleep(seconds)

    @handler
    async def waits_for(file: str):
        pathlib.Path(file + ".waits").touch()
        while not pathlib.Path(file).exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    @handler
    async def crashes(file: str):
        while not pathlib.Path(file).exists():
            await asyncio.sleep(0.01)
        os._exit(7)

    @handler
    async def talks(name: str):
        for number in range(3):
            print(name, number)
            logger.warning("%s logs %d", name, number)
            await asyncio.sleep(0.001)
        raise ValueError(name)

    @hookimpl(wrapper=True)
    def supervisor_run(job):
        result = yield
        return [job.handler, result] if job.handler == "typed" else result
"""


@pytest.fixture
def start(command: Command) -> Any:
    def start(retries: int = 0, start: str = "fork", plugin: str = PLUGIN) -> None:
        command.write(config=CONFIG.format(retries=retries, start=start), plugins={"p.py": plugin})

    return start


def ended(command: Command) -> dict[str, list[dict[str, Any]]]:
    command.run("--drain").wait(90)
    found: dict[str, list[dict[str, Any]]] = {}
    for job in sorted(command.jobs("--limit", "1000"), key=lambda job: job["id"]):
        found.setdefault(job["handler"], []).append(job)
    return found


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_jobs_of_async_handlers_run_at_once_beside_those_of_others(command: Command, start: Any, kind: str) -> None:
    start(start=kind)
    for _ in range(20):
        command.enqueue("meet", {"name": "a", "number": 20})
    command.enqueue("sync")
    jobs = ended(command)
    (worker,) = {job["result"] for job in jobs["meet"]}
    assert jobs["sync"][0]["result"] not in (None, worker)


def test_parameters_results_and_wrappers_are_those_of_other_handlers(command: Command, start: Any) -> None:
    start()
    command.enqueue("typed", {"day": "2030-01-31"})
    command.enqueue("typed", {"day": "someday"})
    good, bad = ended(command)["typed"]
    assert good["result"] == ["typed", "2030-01-31"]
    assert (bad["state"], bad["errors"][0]["cause"]) == ("failed", "rejected")


WRAPPER = """
    @hookimpl(wrapper=True, specname="supervisor_run")
    async def around(job):
        try:
            await asyncio.sleep(0.01)
            yield
        finally:
            await asyncio.sleep(0.01)
            with open(f"after.{job.handler}", "a") as file:
                file.write(".")
"""


def test_async_wrappers_are_run_around_async_handlers(command: Command, start: Any) -> None:
    start(plugin=PLUGIN + WRAPPER)
    command.enqueue("typed", {"day": "2030-01-31"})
    command.enqueue("endless")
    command.enqueue("sync")
    jobs = ended(command)
    assert jobs["typed"][0]["result"] == ["typed", "2030-01-31"]
    assert [error["cause"] for error in jobs["endless"][0]["errors"]] == ["timeout"]
    assert jobs["sync"][0]["state"] == "succeeded"
    assert sorted(file.name for file in command.folder.glob("after.*")) == ["after.endless", "after.typed"]


def test_a_job_past_its_deadline_is_cancelled_and_its_worker_goes_on(command: Command, start: Any) -> None:
    start()
    for handler in ("endless", "late"):
        command.enqueue(handler)
    command.enqueue("waits_for", {"file": "go"})
    run = command.run()
    job = command.until(1, "failed")
    (error,) = job["errors"]
    assert (error["cause"], error["message"]) == ("timeout", "still running after its timeout of 0.3s; cancelled")
    assert "endless" in error["traceback"]
    assert command.until(2, "succeeded")["result"] == "tidied up"
    (command.folder / "go").touch()
    command.until(3, "succeeded")
    assert "killed" not in run.log


@pytest.mark.parametrize(
    ("handler", "blocked"), [("stubborn", ""), ("blocks", ", and blocked the event loop of its worker for ")]
)
def test_a_job_that_can_not_be_cancelled_is_killed_and_the_others_run_again(
    command: Command, start: Any, handler: str, blocked: str
) -> None:
    start()
    command.enqueue("waits_for", {"file": "go"})
    run = command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    id = command.enqueue(handler)
    (error,) = command.until(id, "failed")["errors"]
    assert error["cause"] == "timeout"
    assert error["message"].startswith(f"still running after its timeout of 0.3s{blocked or ';'}")
    assert error["stack"]
    (command.folder / "go").touch()
    innocent = command.until(1, "succeeded")
    assert (innocent["retries"], innocent["errors"]) == (0, [])
    assert f"handler={handler} cause=timeout" in run.log


def test_a_job_that_blocks_the_loop_is_named_with_its_stack(command: Command, start: Any) -> None:
    start()
    command.enqueue("blocks_for", {"seconds": 0.6})
    run = command.run("--drain")
    run.wait()
    assert "job=1 handler=blocks_for attempt=1: blocks the event loop of its worker for" in run.log
    assert "in blocks_for" in run.log


def test_a_job_that_crashes_its_worker_ends_and_no_other_loses_a_retry(command: Command, start: Any) -> None:
    start(retries=1)
    ids = [command.enqueue("waits_for", {"file": "go"}) for _ in range(3)]
    run = command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    (command.folder / "crash").touch()
    poison = command.enqueue("crashes", {"file": "crash"})
    job = command.until(poison, "failed", timeout=60)
    assert {error["cause"] for error in job["errors"]} == {"crash"}
    (command.folder / "go").touch()
    for id in ids:
        innocent = command.until(id, "succeeded", timeout=60)
        assert (innocent["retries"], innocent["errors"]) == (0, [])
    assert "any of its jobs may have done this, so they run again in smaller groups" in run.log


def test_a_killed_worker_is_replaced_and_its_jobs_run_again(command: Command, start: Any) -> None:
    start()
    ids = [command.enqueue("waits_for", {"file": "go"}) for _ in range(5)]
    command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())

    def busy() -> int:
        pids = [w["pid"] for s in command.status()["supervisors"] for w in s["workers"] if w["current_job"]]
        assert pids
        return int(pids[0])

    worker = wait_for(busy)
    (command.folder / "go").touch()
    os.kill(worker, signal.SIGKILL)
    for id in ids:
        assert command.until(id, "succeeded", timeout=60)["errors"] == []


def test_a_cancelled_job_ends_alone(command: Command, start: Any) -> None:
    start()
    ids = [command.enqueue("waits_for", {"file": "go"}) for _ in range(2)]
    run = command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    command.ask("jobs", "cancel", str(ids[0]))
    (command.folder / "go").touch()
    assert command.until(ids[1], "succeeded")["errors"] == []
    assert command.job(ids[0])["state"] == "cancelled"
    assert "killed" not in run.log


def test_output_and_log_records_have_the_job_that_wrote_them(command: Command, start: Any) -> None:
    start()
    for name in ("one", "two"):
        command.enqueue("talks", {"name": name})
    run = command.run("--drain")
    run.wait()
    for id, name in ((1, "one"), (2, "two")):
        for number in range(3):
            assert f"stdout job={id} handler=talks: {name} {number}" in run.log
            assert f"job={id} handler=talks attempt=1: {name} logs {number}" in run.log


def test_a_drain_waits_for_jobs_that_run(command: Command, start: Any) -> None:
    start()
    id = command.enqueue("waits_for", {"file": "go"})
    run = command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    (command.folder / "go").touch()
    assert run.wait() == 0
    assert command.job(id)["state"] == "succeeded"


def test_a_reload_may_bring_the_first_async_handler(command: Command, start: Any) -> None:
    start(plugin="from supervisor import handler\n@handler\ndef sync(job): ...\n")
    run = command.run()
    run.logged("supervisor started")
    (command.folder / "plugins" / "p.py").write_text(
        "from supervisor import handler\n@handler\nasync def sync(job): return 3\n"
    )
    run.signal(signal.SIGHUP)
    run.logged("reload")
    id = command.enqueue("sync")
    assert command.until(id, "succeeded", timeout=60)["result"] in (3, None)


def test_a_full_kind_does_not_hold_up_the_queues_of_the_other(command: Command, start: Any) -> None:
    start()
    for _ in range(100):
        command.enqueue("waits_for", {"file": "go"}, "--queue", "slow")
    command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    began = time.monotonic()
    id = command.enqueue("sync", None, "--queue", "quick")
    command.until(id, "succeeded")
    assert not (command.folder / "go").exists() and time.monotonic() - began < 30


ENDS = """
    import asyncio, os, sys, time
    from supervisor import handler

    @handler
    async def exits_in_a_task(file: str):
        while not os.path.exists(file):
            await asyncio.sleep(0.01)
        asyncio.create_task(leave())
        await asyncio.sleep(30)

    async def leave():
        sys.exit(3)

    @handler
    async def forks(file: str):
        if os.fork() == 0:
            await asyncio.sleep(0.1)
            return "copy"
        await asyncio.sleep(0.5)
        return "original"

    @handler
    async def raises_when_cancelled(file: str):
        open(file + ".waits", "w").close()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ValueError("cancelled") from None

    @handler
    async def waits_for(file: str):
        open(file + ".waits", "w").close()
        while not os.path.exists(file):
            await asyncio.sleep(0.01)

    @handler
    async def quick():
        return os.getpid()
"""


def test_a_job_that_ends_the_loop_costs_no_other_job_a_retry(command: Command, start: Any) -> None:
    start(plugin=ENDS)
    innocent = command.enqueue("waits_for", {"file": "go"})
    command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    culprit = command.enqueue("exits_in_a_task", {"file": "go.waits"})
    assert command.until(culprit, "failed", timeout=60)["errors"][0]["cause"] == "crash"
    (command.folder / "go").touch()
    assert command.until(innocent, "succeeded", timeout=60)["errors"] == []


def test_a_copy_of_the_worker_has_no_part_in_its_jobs(command: Command, start: Any) -> None:
    start(plugin=ENDS)
    command.enqueue("forks", {"file": "x"})
    ((job,),) = ended(command).values()
    assert (job["state"], job["result"]) == ("succeeded", "original")


def test_a_job_that_fails_when_the_supervisor_stops_runs_again(command: Command, start: Any) -> None:
    start(plugin=ENDS)
    command.config.write_text(command.config.read_text() + "shutdown: {grace: 100ms}\n")
    id = command.enqueue("raises_when_cancelled", {"file": "go"})
    run = command.run()
    wait_for(lambda: (command.folder / "go.waits").exists())
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    job = command.job(id)
    assert (job["state"], job["errors"]) == ("ready", [])


def test_an_async_worker_runs_no_more_jobs_than_it_may(command: Command, start: Any) -> None:
    start(plugin=ENDS)
    command.config.write_text(command.config.read_text().replace("count: 1,", "count: 1, max_jobs: 5,"))
    for _ in range(20):
        command.enqueue("quick")
    pids = [job["result"] for job in ended(command)["quick"]]
    assert max(pids.count(pid) for pid in pids) <= 5
