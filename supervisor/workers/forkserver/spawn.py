"""Workers with `workers.start: spawn`: each is a fresh interpreter, which imports the plugins itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from logging import ERROR
from pathlib import Path

import orjson

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import WorkerEnds
from supervisor.workers.child import main as worker
from supervisor.workers.child.record_handler import RecordHandler
from supervisor.workers.child.stdio import install_streams
from supervisor.workers.system import interpreter

STDERR = 2


def spawn(hello: wire.Hello, order: wire.Fork, ends: WorkerEnds, owner: Sequence[int], failed: Sequence[str]) -> int:
    """Start a worker in a group of its own; return its pid. `failed` names sources that do not load. Raises OSError."""
    with open(os.memfd_create("worker-setup"), "w+b") as setup_file:  # not the command line, which every user can read
        setup_file.write(orjson.dumps([list(hello), list(order), list(ends), owner, failed]))
        setup_file.seek(0)
        process = subprocess.Popen(
            interpreter.command(main, str(setup_file.fileno())), stdin=subprocess.DEVNULL, stdout=ends.stdout,
            stderr=ends.stderr, pass_fds=(*ends, *owner, setup_file.fileno()), process_group=0,
        )  # fmt: skip
    # The forkserver waits for the pid once the group has been signalled: subprocess must never wait for it before.
    process.returncode = 0
    return process.pid


def main(setup_file: str) -> None:
    with open(int(setup_file), "rb") as text:
        fields, order, ends, owner, failed = orjson.loads(text.read())
    hello = wire.Hello(*fields)
    for fd in (*ends, *owner):
        os.set_inheritable(fd, False)
    order = wire.Fork(*order)
    records = RecordHandler(hello.log_level, STDERR, order.token)
    install_streams()
    records.install()
    worker.worker_main(hello, order, WorkerEnds(*ends), records, partial(_load, hello, failed, records))


def _load(
    hello: wire.Hello, failed: Sequence[str], records: RecordHandler, emit: Callable[[str], None]
) -> PluginManager:
    plugins = PluginManager(records.report_hook)
    for source in discover(hello.plugins, Path(hello.base)):
        if source.name not in hello.skip:
            emit(f"the import of plugin {source.name}")
            plugins.load(source)
    for report in plugins.reports:
        if report.error is not None and report.source not in failed:
            where = report.source if report.line is None else f"{report.source}:{report.line}"
            records.report(ERROR, f"plugin {where} did not load in this worker: {report.error}", report.traceback)
    return plugins
