"""A job that hangs, limit 1 s: from its deadline to its settle, and from there to the next job's start in that place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor import Client
from tests.benchmarks.field import field, shown, until

ROUNDS = 8
KINDS = ("loop", "sleep", "regex", "c_call", "deaf", "subprocess")
CONFIG = "store: sqlite:///jobs.db\nworkers: {count: 1, timeout: 1s}\nretry: {max_retries: 0}\nlog: {level: warning}\n"
PLUGIN = """
import ctypes, re, signal, time
import subprocess as programs
from supervisor import handler


def stamp(job):
    with open(job.payload["to"], "a") as out:
        out.write(f"{job.id} {time.time_ns()}\\n")


@handler
def quick(job):
    stamp(job)


@handler
def hang(job):
    stamp(job)
    globals()[job.payload["kind"]]()


def loop():
    while True:
        pass


def sleep():
    time.sleep(3600)


def regex():
    re.match(r"(a+)+$", "a" * 64 + "b")


def c_call():
    ctypes.PyDLL(None).sleep(3600)


def deaf():
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, lambda *args: None)
        except (OSError, ValueError):
            pass
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass


def subprocess():
    programs.run(["sh", "-c", "trap '' TERM INT HUP; sleep 3600"])
"""


def run() -> None:
    for kind in KINDS:
        settled, started = [], []
        with field(CONFIG, PLUGIN) as here:
            stamps = here.folder / "stamps"
            with here.client() as client, here.running():
                for _ in range(ROUNDS):
                    hung = client.enqueue("hang", {"to": str(stamps), "kind": kind})
                    _until_stamped(stamps, hung)
                    after = client.enqueue("quick", {"to": str(stamps)})
                    _until_stamped(stamps, after)
                    record = _settled(client, hung)
                    ended = datetime.fromisoformat(record["finished_at"]).timestamp()
                    settled.append(ended - (_at(stamps.read_text(), hung) / 1e9 + 1.0))
                    started.append(_at(stamps.read_text(), after) / 1e9 - ended)
        print(f"{kind:>10}: deadline to settled {shown(settled)}")
        print(f"{'':>10}  settled to next start {shown(started)}")


def _settled(client: Client, job: int) -> Mapping[str, Any]:
    """Its failure record, once it is settled: the next job may start before that."""
    until(lambda: bool((client.job(job) or {}).get("errors")), f"the settle of job {job}")
    record = client.job(job)
    assert record is not None and record["errors"][-1]["cause"] == "timeout", json.dumps(record)
    return record


def _until_stamped(stamps: Path, job: int) -> None:
    until(lambda: stamps.exists() and _at(stamps.read_text(), job) > 0, f"the start of job {job}")


def _at(stamps: str, job: int) -> int:
    return next((int(line.split()[1]) for line in stamps.splitlines() if line.split()[0] == str(job)), 0)
