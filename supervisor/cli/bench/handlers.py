"""What `supervisor bench` runs: the only plugin that its supervisor is given."""

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
    """Tell the benchmark, which reads the pipe at `job.payload`, when this began."""
    now = time.monotonic_ns()  # one clock for all processes of a machine
    pipe = os.open(job.payload, os.O_WRONLY)
    try:
        os.write(pipe, b"%d\n" % now)
    finally:
        os.close(pipe)
