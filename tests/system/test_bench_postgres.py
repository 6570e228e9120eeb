"""`supervisor bench` on PostgreSQL: in a schema of its own, which is removed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.stores.postgres_server import Server
from tests.system.command import TIMEOUT, Command, wait_for
from tests.system.test_bench import MANY_JOBS, start


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def postgres(command: Command, server: Server) -> Command:
    """A command whose store has not been created."""
    store = json.dumps({"url": server.url, "schema": "users_own"})
    command.write(config=f"store: {store}\nworkers: {{count: 1}}\n")
    return command


def schemas(server: Server) -> set[str]:
    with server.connect() as connection:
        rows = connection.execute(
            "select nspname from pg_namespace where nspname !~ '^pg_|^information_schema$|^public$'"
        )
        return {name for (name,) in rows}


def wait_for_schema(server: Server) -> str:
    """Return the schema of the benchmark that runs, once it has its table of jobs."""
    (schema,) = wait_for(lambda: schemas(server) or False, TIMEOUT)
    with server.connect() as connection:
        wait_for(lambda: connection.execute(f"select to_regclass('{schema}.jobs')").fetchone() != (None,), TIMEOUT)
    return schema


def test_bench_prints_the_rates_and_leaves_nothing(postgres: Command, server: Server) -> None:
    ended = postgres.call("bench", "--jobs", "40", "--json")
    assert (ended.code, ended.err) == (0, "")
    figures = json.loads(ended.out)
    assert (figures["jobs"], figures["synchronous"]) == (40, "on"), "whatever the server sets"
    assert all(figures[rate] > 0 for rate in ("enqueue_per_second", "enqueue_many_per_second", "drain_per_second"))
    assert 0 < figures["idle_latency_ms"]["p50"] <= figures["idle_latency_ms"]["p99"]
    assert schemas(server) == set()


def test_bench_names_the_database(postgres: Command) -> None:
    heading, *rows = postgres.call("bench", "--jobs", "1").out.splitlines()
    assert "a schema of its own in postgresql://" in heading
    assert len(rows) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(postgres: Command, server: Server, number: signal.Signals) -> None:
    bench = start(postgres, "--jobs", MANY_JOBS)
    wait_for_schema(server)
    bench.send_signal(number)
    _out, err = bench.communicate(timeout=TIMEOUT)
    assert (bench.returncode, err) == (128 + number, "")
    assert schemas(server) == set()


def test_a_bench_removes_the_schema_of_a_killed_one_but_not_of_one_that_runs(postgres: Command, server: Server) -> None:
    bench = start(postgres, "--jobs", MANY_JOBS)
    left = wait_for_schema(server)
    assert postgres.call("bench", "--jobs", "1").code == 0
    assert schemas(server) == {left}
    bench.kill()
    bench.communicate(timeout=TIMEOUT)
    with server.connect() as connection:
        held = "select 1 from pg_stat_activity where application_name = 'supervisor'"
        wait_for(lambda: connection.execute(held).fetchone() is None, TIMEOUT)
        connection.execute("create schema supervisor_bench_of_mine")
    assert postgres.call("bench", "--jobs", "1").code == 0
    assert schemas(server) == {"supervisor_bench_of_mine"}


def test_a_role_that_may_not_create_a_schema_gets_an_error(postgres: Command, server: Server) -> None:
    with server.connect() as connection:
        connection.execute("create role poor login")
    postgres.write(config=f"store: {server.url.replace('postgres@', 'poor@')}\n")
    ended = postgres.call("bench", "--jobs", "1")
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "role poor may not create a schema" in line
