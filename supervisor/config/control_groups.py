"""Control groups, by which containers and systemd limit CPU and memory, and the number of CPUs that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple


class UsableCpus(NamedTuple):
    """`number` is at least 1; `reason` is text for people."""

    number: int
    reason: str


def usable_cpus(root: str = "") -> UsableCpus:
    """Return how many CPUs this process may keep busy: those of its affinity, or fewer if a control group has a quota, rounded up. `root`
    is a prefix of all paths, for tests."""
    allowed = len(os.sched_getaffinity(0))
    quota, setting = min(_quotas(root), default=(float("inf"), ""))
    if quota >= allowed:
        return UsableCpus(allowed, "the CPUs that this process may use")
    return UsableCpus(
        max(1, ceil(quota)), f"the CPU quota of {quota:g} in {setting}; this process may use {allowed} CPUs"
    )


def control_groups(root: str = "") -> list[tuple[list[str], str]]:
    """Return the controllers and the path of each control group of this process; a group of version 2 has no controllers here."""
    try:
        with open(f"{root}/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [(controllers.split(",") if controllers else [], path) for _, controllers, path in groups]


def _quotas(root: str) -> Iterator[tuple[float, str]]:
    """Yield each quota, in CPUs, of the groups and those above them, and the file that sets it. In a container the paths may be those of the
    machine: then only the top group is seen, which is the container's own."""
    for controllers, path in control_groups(root):
        for group in (Path(path), *Path(path).parents):
            if not controllers:
                setting = Path(f"{root}/sys/fs/cgroup{group}/cpu.max")
                texts = _fields(setting)
            elif "cpu" in controllers:
                setting = Path(f"{root}/sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us")
                texts = _fields(setting) + _fields(setting.with_name("cpu.cfs_period_us"))
            else:
                continue
            with suppress(ValueError):  # "max", or nothing
                quota, period = map(int, texts)
                if quota > 0 and period > 0:
                    yield quota / period, str(setting)


def _fields(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
