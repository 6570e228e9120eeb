"""A job that kills its worker or its supervisor is counted each time and becomes a dead letter."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.system.command import Command, wait_for

CONFIG = """
workers: {count: 1}
retry: {max_retries: 2, backoff: {base: 50ms, factor: 1, jitter: none}}
dlq: {sinks: [{type: file, path: dead.jsonl}]}
"""
POISON = """
import ctypes, os, signal, time
from pathlib import Path
from supervisor import handler

@handler
def poison(job):
    Path(f"started-{job.attempt}").touch()
    match job.payload:
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "segfault": ctypes.string_at(8)
        case "abort": os.abort()
        case "term": signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)
        case code: os._exit(code)

@handler
def quick(job):
    return job.payload

@handler
def supervisor_killer(job):
    with open(job.payload["starts"], "a") as starts:
        starts.write(".")
    if job.payload["after"]:
        time.sleep(job.payload["after"])
    os.kill(job.payload["pid"] if "pid" in job.payload else int(Path(job.payload["pid_file"]).read_text()), signal.SIGKILL)
    time.sleep(3600)
"""

WAITS = """
import time
from supervisor import handler

@handler
def waits(job):
    time.sleep(job.payload)
"""


@pytest.mark.parametrize(("way", "signal_name", "code"), [
    ("kill", "SIGKILL", None), ("segfault", "SIGSEGV", None), ("abort", "SIGABRT", None), ("term", "SIGTERM", None),
    (0, None, 0), (3, None, 3),
])  # fmt: skip
def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(
    command: Command, way: str | int, signal_name: str | None, code: int | None
) -> None:
    command.write(config=CONFIG, plugins={"poison.py": POISON})
    id = command.enqueue("poison", way)
    others = [command.enqueue("quick", number) for number in range(20)]
    assert command.run("--drain").wait(60) == 0
    job = command.job(id)
    assert (job["state"], job["retries"], job["dead_letter"]) == ("failed", 2, "delivered")
    assert [error["attempt"] for error in job["errors"]] == [1, 2, 3]
    for error in job["errors"]:
        assert (error["cause"], error["signal"], error["exit_code"]) == ("crash", signal_name, code), error
    for other in others:
        assert (command.job(other)["state"], command.job(other)["errors"]) == ("succeeded", [])
    dead_letters = [json.loads(line) for line in (command.folder / "dead.jsonl").read_text().splitlines()]
    assert [dead_letter["id"] for dead_letter in dead_letters] == [id]


@pytest.mark.parametrize(("after", "free"), [(0, 3), (1.5, 2)])
def test_a_job_that_kills_its_supervisor_ends_after_a_bounded_number_of_restarts(
    command: Command, after: float, free: int
) -> None:
    """Two losses are free, and a third of a job that ends its supervisor before it can be marked as started."""
    command.write(config=CONFIG, plugins={"poison.py": POISON})
    starts, pid = command.folder / "starts", command.folder / "pid"
    id = command.enqueue("supervisor_killer", {"starts": str(starts), "pid_file": str(pid), "after": after})
    restarts = 0
    while command.job(id)["state"] != "failed":
        pid.unlink(missing_ok=True)
        run = command.run()
        pid.with_suffix(".new").write_text(str(run.pid))
        os.rename(pid.with_suffix(".new"), pid)  # noqa: PTH104
        wait_for(lambda run=run: run.code is not None or command.job(id)["state"] == "failed")  # type: ignore[misc]
        restarts += 1
        assert restarts <= 3 + free + 1, command.job(id)
    job = command.job(id)
    assert (job["retries"], {error["cause"] for error in job["errors"]}) == (2, {"lease_expired"})
    assert len(starts.read_text()) <= 3 + free
    other = command.enqueue("quick", 1)
    assert command.until(other, "succeeded")["errors"] == []
    assert command.runs[-1].code is None
    command.runs[-1].signal(signal.SIGTERM)
    assert command.runs[-1].wait() == 0


def test_no_innocent_job_pays_for_one_that_kills_its_supervisor(command: Command) -> None:
    config = CONFIG.replace("count: 1", "count: 4")
    command.write(config=config, plugins={"poison.py": POISON, "waits.py": WAITS})
    starts, pid = command.folder / "starts", command.folder / "pid"
    innocents = [command.enqueue("waits", 2.0) for _ in range(3)]
    id = command.enqueue("supervisor_killer", {"starts": str(starts), "pid_file": str(pid), "after": 1.5})
    while command.job(id)["state"] != "failed":
        pid.unlink(missing_ok=True)
        run = command.run()
        pid.with_suffix(".new").write_text(str(run.pid))
        os.rename(pid.with_suffix(".new"), pid)  # noqa: PTH104
        wait_for(lambda run=run: run.code is not None or command.job(id)["state"] == "failed")  # type: ignore[misc]
    job = command.job(id)
    assert [error["cause"] for error in job["errors"]] == ["lease_expired"] * 3
    for innocent in innocents:
        assert command.until(innocent, "succeeded")["errors"] == []
    assert len(starts.read_text()) <= 5, "two that do not count, and three that do"
