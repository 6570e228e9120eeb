"""A schema of a PostgreSQL database for a while: its own, and gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import sql as quoting

from supervisor.stores.postgres.connection import Database

TAKE = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))"
HOLD = "set local idle_in_transaction_session_timeout = 0"
LEFT_BEHIND = "select nspname from pg_namespace where nspname ~ $1 and pg_has_role(nspowner, 'usage')"
DROP = "drop schema if exists {} cascade"


class ScratchSchema(NamedTuple):
    """`synchronous_commit` is what the server says it is for this role."""

    schema: str
    synchronous_commit: str


@contextmanager
def scratch_schema(url: str, *, listen: bool, prefix: str) -> Iterator[ScratchSchema]:
    """A name that begins with `prefix`, for a store to be made there. It is locked as long as a transaction is open, which holds
    up nobody, and behind a pooler, too, ends with this program: so those that a killed one left are known, and removed first."""
    schema = f"{prefix}{secrets.token_hex(8)}"
    database = Database(url, schema=schema, listen=listen)
    try:
        for left in database.column(LEFT_BEHIND, f"^{prefix}[0-9a-f]{{16}}$"):
            _remove(database, left)
        try:
            with database.transaction():
                database.run(HOLD)
                database.value(TAKE, schema)
                yield ScratchSchema(schema, database.value("show synchronous_commit"))
        finally:
            _remove(database, schema)
    finally:
        database.close()


def _remove(database: Database, schema: str) -> None:
    """Unless somebody holds it, or has removed it."""
    with database.transaction():
        if database.value(TAKE, schema):
            database.run(DROP.format(quoting.Identifier(schema).as_string(None)))
