"""Orphans: the programs that ended processes of an owner have left."""

from __future__ import annotations

import os
from collections.abc import Collection

from supervisor.workers.system import marks, stuck
from supervisor.workers.system import process_tree as proctree

END_SECONDS = 2.0  # less than the supervisor waits for the end of the forkserver
MAX_ZOMBIES = 100


class Orphans:
    """The orphans that come to this process, which is a subreaper or process 1 of a container."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def sweep(self, running: Collection[int]) -> None:
        """Kill the programs of ended workers and forkservers, and reap zombies. What a killed one has started comes here then, and is
        killed in the next sweep. `running` are the pids of workers and forkservers, which are not touched themselves.

        A child with the mark of this process, or a hidden one, was started by a plugin in this process, which waits for it. Or such a
        child has left it, and nobody will: so the number of their zombies is bounded.
        """
        own, of_plugins = marks.own_mark(), []
        for pid in proctree.children(os.getpid()):
            if pid in running:
                continue
            mark = marks.mark_of(pid)
            if mark is None or mark == own:
                of_plugins.append(pid)
            elif proctree.reap(pid) is None and self._has_ended(mark, running):
                proctree.kill(pid)
        zombies = [pid for pid in of_plugins if not proctree.is_alive(pid)]
        for pid in zombies[:-MAX_ZOMBIES]:
            proctree.reap(pid)

    def end(self, running: Collection[int]) -> bool:
        """Kill and reap the programs of ended workers and forkservers. Return whether any are left, or may come here from them: then
        call this again."""
        children = [pid for pid in proctree.children(os.getpid()) if pid not in running]
        return proctree.kill_and_reap([pid for pid in children if self._has_ended(marks.mark_of(pid), running)])

    def _has_ended(self, mark: int | None, running: Collection[int]) -> bool:
        """Return whether the worker or forkserver with this mark has ended; False if it is a mark of neither."""
        pid = marks.pid_in(mark, self._owner)
        return pid is not None and pid != marks.SUPERVISOR and pid not in running


def end_children() -> None:
    """Kill and reap every child of this process, and what comes here from it."""
    proctree.end(lambda: proctree.children(os.getpid()), END_SECONDS)


def end_programs_of(owner: str) -> None:
    """Kill all that an owner without a supervisor has left, wherever it is, and what that starts meanwhile. A store's writer may call
    this, so it does not wait for the exit of processes that do no more, which may take long."""
    proctree.end(lambda: [pid for pid in marks.marked(owner) if _goes_on(pid)], END_SECONDS)


def _goes_on(pid: int) -> bool:
    return proctree.is_alive(pid) and not stuck.will_do_no_more(pid)
