"""What dead workers leave behind, and how it is killed; seen from a subreaper, on which it lands."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from supervisor.workers.system import linux
from supervisor.workers.system import process_tree as proctree

FINISH_SECONDS = 2.0  # a process that waits for a disk or a network file system is deaf even to SIGKILL
FINISH_EVERY = 0.002


class Orphans:
    """Children of this process that it did not start as workers. What a plugin's import started is not among them."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._not_orphans = frozenset(proctree.children(os.getpid()))

    def sweep(self, workers: Collection[int]) -> None:
        """Reap the dead, kill those of no living worker. Their own children land here then, and are swept in their turn.

        A daemon that a running job has started lives as long as its worker.
        """
        for pid in proctree.children(os.getpid()):
            if pid in workers or pid in self._not_orphans:
                continue
            now = proctree.stat(pid)
            if now is None or now.state == "Z":
                reap(pid)
            elif now.group not in workers and not _is_of(workers, pid):
                _kill(pid)

    def end_mine(self) -> None:
        """Kill every child and what it leaves, until there is none."""
        while found := proctree.children(os.getpid()):
            for pid in found:
                _kill_with_group(pid)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def end_all(self) -> None:
        """Also the programs of this owner that have landed elsewhere."""
        self.end_mine()
        _repeat(lambda: proctree.marked(self._owner))


def end_programs_of(owner: str) -> None:
    """Of an owner that is gone with its workers: those that nobody was there to see when it was killed with its nursery."""
    for pid in proctree.marked(owner):
        if pid != os.getpid():
            _kill_with_group(pid)


class AdoptedOrphans:
    """What lands on the supervisor itself: when a nursery died, or as process 1. Its other children are not its business.

    Programs of this owner's dead workers are killed. Dead ones that nobody waits for are reaped at the second sight; those
    of the supervisor's own group were started by a plugin there, which waits for them itself.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._seen: set[int] = set()

    def sweep(self) -> None:
        for pid in self._dead_workers_programs():
            _kill(pid)

    def reap(self, known: Collection[int]) -> None:
        dead = _foreign_zombies(known)
        for pid in dead & self._seen:
            reap(pid)
        self._seen = dead - self._seen

    def finish(self) -> None:
        """Once every worker is dead: kill and reap what is there, and what it leaves in its turn."""
        give_up = time.monotonic() + FINISH_SECONDS
        while (orphans := self._dead_workers_programs()) and time.monotonic() < give_up:
            for pid in orphans:
                _kill(pid)
                reap(pid)
            time.sleep(FINISH_EVERY)
        for pid in _foreign_zombies(()):
            reap(pid)

    def _dead_workers_programs(self) -> list[int]:
        found = [(pid, proctree.mark(pid)) for pid in proctree.children(os.getpid())]
        return [pid for pid, mark in found if mark and mark.owner == self._owner and not proctree.is_living(mark.pid)]


def reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _foreign_zombies(known: Collection[int]) -> set[int]:
    return {pid for pid in proctree.children(os.getpid()) if pid not in known and _is_foreign_zombie(pid)}


def _is_foreign_zombie(pid: int) -> bool:
    now = proctree.stat(pid)
    own = os.getpgrp()  # 0 for every group of another pid namespace, so there it tells nobody apart
    return now is not None and now.state == "Z" and (now.group != own or own == 0)


def _is_of(workers: Collection[int], pid: int) -> bool:
    found = proctree.mark(pid)
    return found is not None and found.pid in workers


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_with_group(pid: int) -> None:
    now = proctree.stat(pid)
    if now is not None and now.group == pid:
        linux.kill_group(pid)
    _kill(pid)


def _repeat(find: Callable[[], Iterable[int]]) -> None:
    """A program may start another while it is being looked for."""
    while found := [pid for pid in find() if pid != os.getpid() and proctree.is_living(pid)]:
        for pid in found:
            _kill(pid)
