"""Jobs that have not started in time end by themselves, while a supervisor runs or once one does."""

from __future__ import annotations

import pytest

from supervisor import Client, JobFailed
from tests.system.command import Command, wait_for

PLUGIN = {
    "jobs.py": """
        import time
        from pathlib import Path
        from supervisor import handler

        @handler
        def hang(job):
            time.sleep(3600)

        @handler
        def touch(job):
            Path(job.payload).touch()
    """
}
CONFIG = "{workers: {count: 1}, shutdown: {grace: 100ms}}"


def test_a_job_expires_while_the_only_worker_is_busy(command: Command) -> None:
    command.write(CONFIG, PLUGIN)
    command.enqueue_many([{"handler": "hang"}])
    run = command.run()
    wait_for(lambda: command.jobs("--state", "in_flight"))
    command.enqueue_many([{"handler": "touch", "payload": "never", "expires": "300ms"}])
    with Client(f"sqlite:///{command.folder / 'jobs.db'}") as client, pytest.raises(JobFailed) as failed:
        client.result(2, timeout=20)
    assert failed.value.cause == "expired"
    run.logged("job=2 handler=touch expired before it started: cancelled")
    assert not (command.folder / "never").exists()


def test_jobs_that_expired_while_no_supervisor_ran_are_not_run(command: Command) -> None:
    command.write(CONFIG, PLUGIN)
    late = [{"handler": "touch", "payload": f"never {n}", "expires": "1ms"} for n in range(3000)]
    command.enqueue_many([*late, {"handler": "touch", "payload": "done", "expires": "1h"}])
    assert command.run("--drain").wait() == 0
    assert [path.name for path in command.folder.glob("never*")] == []
    assert (command.folder / "done").exists()
    assert len(command.jobs("--state", "cancelled", "--limit", "5000")) == 3000
