"""Read many jobs some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PAGE_JOBS, PAGE_CHARACTERS = 200, 1_000_000


def in_pages(ids: list[int], read: Callable[[list[int]], tuple[int, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """Yield the jobs with these ids. `read` gets up to PAGE_JOBS of the ids; it returns how many of them it has read, at least one,
    and those of the jobs that exist."""
    start = 0
    while start < len(ids):
        count, jobs = read(ids[start : start + PAGE_JOBS])
        yield from jobs
        start += count
