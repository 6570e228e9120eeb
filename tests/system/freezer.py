"""Processes in uninterruptible sleep, which SIGKILL does not end until they are thawed: the freezer of version 1 control groups."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.command import wait_for
from tests.system.privileges import require_root

MOUNT = Path("/sys/fs/cgroup/freezer")


class Freezer:
    def __init__(self, group: Path) -> None:
        self._group = group

    def freeze(self, *pids: int) -> None:
        for pid in pids:
            (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (self._group / "freezer.state").read_text() == "FROZEN\n")

    def thaw(self) -> None:
        (self._group / "freezer.state").write_text("THAWED")


@contextmanager
def freezer() -> Iterator[Freezer]:
    """Skips the test where there is none, as in most containers. Afterwards all is thawed."""
    group = MOUNT / f"test-{os.getpid()}"
    require_root("to freeze a process")
    if not (MOUNT / "cgroup.procs").exists():
        MOUNT.mkdir(parents=True, exist_ok=True)
        if subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", MOUNT], capture_output=True).returncode:
            pytest.skip("no freezer of version 1 control groups here")
    group.mkdir()
    here = Freezer(group)
    try:
        yield here
    finally:
        here.thaw()
        wait_for(lambda: (group / "cgroup.procs").read_text() == "")
        group.rmdir()
