"""The starts of jobs, as the jobs themselves record them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.base import Payload
from tests.benchmarks.wait import TIMEOUT, wait_until


class Stamps:
    """The file to which each job of `tasks.stamp` and of tasks like it appends its start."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def payload(self, id: object, **more: Any) -> Payload:
        """Return the payload of a job that appends to this file under `id`."""
        return {"to": str(self.file), "id": str(id), **more}

    def lines(self) -> list[tuple[str, int, int]]:
        """Return (id, time in ns, pid) of each start, in the order of writing."""
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [(id, int(at), int(pid)) for id, at, pid in lines]

    def times(self) -> dict[str, list[int]]:
        """Return the starts of each id in ns, in the order of writing."""
        times: dict[str, list[int]] = {}
        for id, at, _pid in self.lines():
            times.setdefault(id, []).append(at)
        return times

    def wait(self, count: int, timeout: float = TIMEOUT, every: float = 0.001) -> None:
        """Wait for `count` lines, and look every `every` seconds."""
        description = f"{count} jobs in {self.file.name}"
        wait_until(lambda: self.file.read_bytes().count(b"\n") >= count, description, timeout, every)

    def wait_for(self, id: object, timeout: float = TIMEOUT) -> int:
        """Wait for the start of a job, and return its time in ns."""
        wanted = str(id)
        wait_until(lambda: wanted in self.times(), f"the start of job {wanted}", timeout)
        return self.times()[wanted][0]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
