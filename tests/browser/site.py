"""A supervisor with pages, and jobs to see on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.system.command import Command, Running

TOKEN = "a token of more than 16 characters"
PLUGIN = """
import os, sys, time
from supervisor import handler

@handler(max_retries=0)
def charge_card(job):
    if not os.path.exists("repaired"):
        print("calling the bank", file=sys.stderr)
        raise ConnectionError(f"bank.example refused the connection for {job.payload}")
    return {"charged": True}

@handler(queue="mail")
def send_mail(job):
    return {"sent": True}

@handler(queue="reports", timeout="1h")
def build_report(job):
    for page in range(1000):
        job.progress(page + 1, 1000, "pages rendered")
        if os.path.exists(job.payload["until"]):
            return {"pages": page}
        time.sleep(0.1)

@handler(max_retries=0)
def hostile(job):
    print(job.payload["text"], file=sys.stderr)
    raise ValueError(job.payload["text"])

@handler(max_retries=0)
def crash(job):
    os._exit(3)
"""


class Site(NamedTuple):
    command: Command
    run: Running
    address: str

    @property
    def repaired(self) -> Path:
        """`charge_card` succeeds once this file exists."""
        return self.command.folder / "repaired"

    def report(self, until: Path) -> int:
        """Enqueue a report that is built until a file exists."""
        return self.command.enqueue("build_report", {"until": str(until)}, "--queue", "reports")

    def mail(self) -> int:
        return self.command.enqueue("send_mail", {}, "--queue", "mail")

    def failed(self, handler: str, payload: object = None, *options: str) -> int:
        """Return a job that has failed."""
        id = self.command.enqueue(handler, payload, *options)
        self.command.until(id, "failed")
        return id


@contextmanager
def served(folder: Path, http: str = '{listen: "127.0.0.1:0"}', path: str = "") -> Iterator[Site]:
    """Run the supervisor of a shop. `path` goes before the others where Python looks for modules."""
    command = Command(folder)
    command.env["PYTHONPATH"] = f"{path}:{command.env['PYTHONPATH']}".lstrip(":")
    try:
        config = f"workers: {{count: 2, groups: {{reports: {{queues: [reports], count: 1}}}}}}\nhttp: {http}\n"
        command.write(config=config, plugins={"shop.py": PLUGIN})
        run = command.run()
        run.logged("supervisor started")
        address = run.logged("HTTP: http://").partition("HTTP: ")[2]
        yield Site(command, run, address)
    finally:
        command.close()
