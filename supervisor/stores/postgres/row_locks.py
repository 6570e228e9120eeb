"""Rows of a PostgreSQL store that somebody else has locked: a person at a prompt, say, who has gone for lunch."""

from __future__ import annotations

import time
from collections.abc import Collection

from supervisor.stores.postgres.connection import Database, array

THERE = "select {key} from {{s}}.{table} where {key} = any($1::bigint[])"
LOCK_FREE = f"{THERE} order by {{key}} for no key update skip locked"
LOCKED = f"""{THERE} and {{key}} <> all(array({THERE} for share skip locked))"""

SKIP_LOCKED_SECONDS = 60.0
"""After a lock was last met. To be wary costs a statement more for each batch."""


class Locks(Database):
    """The first to meet a locked row waits for it, as long as a call may, and fails. From then on the store is wary for a
    while: each batch first takes the rows that are free, and passes by those that aren't. A lock on a whole table leaves no row
    free, nor any statement: the repeated call fails as the first did."""

    _skip_locked_until = 0.0

    @property
    def skips_locked(self) -> bool:
        return self._skip_locked_until > 0.0 and time.monotonic() < self._skip_locked_until

    def contended(self) -> None:
        self._skip_locked_until = time.monotonic() + SKIP_LOCKED_SECONDS

    def to_pass_by(self, table: str, key: str, ids: Collection[int]) -> set[int]:
        """Those of these rows that are to be left alone now; the others are locked for this transaction. None unless wary."""
        if not ids or not self.skips_locked:
            return set()
        locked = self.locked(table, key, ids)
        if locked:
            self.contended()
        return locked

    def locked(self, table: str, key: str, ids: Collection[int]) -> set[int]:
        """Those of these rows that others have locked; the rest are locked here. It waits for nobody."""
        missing = set(ids).difference(self.column(LOCK_FREE.format(table=table, key=key), array(ids)))
        if not missing:
            return missing
        return set(self.column(THERE.format(table=table, key=key), array(missing)))

    def held_by_others(self, table: str, key: str, ids: Collection[int]) -> set[int]:
        """Those of these rows that others have locked to change them; for a few. Who asks the same at this moment is in nobody's
        way. What it takes to ask is given back at once: this transaction may be long, and whoever has the lease needs its row."""
        if not ids:
            return set()
        self.later("savepoint asked")
        held = set(self.column(LOCKED.format(table=table, key=key), array(ids)))
        self.later("rollback to savepoint asked")
        self.run("release savepoint asked")
        return held
