"""The database cannot be had for a while, whatever the supervisor is doing; and the end does not wait for it for ever."""

from __future__ import annotations

import signal
import time

from tests.system.command import Command, wait_for
from tests.system.test_sharing import JOBS, locked, serve_gated, wait_ran


def test_a_supervisor_that_was_idle_meanwhile_takes_jobs_at_once(command: Command) -> None:
    command.write(config="workers: {count: 1, heartbeat: 200ms}\nlease: {ttl: 1s}\n", plugins=JOBS)
    command.enqueue("marks")
    run = command.run()
    wait_ran(command, 1)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
    run.logged("store available again")
    back = time.monotonic()
    command.until(command.enqueue("marks"), "succeeded")
    assert time.monotonic() - back < 4.0, "not only at the next poll"
    assert " exited: " not in run.log


def test_a_second_signal_while_outcomes_wait_for_the_store_ends_it_now(command: Command) -> None:
    run, id = serve_gated(command)
    with locked(command.folder / "jobs.db"):
        run.logged("store unavailable")
        (command.folder / "gate").touch()
        run.signal(signal.SIGTERM)
        wait_for(lambda: len(command.processes()) == 2)  # its workers are gone: only their outcomes are left to do
        run.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert run.wait(30) == 1, "its outcome could not be settled: that is not a clean end"
        print(f"ended {time.monotonic() - asked:.2f}s after the second signal")
        assert time.monotonic() - asked < 4.5
    assert command.run("--drain").wait() == 0
    assert command.job(id)["state"] == "succeeded"
