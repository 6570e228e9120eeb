"""The extras of jobs in SQLite: each job that has any has a row beside its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.stores.extras import NO_EXTRAS, UNFINISHED, ExistingId, Extras, extras_of, extras_text
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.expiry import Expiries
from supervisor.stores.sqlite.links import Links
from supervisor.stores.sqlite.unique import UniqueKeys
from supervisor.stores.unique import replaced_extras

ADD = "insert into extras(job_id, key, expires_at, text) values (?, ?, ?, ?)"
TEXT = "select cast(text as text) from extras where job_id = ?"
REMOVE = "delete from extras where job_id = ?"


class NewExtras:
    """Stores the extras of new jobs."""

    def __init__(self, connection: Connection, links: Links, expiries: Expiries, unique: UniqueKeys) -> None:
        self._connection, self._links, self._expiries, self._unique = connection, links, expiries, unique

    def existing(self, id: int, extras: Extras, now: int) -> ExistingId | None:
        """Return the job that has the unique key of the new one, which is to have this `id` if there is none."""
        return None if extras.unique is None else self._unique.take(extras, id, now)

    def add(self, id: int, extras: Extras, now: int, *, ready: bool) -> None:
        """Add the extras of a job that was inserted just now."""
        expires_at = None if extras.expires is None else now + extras.expires
        self._connection.run(ADD, id, extras.key, expires_at, extras_text(extras))
        if expires_at is not None:
            self._expiries.add(id, expires_at)
        if extras.after:
            self._links.linked(id, extras)
        elif ready and extras.key is not None:
            self._links.acquire([id])

    def are_only_unique(self, rows: EnqueueBatch) -> bool:
        """Return whether all of the rows have a unique key and no other extras, and are skipped if a job has it."""
        plain = NO_EXTRAS._replace(unique="")
        return all(
            (extras := kind.extras) is not None
            and extras.unique is not None
            and extras._replace(unique="", unique_while=UNFINISHED) == plain
            for kind in rows.kinds
        )

    def holders(self, keys: Sequence[str], now: int) -> dict[str, int]:
        return self._unique.holders(keys, now)

    def add_unique(self, first: int, rows: Iterable[EnqueueRow], now: int) -> None:
        """Add the extras of jobs that were inserted just now with ids from `first` on; see `are_only_unique`."""
        its = [(id, row.extras) for id, row in enumerate(rows, first) if row.extras is not None]
        self._connection.run_many(ADD, [(id, None, None, extras_text(extras)) for id, extras in its])
        self._unique.give_all(its, now)

    def replace(self, id: int, extras: Extras, now: int, *, newly_ready: bool) -> None:
        """Change the extras of a job that waits, and was changed just now."""
        text = self._connection.value(TEXT, id)
        new = replaced_extras(None if text is None else extras_of(text), extras)
        self._expiries.forget(id)
        expires_at = None if new.expires is None else now + new.expires
        self._connection.run(REMOVE, id)  # not an update: its triggers keep the index of tags
        self._connection.run(ADD, id, new.key, expires_at, extras_text(new))
        if expires_at is not None:
            self._expiries.add(id, expires_at)
        self._unique.give(new, id, now)
        if new.after:
            self._links.linked(id, new)
        elif newly_ready:
            self._links.due([id])
