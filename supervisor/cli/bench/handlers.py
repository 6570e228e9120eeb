"""The handlers of `supervisor bench`: the only plugin that its supervisor loads."""

from __future__ import annotations

import os
import time

from supervisor.handlers import handler
from supervisor.jobs import Job

NOOP, STAMP = "bench-noop", "bench-stamp"


@handler(NOOP)
def noop(job: Job) -> None:
    return None


@handler(STAMP)
def stamp(job: Job) -> None:
    """Write the time of the start to the named pipe at `job.payload`, which the benchmark reads."""
    now = time.monotonic_ns()  # all processes of a machine share this clock
    pipe = os.open(job.payload, os.O_WRONLY)
    try:
        os.write(pipe, b"%d\n" % now)
    finally:
        os.close(pipe)
