"""Files that one job passes through, from `enqueue` through a failed attempt to its dead letter: traced in the real processes.

A file counts if one of its functions is called with the job, or returns it: its id, its payload, or a value that holds
one of them (a lease, an outcome, a row, a line of JSON, a log line). The client, the supervisor with all its threads, and the
worker are traced by `sys.setprofile`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILES = 29
"""25 before keys, workflows and unique jobs. Their code made four files too long, so parts of these moved into files of their own:
`client/new_jobs.py`, `stores/shown.py`, `stores/sqlite/policies.py` and `telemetry/dead_letter_lines.py`. A job takes no more steps
than before. Another file needs a reason too."""
TIMEOUT = 30.0

JOB_ID = 918_273_645
PAYLOAD = "job-path-marker"
CONFIG = """
workers: {count: 1}
retry: {max_retries: 1, backoff: {base: 50ms, max: 50ms, jitter: none}}
dlq: {sinks: [{type: file, path: dead.jsonl}]}
"""
PLUGIN = """
from supervisor import handler

@handler
def fails(job):
    raise ValueError("no")
"""
CLIENT = """
import os, sys
from supervisor import Client

client = Client()
client.job(1)
print("ready", flush=True)
sys.stdin.readline()
client.enqueue("fails", sys.argv[1])
os._exit(0)
"""


def files_entered() -> list[str]:
    """Their paths below `supervisor/`, sorted."""
    with tempfile.TemporaryDirectory() as name:
        return _traced(Path(name))


def _traced(folder: Path) -> list[str]:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "fails.py").write_text(PLUGIN)
    (folder / "supervisor.yaml").write_text(CONFIG)
    (folder / "sitecustomize").mkdir()
    (folder / "sitecustomize" / "sitecustomize.py").write_text("from tests.house.job_tracer import start\nstart()\n")
    trace = folder / "trace"
    env = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'sitecustomize'}:{ROOT}",
        "JOB_TRACE": json.dumps({"on": str(folder / "on"), "out": str(trace), "root": str(ROOT / "supervisor")}),
    }
    with (folder / "log").open("w") as log:
        run = subprocess.Popen([sys.executable, "-m", "supervisor", "run"], cwd=folder, env=env, stderr=log)
    try:
        _until(lambda: "worker 1 " in (folder / "log").read_text())
        _number_jobs_from(folder / "jobs.db")
        _enqueue(folder, env)
        _until(lambda: PAYLOAD in _text(folder / "dead.jsonl"))
        _until(lambda: "accepted" in (folder / "log").read_text())
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(TIMEOUT)
    return sorted(set(trace.read_text().split()))


def _number_jobs_from(database: Path) -> None:
    """The next job has an id that nothing else is equal to by chance."""
    connection = sqlite3.connect(database)
    connection.execute("update sqlite_sequence set seq = ? where name = 'jobs'", (JOB_ID - 1,))
    connection.commit()
    connection.close()


def _enqueue(folder: Path, env: dict[str, str]) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, PAYLOAD],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    client.stdout.readline()  # imported, and connected
    (folder / "on").touch()
    client.communicate("now\n", TIMEOUT)
    if client.returncode:
        raise RuntimeError(f"the client ended with {client.returncode}")


def _until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError("the traced job did not come as far as this")
        time.sleep(0.02)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
