"""A connection that the server refuses: the message names the reason, and nobody waits for another try that fails too."""

from __future__ import annotations

import pytest

from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.stores.postgres.store import PostgresStore
from tests.stores.postgres_server import Server
from tests.stores.test_postgres_unavailable import loopback


@pytest.fixture(scope="module")
def server():
    server = Server(address=loopback())
    with server.connect() as admin:
        for statement in (
            "create role refused login password 'right'",
            "create role group_role",
            "create database closed allow_connections false",
            "create database private",
            "revoke connect on database private from public",
        ):
            admin.execute(statement)
    yield server
    server.remove()


def use_rules(server, *rules):
    (server.data / "pg_hba.conf").write_text("\n".join([*rules, "local all all trust", ""]))
    with server.connect() as admin:
        loaded = "select pg_conf_load_time()"
        before = admin.execute(loaded).fetchone()
        admin.execute("select pg_reload_conf()")
        while admin.execute(loaded).fetchone() == before:
            pass


TRUSTED = "host all all samenet trust"


@pytest.mark.parametrize(
    ("rule", "url", "message"),
    [
        (
            "host all refused samenet scram-sha-256",
            "refused:wrong@{ip}/postgres",
            "password authentication failed for user",
        ),
        ("host all refused samenet scram-sha-256", "refused@{ip}/postgres", "no password supplied"),
        ("host all refused samenet reject", "refused@{ip}/postgres", "pg_hba.conf rejects connection for host"),
        (
            "hostssl all refused samenet trust",
            "refused@{ip}/postgres",
            r"no pg_hba.conf entry for host .* no encryption",
        ),
        (TRUSTED, "group_role@{ip}/postgres", "is not permitted to log in"),
        (TRUSTED, "absent@{ip}/postgres", 'role "absent" does not exist'),
        (TRUSTED, "refused@{ip}/absent", 'database "absent" does not exist'),
        (TRUSTED, "refused@{ip}/private", 'permission denied for database "private"'),
        (TRUSTED, "refused@{ip}:99999/postgres", "invalid port number"),
        (TRUSTED, "refused@{ip}/postgres?sslmode=require", "server does not support SSL, but SSL was required"),
    ],
)
def test_a_mistake_is_named_and_not_tried_again(server, rule, url, message):
    use_rules(server, rule)
    with pytest.raises(StoreBroken, match=message):
        PostgresStore("postgresql://" + url.format(ip=loopback()), create=True)


def test_a_database_that_is_closed_for_a_while_is_waited_for(server):
    use_rules(server, TRUSTED)
    with pytest.raises(StoreUnavailable, match="is not currently accepting connections") as raised:
        PostgresStore(f"postgresql://refused@{loopback()}/closed")
    assert not isinstance(raised.value, StoreBroken)


def test_of_several_hosts_the_failure_of_each_is_named():
    with pytest.raises(
        StoreUnavailable, match=r"host: '127.0.0.1', port: '1', .*refused; host: '127.0.0.1', port: '2', .*refused"
    ):
        PostgresStore("postgresql://postgres@127.0.0.1:1,127.0.0.1:2/postgres")


def test_a_host_that_is_not_known_is_named():
    with pytest.raises(StoreUnavailable, match=r"failed to resolve host 'nowhere\.invalid'"):
        PostgresStore("postgresql://postgres@nowhere.invalid/postgres")


def test_a_socket_that_is_missing_is_named():
    with pytest.raises(StoreUnavailable, match=r"/nowhere/\.s\.PGSQL\.5432"):
        PostgresStore("postgresql://postgres@/postgres?host=/nowhere")
