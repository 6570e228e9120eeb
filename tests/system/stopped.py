"""Stop processes by a signal while they hold no lock of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from supervisor.stores.sqlite.connection import SqliteLimits
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.stores.sqlite.write_lock import FileLock
from tests.system.command import TIMEOUT, Command, wait_for


def stop_between_writes(command: Command, processes: Iterable[psutil.Process]) -> None:
    """Stop them while they write nothing: nobody could write to the SQLite file until a process that was stopped in a transaction
    goes on."""
    with _writing(command):
        for process in processes:
            _stop(process)


def stop_in_the_queue(command: Command, process: psutil.Process) -> None:
    """Stop the only writer while it waits to be the next, in the queue of the fair write lock."""
    queue_lock = FileLock(command.folder / "jobs.db-queue.lock")

    def is_free() -> bool:
        free = queue_lock.try_take()
        queue_lock.release()
        return free

    def is_stopped_in_it() -> bool:
        if is_free():
            return False
        _stop(process)
        if is_free():  # it has waited for too long and given up
            process.resume()
            return False
        return True

    with _writing(command):
        wait_for(is_stopped_in_it)
    queue_lock.close()


@contextmanager
def _writing(command: Command) -> Iterator[None]:
    limits = SqliteLimits(write_seconds=TIMEOUT)
    with closing(SqliteStore(command.folder / "jobs.db", limits=limits)) as store, store.transaction():
        yield


def _stop(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.suspend()
    wait_for(lambda: _is_stopped(process.pid))


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of the process have stopped, which they do one by one, or have ended."""
    try:
        stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread has ended meanwhile, or the process
        return not psutil.pid_exists(pid)
    return {stat.rpartition(")")[2].split()[0] for stat in stats} <= {"T", "Z"}
