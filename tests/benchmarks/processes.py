"""Trees of processes: their memory, their CPU time and their end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and all its descendants."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of all threads. `psutil.cpu_times` counts in units that are too coarse for idle processes."""
    return sum(_ran(thread) for process in processes for thread in Path(f"/proc/{process.pid}/task").glob("*")) / 1e9


def pss(pid: int) -> int:
    """Return the memory in bytes. Each page that processes share is divided among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def peak_rss(pid: int) -> int:
    """Return the largest resident memory that the process ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _ran(thread: Path) -> int:
    with contextlib.suppress(OSError):
        return int((thread / "schedstat").read_text().split()[0])
    return 0
