"""The extras of jobs in SQLite: each job that has any has a row beside its own."""

from __future__ import annotations

from supervisor.stores.extras import Extras, extras_text
from supervisor.stores.sqlite.connection import Connection
from supervisor.stores.sqlite.links import Links

ADD = "insert into extras(job_id, key, expires_at, text) values (?, ?, ?, ?)"


class NewExtras:
    """Stores the extras of new jobs."""

    def __init__(self, connection: Connection, links: Links) -> None:
        self._connection, self._links = connection, links

    def add(self, id: int, extras: Extras, now: int, *, ready: bool) -> None:
        """Add the extras of a job that was inserted just now."""
        expires_at = None if extras.expires is None else now + extras.expires
        self._connection.run(ADD, id, extras.key, expires_at, extras_text(extras))
        if extras.after:
            self._links.linked(id, extras)
        elif ready and extras.key is not None:
            self._links.due([id])
