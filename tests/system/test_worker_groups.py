"""Groups of workers on the real command: a slow queue never takes every worker, and a group grows while its jobs wait."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from tests.system.command import Command, Running, wait_for

JOBS = {
    "jobs.py": """
        import asyncio, os, time
        from supervisor import handler

        @handler
        def slow(job):
            while not os.path.exists("gate"):
                time.sleep(0.01)
            return os.getpid()

        @handler
        def quick(job):
            return os.getpid()

        @handler(max_retries=2, backoff={"base": "1ms", "max": "1ms", "jitter": "none"})
        def fails_once(job):
            if job.attempt == 1:
                raise ValueError("once")
            return os.getpid()

        @handler(max_retries=0)
        def crashes(job):
            os._exit(3)
    """
}
NAP = """
    import asyncio, os
    from supervisor import handler

    @handler
    async def nap(job):
        await asyncio.sleep(0.01)
        return os.getpid()
"""
FIXED = "workers: {count: 1, groups: {mail: {queues: [mail, invites], count: 2}}}\n"
ELASTIC = "workers: {count: 1, groups: {mail: {queues: [mail], count: {min: 1, max: 4, idle_after: 500ms}}}}\n"


def mails(handler: str, count: int, queue: str = "mail") -> list[dict[str, Any]]:
    return [{"handler": handler, "queue": queue}] * count


def supervisor(command: Command) -> dict[str, Any]:
    (only,) = command.status()["supervisors"]
    return only  # type: ignore[no-any-return]


def group(command: Command) -> dict[str, Any]:
    return next(group for group in supervisor(command)["groups"] if group["group"] == "mail")


def queue(command: Command, name: str = "mail") -> dict[str, Any]:
    return next(row for row in command.status()["queues"] if row["queue"] == name)


def pids(command: Command, name: str | None) -> set[int]:
    return {worker["pid"] for worker in supervisor(command)["workers"] if worker["group"] == name}


def open_gate(command: Command) -> None:
    (command.folder / "gate").touch()


def test_a_backlog_of_a_group_holds_up_no_other_queue_and_stays_in_the_store(command: Command) -> None:
    command.write(config=FIXED, plugins=JOBS)
    command.enqueue_many(mails("slow", 10_000))
    run = command.run()
    wait_for(lambda: queue(command)["processing"] == 2)
    for _ in range(3):
        command.until(command.enqueue("quick"), "succeeded")
    assert (queue(command)["in_flight"], queue(command)["queue_size"]) == (2, 9_998)
    status = command.ask("status")
    assert "group mail (invites, mail): 2 workers" in status
    assert "other queues: 1 worker" in status
    why = command.ask("jobs", "show", str(command.enqueue("slow", None, "--queue", "invites")))
    assert "2 workers that may run it are busy" in why and "raise workers.groups.mail.count" in why
    run.signal(signal.SIGTERM)
    open_gate(command)
    assert run.wait() == 0
    assert queue(command)["in_flight"] == 0


def test_each_job_runs_in_a_worker_of_its_group_also_when_it_is_retried_and_after_a_crash(command: Command) -> None:
    command.write(config=FIXED, plugins=JOBS)
    command.enqueue_many(
        [*mails("fails_once", 40), *mails("fails_once", 40, "invites"), *mails("fails_once", 40, "default")]
    )
    run = command.run()

    def done() -> bool:
        return Counter(job["state"] for job in command.jobs()) == {"succeeded": 120}

    wait_for(done)
    jobs = command.jobs()
    by_queue = {
        name: {job["result"] for job in jobs if job["queue"] == name} for name in ("mail", "invites", "default")
    }
    wait_for(lambda: None not in pids(command, None) | pids(command, "mail"))
    assert by_queue["default"] == pids(command, None)
    assert by_queue["mail"] | by_queue["invites"] <= pids(command, "mail")
    command.until(command.enqueue("crashes", None, "--queue", "mail"), "failed")
    wait_for(lambda: len([pid for pid in pids(command, "mail") if pid]) == 2)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_drain_runs_the_jobs_of_all_groups_and_those_of_async_handlers(command: Command) -> None:
    command.write(config=FIXED, plugins={**JOBS, "nap.py": NAP})
    command.enqueue_many(
        [*mails("quick", 300), *mails("nap", 300), *mails("quick", 300, "default"), *mails("nap", 50, "default")]
    )
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert Counter(job["state"] for job in command.jobs()) == {"succeeded": 950}


def count(run: Running, key: str, step: str) -> bool:
    return f"{key}.count: {step}" in run.log


def test_a_group_grows_while_jobs_wait_and_shrinks_when_it_is_idle(command: Command) -> None:
    command.write(config=ELASTIC, plugins=JOBS)
    run = command.run()
    run.logged("worker 2 ")
    ids = [command.enqueue("slow", None, "--queue", "mail") for _ in range(6)]
    wait_for(lambda: queue(command)["processing"] == 4)
    assert (group(command)["count"], group(command)["min"], group(command)["max"]) == (4, 1, 4)
    assert len(pids(command, None)) == 1
    wait_for(lambda: queue(command)["in_flight"] == 4)
    open_gate(command)
    for id in ids:
        command.until(id, "succeeded")
    wait_for(lambda: (group(command)["count"], len(pids(command, "mail"))) == (1, 1))
    assert "group mail (mail): 1 worker, from 1 to 4" in command.ask("status")
    assert "workers.groups.mail.count: from 1 to 2 workers: 1 job waits" in run.log
    assert " idle for 500ms" in run.log
    assert " crash" not in run.log
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_reload_changes_the_limits_and_the_queues_of_a_group(command: Command) -> None:
    command.write(config=ELASTIC, plugins=JOBS)
    run = command.run()
    run.logged("worker 2 ")
    command.enqueue_many(mails("slow", 20))
    wait_for(lambda: queue(command)["processing"] == 4)
    command.write(config="workers: {count: 1, groups: {mail: {queues: [mail, default], count: {min: 2, max: 6}}}}\n")
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    open_gate(command)
    id = command.enqueue("quick")
    command.until(id, "succeeded")
    wait_for(lambda: queue(command)["queue_size"] == queue(command)["in_flight"] == 0)
    wait_for(lambda: (group(command)["min"], group(command)["max"]) == (2, 6))
    assert {job["state"] for job in command.jobs()} == {"succeeded"}
    wait_for(lambda: command.job(id)["result"] in pids(command, "mail"))
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


@pytest.mark.parametrize("command_line", ["check", "run"])
def test_a_group_whose_queues_are_not_served_is_named(command: Command, command_line: str) -> None:
    command.write(config="workers: {queues: [default], groups: {mail: {queues: [mail]}}}\n", plugins=JOBS)
    warning = "workers.groups.mail.queues: workers.queues leaves out mail, so its workers are not started"
    if command_line == "check":
        assert warning in command.call("check").err
        return
    run = command.run("--drain")
    assert run.wait() == 0
    assert warning in run.log


def test_signals_start_no_worker_that_no_queue_has(command: Command) -> None:
    command.write(config="workers: {queues: [mail], groups: {mail: {queues: [mail]}}}\n", plugins=JOBS)
    run = command.run()
    run.logged("worker 1 ")
    run.signal(signal.SIGTTIN)
    run.logged("SIGTTIN received: ignored: all queues that are served here are in workers.groups")
    command.until(command.enqueue("quick", None, "--queue", "mail"), "succeeded")
    assert "worker 2 " not in run.log
