"""Workers are replaced after so many jobs or so much memory, and may be spawned; no job is affected."""

from __future__ import annotations

import re
import signal
from collections import Counter

import pytest

from supervisor.workers.parent.stack_text import UNANSWERED
from tests.system import hanging_jobs as hanging
from tests.system.command import Command, Running, wait_for

PIDS = {
    "pids.py": """
        import os
        from pathlib import Path
        from supervisor import handler

        GROWN = []

        @handler
        def pid(job):
            return os.getpid()

        @handler
        def grow(job):
            GROWN.append(bytearray(os.urandom(1) * job.payload))
            return os.getpid()
    """
}


def pids(command: Command) -> Counter[int]:
    jobs = command.jobs()
    assert {(job["state"], len(job["errors"])) for job in jobs} == {("succeeded", 0)}
    return Counter(job["result"] for job in jobs)


@pytest.mark.parametrize("max_jobs", [1, 2, 7])
def test_a_worker_is_replaced_after_max_jobs(command: Command, max_jobs: int) -> None:
    command.write(config=f"workers: {{count: 4, max_jobs: {max_jobs}}}\n", plugins=PIDS)
    command.enqueue_many([{"handler": "pid"}] * 200)
    run = command.run("--drain")
    assert run.wait(60) == 0
    done = pids(command)
    assert sum(done.values()) == 200
    assert max(done.values()) <= max_jobs
    assert len(done) >= 200 / max_jobs
    assert " workers.count: 4\n" in run.log
    assert " crashed" not in run.log
    assert f"exited: max_jobs (workers.max_jobs is {max_jobs})" in run.log


def test_a_worker_that_has_grown_past_max_memory_is_replaced_after_its_job(command: Command) -> None:
    command.write(config="workers: {count: 1, max_memory: 100MB}\n", plugins=PIDS)
    command.enqueue_many([{"handler": "grow", "payload": 40_000_000}] * 12)
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert 3 <= len(pids(command)) <= 12
    assert " crashed" not in run.log
    assert "exited: max_memory (it has " in run.log and "workers.max_memory is 100MB)" in run.log


def test_workers_past_max_memory_at_their_start_are_not_replaced_again_and_again(command: Command) -> None:
    command.write(
        config="workers: {count: 1, max_memory: 60MB}\n",
        plugins={**PIDS, "big.py": "IMPORTED = bytearray(b'x' * 150_000_000)\n"},
    )
    command.enqueue_many([{"handler": "pid"}] * 200)
    assert command.run("--drain").wait(60) == 0
    assert len(pids(command)) == 1


AGE = re.compile(r"exited: max_age \(it is \S+ old, workers.max_age is 300ms\)")


def test_workers_are_replaced_at_their_age_also_idle_ones_and_no_job_is_affected(command: Command) -> None:
    command.write(
        config="workers: {count: 2, max_age: 300ms}\n",
        plugins={
            **PIDS,
            "naps.py": """
                import os, time
                from supervisor import handler

                @handler
                def nap(job):
                    time.sleep(0.1)
                    return os.getpid()
            """,
        },
    )
    run = command.run()
    wait_for(lambda: len(AGE.findall(run.log)) >= 3)
    command.enqueue_many([{"handler": "nap"}] * 20)
    wait_for(lambda: all(job["state"] == "succeeded" for job in command.jobs()))
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert len(pids(command)) >= 3
    assert " crashed" not in run.log and "killed" not in run.log


def test_a_worker_past_the_hard_limit_is_killed_while_its_job_runs(command: Command) -> None:
    command.write(
        config="workers: {count: 1, max_memory_hard: 150MB}\nretry: {max_retries: 0}\n",
        plugins={
            **PIDS,
            "greedy.py": """
                import time
                from supervisor import handler

                @handler
                def greedy(job):
                    kept = bytearray(b"x" * 200_000_000)
                    time.sleep(3600)

                @handler
                async def greedy_async(job):
                    greedy(job)
            """,
        },
    )
    ids = [command.enqueue("greedy"), command.enqueue("greedy_async"), command.enqueue("pid")]
    run = command.run()
    for id in ids[:2]:
        (error,) = command.until(id, "failed")["errors"]
        assert (error["cause"], error["type"], error["signal"]) == ("memory_limit", "MemoryLimit", "SIGKILL")
        assert re.fullmatch(r"its worker had \d+MB, workers.max_memory_hard is 150MB; killed", error["message"])
    command.until(ids[2], "succeeded")
    assert "cause=memory_limit" in run.log
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


SPAWN = """
workers: {count: 2, start: spawn, timeout: 1s, max_jobs: 50}
retry: {max_retries: 0}
"""


def test_spawned_workers_run_jobs_and_are_replaced(command: Command) -> None:
    command.write(config=SPAWN, plugins=PIDS)
    command.enqueue_many([{"handler": "pid"}] * 200)
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert max(pids(command).values()) <= 50


def test_a_timeout_ends_all_processes_of_a_spawned_worker(command: Command) -> None:
    command.write(config=SPAWN, plugins={**PIDS, "hanging.py": hanging.PLUGIN})
    hung = [command.enqueue(way, str(command.folder / way)) for way in (hanging.CALL, hanging.DEEP)]
    others = [command.enqueue("pid") for _ in range(20)]
    run = command.run()
    for id, stack in zip(hung, ("hanging.py", UNANSWERED), strict=True):
        (error,) = command.until(id, "failed")["errors"]
        assert (error["cause"], error["signal"]) == ("timeout", "SIGKILL")
        assert stack in error["stack"]
    for id in others:
        assert command.until(id, "succeeded")["errors"] == []
    wait_for(lambda: only_our_own(command, run))


def test_spawned_workers_serve_the_other_plugins_if_one_does_not_import(command: Command) -> None:
    command.write(
        config=SPAWN, plugins={**PIDS, "bad.py": "import no_such_module\n", "exits.py": "raise SystemExit(0)\n"}
    )
    id = command.enqueue("pid")
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert command.job(id)["state"] == "succeeded"
    assert run.log.count("did not load") == 2


def test_a_spawned_worker_that_cannot_import_a_plugin_is_replaced_and_the_reason_is_logged(command: Command) -> None:
    plugin = """
        import os
        from supervisor import handler

        def the_second_to_import():  # the forkserver is the first
            for name in ("first", "second"):
                try:
                    os.mkdir(name)
                    return name == "second"
                except FileExistsError:
                    pass

        if the_second_to_import():
            raise ConnectionError("no license server")
        @handler
        def licensed(job): pass
    """
    config = "workers: {count: 1, start: spawn}\nunknown_handler: {grace: 1ms}\nretry: {backoff: {max: 1h}}\n"
    command.write(config=config, plugins={"licensed.py": plugin})
    command.enqueue_many([{"handler": "licensed"}] * 20)
    run = command.run("--drain")
    assert run.wait(60) == 0
    assert {job["state"] for job in command.jobs()} == {"succeeded"}
    assert "licensed.py:14" in run.logged("did not load in this worker")
    assert run.log.count("did not load") == 1
    run.logged("not_imported")


def only_our_own(command: Command, run: Running) -> bool:
    """The supervisor, its forkserver and two workers."""
    assert len(command.processes()) == 4, command.processes()
    return True
