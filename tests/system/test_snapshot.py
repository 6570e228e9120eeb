"""A snapshot of the processes below one: whole if they are few, and cut short if they are many."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from supervisor.workers.system import process_tree as proctree
from tests.system.real_workers import open_fds

CHILDREN = 10
PARENT = f"""
import subprocess, sys
for _ in range({CHILDREN}):
    subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL, start_new_session=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        children = proctree.children(process.pid)
        yield process.pid
        for child in children:
            proctree.kill(child)
        process.kill()


def clock(step: float) -> Callable[[], float]:
    """A clock that goes on by `step` seconds whenever it is read."""
    readings = count()
    return lambda: next(readings) * step


@pytest.mark.parametrize(("step", "killed"), [(0.0, CHILDREN), (proctree.SNAPSHOT_SECONDS / 4, 4)])
def test_only_so_many_are_killed_as_were_found_in_time(parent: int, step: float, killed: int) -> None:
    before = open_fds()
    snapshot = proctree.Snapshot(parent, clock(step))
    children = proctree.children(parent)
    assert len(children) == CHILDREN
    snapshot.kill()
    assert open_fds() == before
    while len([pid for pid in children if proctree.is_alive(pid)]) > CHILDREN - killed:
        os.sched_yield()
    assert len([pid for pid in children if proctree.is_alive(pid)]) == CHILDREN - killed
