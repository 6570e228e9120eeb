"""A schema of a PostgreSQL database that exists for a while, and is removed afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import sql as quoting

from supervisor.stores.postgres.connection import Connection
from supervisor.stores.postgres.driver import Address
from supervisor.stores.postgres.limits import DEFAULT_LIMITS

TRY_LOCK = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))"
STAY_IDLE = "set local idle_in_transaction_session_timeout = 0"
LEFT_BEHIND = "select nspname from pg_namespace where nspname ~ $1 and pg_has_role(nspowner, 'usage')"
DROP = quoting.SQL("drop schema if exists {} cascade")


class ScratchSchema(NamedTuple):
    """The name of the schema, and the value of `synchronous_commit` that the store commits with."""

    schema: str
    synchronous_commit: str


@contextmanager
def scratch_schema(url: str, *, listen: bool, prefix: str) -> Iterator[ScratchSchema]:
    """Yield the name of a schema, which begins with `prefix`, for a new store. The schema is removed afterwards.

    The name is locked by a transaction that stays open meanwhile. It blocks nobody, and ends with this program even behind a
    pooler: so schemas that a killed program left behind can be recognised, and are removed first."""
    schema = f"{prefix}{secrets.token_hex(8)}"
    connection = Connection(Address(url, listen=listen, limits=DEFAULT_LIMITS), schema)
    try:
        for left in connection.column(LEFT_BEHIND, f"^{prefix}[0-9a-f]{{16}}$"):
            _remove(connection, left)
        try:
            with connection.transaction():
                connection.run(STAY_IDLE)
                connection.value(TRY_LOCK, schema)
                yield ScratchSchema(schema, connection.value("show synchronous_commit"))
        finally:
            _remove(connection, schema)
    finally:
        connection.close()


def _remove(connection: Connection, schema: str) -> None:
    """Remove the schema unless another program holds its lock."""
    with connection.transaction():
        if connection.value(TRY_LOCK, schema):
            connection.run(DROP.format(quoting.Identifier(schema)).as_string(None))
