"""A supervisor with forked workers beside a test, on a temporary SQLite store: clients in its workers can use no memory of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from supervisor.config.settings import Settings, path_of
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.testing import real_supervisor

MAX_SHOWN = 4000
"""The characters of its log that an error shows."""
END_SECONDS = 10.0


@contextmanager
def real_workers(settings: Settings, plugins: Sequence[str], count: int, folder: Path) -> Iterator[Path]:
    """Run a supervisor with `count` workers, and yield the path of its store once it serves. Then end it, with all jobs that run.

    Raises RuntimeError, with the end of its log, if it does not start. An error inside gets the end of the log as a note.
    """
    store, log = folder / "jobs.db", folder / "supervisor.log"
    SqliteStore(store, create=True).close()
    side = folder / "store_of_test.py"
    side.write_text(f"from supervisor.testing.real_supervisor import use_store\n\nuse_store({str(store)!r})\n")
    config = None if settings.path is None else str(settings.base / settings.path.name)
    order = {"config": config, "store": str(store), "plugins": [str(side), *plugins], "count": count}
    parent_death, alive = os.pipe()
    try:
        with log.open("wb") as stderr:
            process = _started(order, parent_death, stderr.fileno())
    finally:
        os.close(parent_death)
    try:
        with process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != real_supervisor.STARTED:
                    process.wait()
                    raise RuntimeError(f"the supervisor of job_runner.workers() did not start:\n{_end(log)}")
                yield store
            finally:
                _stop(process)
    except Exception as error:
        error.add_note(f"log of job_runner.workers():\n{_end(log)}")
        raise
    finally:
        os.close(alive)


def plugins_of(settings: Settings, given: Sequence[str], loaded: Sequence[str]) -> list[str]:
    """Return the plugins of the workers: those given, else those that the test has loaded, else those of the settings."""
    chosen = given or loaded or settings.plugins.paths
    paths = [path_of(each, settings.base) for each in chosen]
    return [str(path) if path.exists() else each for each, path in zip(chosen, paths, strict=True)]


def _started(order: object, parent_death: int, stderr: int) -> subprocess.Popen[bytes]:
    """Start the program. It can import what the test can."""
    return subprocess.Popen(
        [sys.executable, "-m", real_supervisor.__name__, json.dumps(order), str(parent_death)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=[parent_death],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the supervisor and its workers now: two different signals are an order to wait for no job."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-MAX_SHOWN:].rstrip()
