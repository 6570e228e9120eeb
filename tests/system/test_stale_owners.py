"""A supervisor that has lost its leases, or was killed: its outcomes change nothing any more, and its jobs run elsewhere."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import psutil

from tests.system.command import Command, Running, wait_for
from tests.system.privileges import require_root
from tests.system.stopped import stop_between_writes, stop_in_the_queue

CONFIG = """
workers: {count: 4, heartbeat: 200ms}
lease: {ttl: 1s}
retry: {max_retries: 3, backoff: {base: 50ms, factor: 1, jitter: none}}
dlq: {sinks: [{type: file, path: dead.jsonl}]}
"""
PLUGIN = {
    "late.py": """
        import os, time
        from pathlib import Path
        from supervisor import handler

        def wait_at_first(job):
            mark = Path(f"{job.id}-started")
            again = mark.exists()
            mark.touch()
            while not again and not os.path.exists("go"):
                time.sleep(0.01)
            return again

        @handler
        def returns(job):
            return "second" if wait_at_first(job) else "too late"

        @handler
        def raises(job):
            if not wait_at_first(job):
                raise ValueError("too late")
            return "second"

        @handler(timeout="20s")
        def hangs(job):
            if not wait_at_first(job):
                time.sleep(3600)
            return "second"

        @handler(max_retries=0)
        def exhausts(job):
            raise ValueError("second" if wait_at_first(job) else "too late")

        @handler
        def pid(job):
            return os.getppid()
    """
}


def started(command: Command, ids: list[int]) -> bool:
    """Return whether these jobs run and are marked as started."""
    return all((command.folder / f"{id}-started").exists() and command.job(id)["started_at"] for id in ids)


def dead_letters(command: Command) -> list[dict[str, Any]]:
    file = command.folder / "dead.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def stale_by_job(run: Running) -> Counter[int]:
    return Counter(int(id) for id in re.findall(r"job=(\d+) handler=\S+ stale ", run.log))


def test_outcomes_that_come_too_late_are_refused_reported_once_and_publish_nothing(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    late = command.run()
    ids = [command.enqueue(handler) for handler in ("returns", "raises", "hangs", "exhausts")]
    wait_for(lambda: started(command, ids))
    other = command.run()
    other.logged("supervisor started")
    stop_between_writes(command, [psutil.Process(late.pid)])
    jobs = [command.until(id, "succeeded") for id in ids[:3]] + [command.until(ids[3], "failed")]
    assert [job["result"] for job in jobs] == ["second"] * 3 + [None]
    assert [[error["message"] for error in job["errors"]] for job in jobs] == [[], [], [], ["second"]]
    wait_for(lambda: command.job(ids[3])["dead_letter"] == "delivered")
    jobs[3] = command.job(ids[3])
    (command.folder / "go").touch()
    late.signal(signal.SIGCONT)
    wait_for(lambda: set(stale_by_job(late)) == set(ids))
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    assert command.until(command.enqueue("pid"), "succeeded")["result"] == late.forkserver(), "it goes on"
    assert [command.job(id) for id in ids] == jobs
    assert [dead_letter["id"] for dead_letter in dead_letters(command)] == [ids[3]]
    assert stale_by_job(late) == dict.fromkeys(ids, 1)
    assert "stale" not in other.log


def test_a_supervisor_that_is_stopped_while_it_waits_to_write_holds_up_no_other(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    late = command.run()
    id = command.enqueue("returns")
    wait_for(lambda: started(command, [id]))
    stop_in_the_queue(command, psutil.Process(late.pid))
    command.run()
    assert command.until(id, "succeeded")["result"] == "second"


def test_jobs_of_a_killed_supervisor_run_again_although_its_row_is_gone(command: Command) -> None:
    command.write(config=CONFIG, plugins=PLUGIN)
    ids = [command.enqueue("returns") for _ in range(4)]
    run = command.run()
    wait_for(lambda: started(command, ids))
    run.kill()
    with closing(sqlite3.connect(command.folder / "jobs.db", isolation_level=None)) as db:
        db.execute("delete from supervisors")
    for file in (command.folder / "jobs.db.notify").iterdir():
        file.unlink()
    command.run()
    for id in ids:
        assert command.until(id, "succeeded")["errors"] == []


def test_a_supervisor_with_the_pid_of_a_dead_one_is_another_owner(command: Command) -> None:
    require_root("a pid namespace")
    as_first = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command.write(config=CONFIG.replace("1s", "10m"), plugins=PLUGIN)
    id = command.enqueue("returns")
    run = command.run(under=as_first)
    wait_for(lambda: started(command, [id]))
    run.kill()
    again = command.run(under=as_first)
    assert command.until(id, "succeeded")["result"] == "second"
    (supervisor,) = command.status()["supervisors"]
    assert supervisor["pid"] == 1
    again.kill()
