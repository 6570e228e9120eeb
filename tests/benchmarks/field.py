"""A supervisor of its own in a folder of its own, run by the real command."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from supervisor import Client

PATIENCE = 120.0


class Field:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "supervisor.yaml"
        self.database = folder / "jobs.db"
        (folder / "plugins").mkdir()

    def write(self, config: str, plugin: str) -> None:
        self.config.write_text(config)
        (self.folder / "plugins" / "bench.py").write_text(plugin)

    def client(self) -> Client:
        return Client(f"sqlite:///{self.database}", create=True)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "supervisor", *arguments, "-c", str(self.config)]

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        log = self.folder / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(self.command("run", *arguments), stdout=out, stderr=out, start_new_session=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def ask(self, query: str) -> list[tuple[float, ...]]:
        with contextlib.closing(sqlite3.connect(self.database)) as db:
            return db.execute(query).fetchall()


@contextlib.contextmanager
def field(config: str, plugin: str) -> Iterator[Field]:
    with tempfile.TemporaryDirectory() as folder:
        here = Field(Path(folder))
        here.write(config, plugin)
        yield here


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g}s: {what}")
        time.sleep(0.001)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shown(values: Sequence[float], unit: str = "ms", scale: float = 1e3) -> str:
    middle, late = statistics.median(values) * scale, percentile(values, 0.95) * scale
    return f"p50 {middle:.1f} {unit}, p95 {late:.1f} {unit}, p99 {percentile(values, 0.99) * scale:.1f} {unit} of {len(values)}"
