"""A worker without a heartbeat is busy as long as it uses the CPU, and hung if it does not."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system import hanging_jobs as hanging
from tests.system.command import Command, wait_for

CONFIG = """
workers: {{count: 1, heartbeat: 200ms, heartbeat_timeout: 1s, timeout: {timeout}}}
retry: {{max_retries: 0}}
"""


def test_a_job_that_is_busy_in_c_code_is_ended_only_by_its_timeout(command: Command) -> None:
    command.write(config=CONFIG.format(timeout="5s"), plugins={"hanging.py": hanging.PLUGIN})
    id = command.enqueue("regex", str(command.folder / "started"))
    command.run()
    (error,) = command.until(id, "failed")["errors"]
    assert error["cause"] == "timeout"
    assert error["heartbeat_age"] > 3, "it was silent for much longer than its heartbeat_timeout"


@pytest.mark.parametrize("way", [hanging.CALL, hanging.NAP])
def test_a_job_that_hangs_in_c_code_is_killed_for_its_lost_heartbeat(command: Command, way: str) -> None:
    command.write(config=CONFIG.format(timeout="1h"), plugins={"hanging.py": hanging.PLUGIN})
    id = command.enqueue(way, str(command.folder / "started"))
    command.run()
    (error,) = command.until(id, "failed")["errors"]
    assert (error["cause"], error["signal"]) == ("heartbeat_lost", "SIGKILL")
    assert f"in {way}" in error["stack"]
    assert error["heartbeat_age"] > 1


def test_a_stopped_worker_is_killed_for_its_lost_heartbeat_and_replaced(command: Command) -> None:
    command.write(config=CONFIG.format(timeout="1h"), plugins={"hanging.py": hanging.PLUGIN})
    marks = [command.folder / "one", command.folder / "two"]
    first = command.enqueue("sleep", str(marks[0]))
    run = command.run()
    wait_for(marks[0].exists)
    (worker,) = set(command.processes()) - {run.pid, run.forkserver()}
    os.kill(worker, signal.SIGSTOP)
    second = command.enqueue("sleep", str(marks[1]))
    (error,) = command.until(first, "failed")["errors"]
    assert (error["cause"], error["signal"], error["pid"]) == ("heartbeat_lost", "SIGKILL", worker)
    wait_for(marks[1].exists)
    assert command.job(second)["state"] == "in_flight"


def test_an_idle_stopped_worker_is_replaced_and_no_job_is_blamed(command: Command) -> None:
    command.write(config=CONFIG.format(timeout="1h"), plugins={"hanging.py": hanging.PLUGIN})
    run = command.run()
    run.logged(") started")
    (worker,) = set(command.processes()) - {run.pid, run.forkserver()}
    os.kill(worker, signal.SIGSTOP)
    run.logged("killed: no job cause=heartbeat_lost")
    mark = command.folder / "started"
    id = command.enqueue("sleep", str(mark))
    wait_for(mark.exists)
    assert command.job(id)["errors"] == []


QUICK = """
import time
from supervisor import handler

@handler(heartbeat="100ms", heartbeat_timeout="600ms", max_retries=0)
def nap(job):
    time.sleep(2)
"""


def test_a_handler_that_asks_for_a_short_heartbeat_timeout_is_not_killed(command: Command) -> None:
    command.write(config="workers: {count: 1, heartbeat: 5s}", plugins={"quick.py": QUICK})
    id = command.enqueue("nap")
    command.run()
    command.until(id, "succeeded")
