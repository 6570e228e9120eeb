"""The limits past which a worker is replaced after its job, or killed."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.workers.blame import ExitCause

MIN_GROWTH = 1.1  # a worker that was past the limit at its start would only be replaced by one of the same size


class Limits(NamedTuple):
    """Limits past which a worker is replaced. `max_memory` is bytes, and `memory_key` the key that it comes from. `max_jobs` may be a
    share of the setting."""

    max_jobs: int | None
    max_memory: int | None
    setting: int | None = None
    memory_key: str = "max_memory"

    def reached_by_memory(self, size: int | None, at_start: int) -> ExitCause | None:
        """Return that a worker of so many bytes, which had others at its start, has reached the limit of memory, if it has."""
        most = self.max_memory
        if most is None or size is None or size <= most or size <= at_start * MIN_GROWTH:
            return None
        return ExitCause("max_memory", f"it has {size / 1e6:.0f}MB, workers.{self.memory_key} is {most / 1e6:g}MB")


def limits_of(max_jobs: int | None, max_memory: int | None, max_memory_hard: int | None) -> Limits:
    """Return the limits after a job. The hard limit of memory is one of them: the next job must not be killed for an earlier one."""
    if max_memory is None and max_memory_hard is not None:
        return Limits(max_jobs, max_memory_hard, memory_key="max_memory_hard")
    return Limits(max_jobs, max_memory)
