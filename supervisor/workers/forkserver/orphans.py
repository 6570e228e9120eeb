"""Orphans that become children of the forkserver, which is a subreaper: the programs that ended workers left."""

from __future__ import annotations

import os
from collections.abc import Collection

from supervisor.workers.system import process_tree as proctree

END_SECONDS = 2.0  # less than the supervisor waits for the end of the forkserver


class Orphans:
    """The children of the forkserver that are not workers and were not started by the import of a plugin."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._of_imports = frozenset(proctree.children(os.getpid()))

    def sweep(self, workers: Collection[int]) -> None:
        """Reap zombies and kill the programs of ended workers. The children of these become orphans, and are killed in the next sweep.
        A daemon that a job has started may run as long as its worker."""
        for pid in proctree.children(os.getpid()):
            if pid in workers or pid in self._of_imports:
                continue
            now = proctree.stat(pid)
            if now is None or now.state == "Z":
                proctree.reap(pid)
            elif now.group not in workers and not _is_of(workers, pid):
                proctree.kill(pid)

    def end_children(self) -> None:
        """Kill every child, and the orphans that it leaves."""
        proctree.end(lambda: proctree.children(os.getpid()), END_SECONDS)

    def end_all(self) -> None:
        """Kill the children, and the programs of this owner that are not children; these may start others meanwhile."""
        self.end_children()
        proctree.end(self._elsewhere, END_SECONDS)

    def _elsewhere(self) -> list[int]:
        return [pid for pid in proctree.marked(self._owner) if pid != os.getpid() and proctree.is_alive(pid)]


def _is_of(workers: Collection[int], pid: int) -> bool:
    found = proctree.mark(pid)
    return found is not None and found.pid in workers
