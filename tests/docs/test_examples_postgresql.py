"""The examples of the guide to PostgreSQL work on a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django
import django.conf
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from supervisor import Client
from tests.docs.pages import page
from tests.stores.postgres_server import server

BLOCKS = page("guides/postgresql.md").blocks
TRANSACTIONS = [block for block in BLOCKS if block.title.startswith("with_")]
(CREATED_BY_SQL,) = (block.text for block in BLOCKS if block.language == "sql" and not block.title)


@pytest.fixture
def jobs() -> Iterator[Client]:
    """A client of a new store in the schema `supervisor`, beside a table of orders."""
    with server().connect() as connection:
        connection.execute("drop schema if exists supervisor cascade; drop table if exists orders")
        connection.execute("create table orders (id int)")
        with Client(server().url, create=True) as client:
            yield client
        connection.execute("drop schema supervisor cascade; drop table orders cascade; drop function if exists confirm")


def _names(kind: str, jobs: Client) -> dict[str, Any]:
    """What the page has in its text: a connection, or what leads to one."""
    names: dict[str, Any] = {"jobs": jobs, "URL": server().url, "psycopg": psycopg}
    if kind == "with_sqlalchemy.py":
        engine = sqlalchemy.create_engine(
            server().url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
        )
        names |= {"engine": engine, "Session": Session, "text": sqlalchemy.text}
    if kind == "with_django.py":
        if not django.conf.settings.configured:
            place = {"NAME": "postgres", "USER": "postgres", "HOST": str(server().folder)}
            django.conf.settings.configure(
                DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}}, LOGGING_CONFIG=None
            )
            django.setup()
        from django.db import connection, transaction

        names |= {"connection": connection, "transaction": transaction}
    return names


@pytest.mark.parametrize("block", TRANSACTIONS, ids=lambda block: block.title)
def test_a_job_is_enqueued_in_the_transaction_of_the_page(block: Any, jobs: Client) -> None:
    names = _names(block.title, jobs)
    exec(compile(block.text, block.where, "exec"), names)
    job = jobs.job(1)
    assert job is not None and job["handler"] == "confirm"
    with server().connect() as connection:
        assert connection.execute("select id from orders").fetchall() == [(job["payload"]["order"],)]
    if "connection" in names:
        names["connection"].close()


def test_the_sql_of_the_page_enqueues(jobs: Client) -> None:
    assert jobs.job(1) is None  # the store is there now
    with server().connect() as connection:
        connection.execute(CREATED_BY_SQL)  # type: ignore[arg-type]
        connection.execute("insert into orders values (5)")
    first, second = jobs.job(1), jobs.job(2)
    assert first is not None and first["queue"] == "post" and first["state"] == "scheduled"
    assert second is not None and second["payload"] == {"id": 5}
