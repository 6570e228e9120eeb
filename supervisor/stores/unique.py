"""Unique keys: while a job has one, an enqueue with the same key adds no other job. A key is unique in the whole store.

Each key has one row, whose job has it. Whether it still does is decided when somebody asks for the key, from the state of the job or
from the time: so a claim and a settle do nothing for it, and no key stays taken after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from supervisor.errors import JobExists
from supervisor.stores.codes import IN_FLIGHT, SUCCEEDED
from supervisor.stores.extras import WAITING, ExistingId, Extras
from supervisor.stores.records import EnqueueRow

KEPT_BY_REPLACE = ("unique", "key", "group")
"""The extras of a job that stay as they were when the job is replaced: they give its place among other jobs."""
KEPT_WITHOUT_KEY = (*KEPT_BY_REPLACE, "on_failure")
"""The extras that stay as they were if the new job has no key."""


def hold_of(extras: Extras, now: int) -> tuple[int, int | None]:
    """Return (below, until): the job has its key until that time or, if it is None, while the code of its state is below the first."""
    if isinstance(extras.unique_while, int):
        return SUCCEEDED, now + extras.unique_while
    return IN_FLIGHT if extras.unique_while == WAITING else SUCCEEDED, None


def replaced_extras(old: Extras | None, new: Extras) -> Extras:
    kept = KEPT_WITHOUT_KEY if new.key is None else KEPT_BY_REPLACE
    return new if old is None else new._replace(**{name: getattr(old, name) for name in kept})


@contextmanager
def naming_no_new_job(ids: Sequence[int]) -> Iterator[None]:
    """Name no job in JobExists if it is one of these, which the same call has added: it won't exist."""
    try:
        yield
    except JobExists as error:
        new = {id for id in ids if not isinstance(id, ExistingId)}
        raise JobExists(error.key, None if error.id in new else error.id) from None


def decoded_ids(rows: Sequence[EnqueueRow], ids: list[int]) -> list[int]:
    """Return the ids that the PostgreSQL function `put` has answered for these rows: it negates the id of a job that was there
    before, and those that were replaced follow 0. Raises JobExists if it has answered [0, id, place]: nothing was enqueued."""
    if ids and ids[0] == 0:
        _, id, place = ids
        extras = rows[place - 1].extras
        raise JobExists("" if extras is None else extras.unique or "", id or None)
    if min(ids, default=0) >= 0:
        return ids
    replaced = frozenset(ids[len(rows) + 1 :])
    return [id if id > 0 else _existing(-id, row, replaced) for id, row in zip(ids, rows, strict=False)]


def _existing(id: int, row: EnqueueRow, replaced: frozenset[int]) -> ExistingId:
    replaces = row.extras is not None and row.extras.on_conflict == "replace"
    return ExistingId(id, replaced=replaces and id in replaced)


def held_by(key: str, other: int) -> str:
    """Return why a job does not run again."""
    return f"its unique key {key!r} is that of job {other} now, which has not ended: cancel that one first, or wait for its end"
