"""Blocked jobs that wait for a job that has ended without success, and so do not run before somebody does something: what the stores have
in common. A failed job may hold its key, and a job may wait for a failed or cancelled parent.

A look costs the same however many jobs there are. It examines the jobs that failed or were cancelled last, and those for which the
oldest blocked jobs wait: jobs that are stuck for long become the oldest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from supervisor.stores.codes import BLOCKED, STATES

MAX_LOOKED_AT: Final = 500
"""Of the failed, of the cancelled and of the blocked jobs each."""
MAX_WAITING: Final = 100
"""The jobs that are counted for each ended job."""
MAX_STUCK: Final = 100
"""The ended jobs of each kind in a status."""
KEY_HELD, PARENT_FAILED = "key_held", "parent_failed"


def has_blocked(counted: Iterable[Sequence[Any]]) -> bool:
    """Return whether any job is blocked, by rows of (queue, state, tier, n)."""
    return any(state == BLOCKED and n > 0 for _, state, _, n in counted)


def stuck_rows(held: Iterable[Sequence[Any]], parents: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the `stuck` of `status --json`. `held` are the failed jobs that hold keys, as (id, handler, state, key, number of jobs that
    wait), and `parents` those for which others wait, as (id, handler, state, first of these, their number); states are codes."""
    return [*_rows(KEY_HELD, held), *_rows(PARENT_FAILED, parents)]


def _rows(kind: str, found: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for id, handler, state, what, waiting in found:
        key, child = (what, None) if kind == KEY_HELD else (None, what)
        yield {
            "kind": kind,
            "job_id": id,
            "handler": handler,
            "state": STATES[state].value,
            "key": key,
            "child": child,
            "waiting": waiting,
        }
