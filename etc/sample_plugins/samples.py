"""Handlers that fail in the ways that jobs fail."""

import os
import signal
import time

from supervisor import Job, handler


@handler
def flaky(job: Job) -> str:
    """Fail until the attempt `succeeds_at`."""
    if job.attempt < job.payload["succeeds_at"]:
        raise ConnectionError("the connection was closed")
    return f"succeeded at attempt {job.attempt}"


@handler(timeout="1s", max_retries=0)
def hang(job: Job) -> None:
    """Never return: the process is killed at the timeout."""
    time.sleep(3600)


@handler
def crash(job: Job) -> str:
    """Kill its own process, at the first attempt."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "succeeded"


@handler(max_retries=1)
def always_fails(job: Job) -> None:
    """Fail at every attempt, and become a dead letter."""
    raise ValueError(f"order {job.payload['order']} does not exist")
