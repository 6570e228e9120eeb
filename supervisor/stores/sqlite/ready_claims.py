"""Claims of single ready jobs in SQLite, as limits need them."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.jobs import Lease
from supervisor.stores.records import Resolve
from supervisor.stores.sqlite.connection import Connection, Select, packed
from supervisor.stores.sqlite.queue import COLUMNS, Queue

READY_JOBS = Select(
    COLUMNS, "from (select value as candidate from json_each(?)) cross join jobs on jobs.id = candidate"
)


class ReadyClaims:
    def __init__(self, connection: Connection, queue: Queue) -> None:
        self._connection, self._queue = connection, queue

    def claim(self, ids: Sequence[int], ttl: float, resolve: Resolve) -> list[Lease]:
        """Claim the first of these ready jobs that fit into one claim."""
        return self._queue.claim_rows(self._connection.rows(READY_JOBS, packed(ids)), ttl, resolve)
