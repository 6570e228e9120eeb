"""`workers.start: spawn`: each worker is an interpreter of its own, which imports the plugins itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from supervisor.plugin_manager import PluginManager, discover
from supervisor.processes import interpreter, wire, worker
from supervisor.processes.channels import WorkerEnds
from supervisor.processes.stdio import install_streams


def spawn(birth: worker.Birth, ends: WorkerEnds, hello: wire.Hello, owner: Sequence[int]) -> int:
    """Start it in its own group; gives its pid. Raises OSError."""
    with open(os.memfd_create("birth"), "w+b") as letter:  # not the command line, which everybody can read
        letter.write(orjson.dumps([asdict(birth), list(ends), list(hello), owner]))
        letter.seek(0)
        process = subprocess.Popen(
            interpreter.command(__name__, str(letter.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=ends.stdout,
            stderr=ends.stderr,
            pass_fds=(*ends, *owner, letter.fileno()),
            process_group=0,
        )
    # It is waited for by number, when its group has been signalled: subprocess must never do that before.
    process.returncode = 0
    return process.pid


def main(letter: str) -> None:
    with open(int(letter), "rb") as told:
        birth, ends, hello, owner = orjson.loads(told.read())
    channels, orders = WorkerEnds(*ends), wire.Hello(*hello)
    for fd in (*channels, *owner):
        os.set_inheritable(fd, False)
    worker.live(worker.Birth(**birth), channels, lambda: _load(orders))


def _load(hello: wire.Hello) -> PluginManager:
    install_streams()
    plugins = PluginManager(worker.report_hook)
    plugins.load_all(source for source in discover(hello.plugins, Path(hello.base)) if source.name not in hello.skip)
    return plugins
