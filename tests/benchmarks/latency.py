"""Idle supervisor: from another process's enqueue to the handler's start, durable at both ends."""

from __future__ import annotations

import time
from pathlib import Path

from tests.benchmarks.field import field, shown, until

JOBS = 300
CONFIG = "store: sqlite:///jobs.db\nworkers: {count: 2}\nlog: {level: warning}\n"
PLUGIN = """
import os, time
from supervisor import handler

@handler
def stamp(job):
    out = os.open(job.payload["to"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, b"%d\\n" % time.time_ns())
    os.close(out)
"""


def run() -> None:
    latencies = []
    with field(CONFIG, PLUGIN) as here:
        stamps = here.folder / "stamps"
        stamps.touch()
        with here.client() as client, here.running():
            for done in range(JOBS + 1):
                before = time.time_ns()
                client.enqueue("stamp", {"to": str(stamps)})
                until_lines(stamps, done + 1)
                latencies.append((int(stamps.read_text().split()[-1]) - before) / 1e9)
                time.sleep(0.005)
    print(f"idle latency, enqueue to handler start: {shown(latencies[1:])}")


def until_lines(file: Path, count: int) -> None:
    until(lambda: file.read_bytes().count(b"\n") >= count, f"{count} jobs")
