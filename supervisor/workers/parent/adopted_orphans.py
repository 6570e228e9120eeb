"""Orphans that become children of the supervisor itself: a forkserver has exited, or this is process 1 of a container."""

from __future__ import annotations

import os
from collections.abc import Collection

from supervisor.workers.system import process_tree as proctree

FINISH_SECONDS = 2.0


class AdoptedOrphans:
    """Kills the programs that ended workers of this owner left, and reaps orphans. Other children of the supervisor are not touched.

    A zombie is reaped only when it is found for the second time, so that other code of this process can wait for it first. Zombies
    of the supervisor's own group were started by a plugin in the supervisor, which waits for them itself.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._seen: set[int] = set()

    def sweep(self) -> None:
        for pid in self._programs_of_ended_workers():
            proctree.kill(pid)

    def reap(self, known: Collection[int]) -> None:
        """Reap zombies. `known` are the pids of workers."""
        zombies = _foreign_zombies(known)
        for pid in zombies & self._seen:
            proctree.reap(pid)
        self._seen = zombies - self._seen

    def finish(self) -> None:
        """Kill and reap the orphans that are left after the last worker, and those that they leave."""
        proctree.end(self._programs_of_ended_workers, FINISH_SECONDS)
        for pid in _foreign_zombies(()):
            proctree.reap(pid)

    def _programs_of_ended_workers(self) -> list[int]:
        found = [(pid, proctree.mark(pid)) for pid in proctree.children(os.getpid())]
        return [pid for pid, mark in found if mark and mark.owner == self._owner and not proctree.is_alive(mark.pid)]


def end_programs_of(owner: str) -> None:
    """Kill the programs that an ended owner left: its forkserver has not done so if it was killed at the same time."""
    for pid in proctree.marked(owner):
        if pid != os.getpid():
            proctree.kill_with_group(pid)


def _foreign_zombies(known: Collection[int]) -> set[int]:
    return {pid for pid in proctree.children(os.getpid()) if pid not in known and _is_foreign_zombie(pid)}


def _is_foreign_zombie(pid: int) -> bool:
    now = proctree.stat(pid)
    own = os.getpgrp()  # 0 if the group is outside of this pid namespace, as are others: then groups can't be compared
    return now is not None and now.state == "Z" and (now.group != own or own == 0)
