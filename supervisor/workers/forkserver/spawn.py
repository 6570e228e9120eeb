"""`workers.start: spawn`: each worker is an interpreter of its own, which imports the plugins itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds
from supervisor.workers.child import main as worker
from supervisor.workers.child.stdio import install_streams
from supervisor.workers.system import interpreter


def spawn(
    setup: worker.WorkerSetup, ends: WorkerEnds, hello: wire.Hello, owner: Sequence[int], told: Sequence[str]
) -> int:  # fmt: skip
    """Start it in its own group; gives its pid. `told` names the sources of which is known that they don't load. Raises
    OSError."""
    with open(os.memfd_create("birth"), "w+b") as setup_file:  # not the command line, which everybody can read
        setup_file.write(orjson.dumps([asdict(setup), list(ends), list(hello), owner, told]))
        setup_file.seek(0)
        process = subprocess.Popen(
            interpreter.command(__name__, str(setup_file.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=ends.stdout,
            stderr=ends.stderr,
            pass_fds=(*ends, *owner, setup_file.fileno()),
            process_group=0,
        )
    # It is waited for by number, when its group has been signalled: subprocess must never do that before.
    process.returncode = 0
    return process.pid


def main(setup_file: str) -> None:
    with open(int(setup_file), "rb") as text:
        setup, ends, hello, owner, told = orjson.loads(text.read())
    channels, orders = WorkerEnds(*ends), wire.Hello(*hello)
    for fd in (*channels, *owner):
        os.set_inheritable(fd, False)
    worker.worker_main(worker.WorkerSetup(**setup), channels, lambda: _load(orders, told))


def _load(hello: wire.Hello, told: Sequence[str]) -> PluginManager:
    install_streams()
    plugins = PluginManager(worker.report_hook)
    plugins.load_all(source for source in discover(hello.plugins, Path(hello.base)) if source.name not in hello.skip)
    for report in plugins.reports:
        if report.error is not None and report.source not in told:
            _report(report)
    return plugins


def _report(report: SourceReport) -> None:
    """On the worker's stderr, which the supervisor logs."""
    where = report.source if report.line is None else f"{report.source}:{report.line}"
    print(f"plugin {where} did not load in this worker: {report.error}\n{report.traceback}".rstrip(), file=sys.stderr)
