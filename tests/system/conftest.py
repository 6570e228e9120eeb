from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.workers.system import marks, process_tree
from tests.system.command import Command, wait_for


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """This process is a subreaper once a test has made it one: what is left behind lands on it, and would spoil the next."""
    before = set(children())
    yield

    def none_left() -> None:
        left = [psutil.Process(pid) for pid in children() if pid not in before]
        left = [child for child in left if child.name() != "postgres"]  # a server that a test has started again
        left = [child for child in left if not reaped(child.pid)]
        assert not left, f"children left: {left}"

    wait_for(none_left, timeout=5.0)


def children() -> list[int]:
    return process_tree.children(os.getpid())


def reaped(pid: int) -> bool:
    """Whether it has ended; then its number is free again."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


@pytest.fixture(autouse=True)
def no_mark_is_inherited() -> None:
    """This process has a mark once a test has run a supervisor's part in it: the programs of the next would pass for its own."""
    _, hard = resource.getrlimit(marks.FILE_LOCKS)
    resource.setrlimit(marks.FILE_LOCKS, (hard, hard))


WITHOUT_POLLS = """
import supervisor.engine.limits as limits

limits.DEFAULT_LIMITS = limits.DEFAULT_LIMITS._replace(poll=3600.0)
"""


@pytest.fixture
def without_polls(command: Command) -> None:
    """Make supervisors look for jobs when they are notified, and not every five seconds too."""
    folder = command.folder / "without polls"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT_POLLS)
    command.env["PYTHONPATH"] = f"{folder}{os.pathsep}{command.env['PYTHONPATH']}"


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    command.close()
