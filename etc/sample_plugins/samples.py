"""Handlers that go wrong in the ways that jobs do."""

import os
import signal
import time

from supervisor import Job, handler


@handler
def flaky(job: Job) -> str:
    """Succeeds at its third attempt."""
    if job.attempt < job.payload["succeeds_at"]:
        raise ConnectionError("the other side hung up")
    return f"succeeded at attempt {job.attempt}"


@handler(timeout="1s", max_retries=0)
def hang(job: Job) -> None:
    """Never returns: its process is killed when the time is up."""
    time.sleep(3600)


@handler
def crash(job: Job) -> str:
    """Kills its own process, the first time."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@handler(max_retries=1)
def always_fails(job: Job) -> None:
    """Fails until it is out of retries, and ends in the dead letters."""
    raise ValueError(f"order {job.payload['order']} does not exist")
