"""A pooler stands between a store and its server, and answers for a server that it has lost."""

from __future__ import annotations

import time

import pytest

from supervisor.client.client import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import StoreBroken, StoreUnavailable, StoreUnsure
from supervisor.stores.postgres.driver import is_undone
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL
from tests.stores.pooler import Pooler, fatal, refusal

pytestmark = ON_POSTGRESQL


@pytest.fixture
def pooler(factory):
    factory.open()
    pooler = Pooler(factory.server)
    yield pooler
    pooler.close()


def store_behind(pooler, factory, **how):
    store = PostgresStore(pooler.url, schema=factory.schema, **{"listen": False, **how})
    factory._opened.append(store)
    return store


def jobs_of(factory):
    return factory.sql("select count(*) from {s}.jobs").fetchone()[0]


STATES = ("08P01", "08006", "58000", "57P01", "XX000", "40003")
LOST = [(state, near, n) for state in STATES for near in (True, False) for n in (1, 2, 300)]


@pytest.mark.parametrize(("state", "near", "n"), LOST)
def test_jobs_whose_commit_a_pooler_has_answered_are_not_enqueued_again(factory, pooler, state, near, n):
    store = store_behind(pooler, factory, limits=PostgresLimits(near=near))
    pooler.lose_answer_to_commit(fatal(state, "server conn crashed?"))
    with pytest.raises(StoreUnsure, match="may or may not have been enqueued"):
        store.enqueue([EnqueueRow("mail", "{}")] * n)
    assert jobs_of(factory) == n


def test_a_client_behind_a_pooler_enqueues_a_job_once(factory, pooler):
    settings = Settings(store=StoreSettings(url=pooler.url, options={"schema": factory.schema, "listen": False}))
    with Client(settings) as client:
        pooler.lose_answer_to_commit(fatal("08P01", "server conn crashed?"))
        with pytest.raises(StoreUnsure):
            client.enqueue("mail")
    assert jobs_of(factory) == 1


@pytest.mark.usefixtures("factory")
@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57014", "53100", "25006", "42501", "23514", "54000"])
def test_states_by_which_the_server_says_that_it_rolled_back(state):
    assert is_undone(state, direct=False)


def test_an_enqueue_that_a_trigger_refuses_at_its_commit_is_known_not_to_be_done(factory, pooler):
    """The server itself answers, so the call is not unsure."""
    factory.sql(
        """create function {s}.refuse() returns trigger language plpgsql as
        $$ begin raise exception using errcode = '57014', message = 'at the commit'; end $$"""
    )
    factory.sql(
        "create constraint trigger late after insert on {s}.jobs deferrable initially deferred for each row execute function {s}.refuse()"
    )
    store = store_behind(pooler, factory)
    with pytest.raises(StoreUnavailable, match="at the commit") as raised:
        store.enqueue([EnqueueRow("mail", "{}")])
    assert not isinstance(raised.value, StoreBroken)
    assert jobs_of(factory) == 0


def test_of_a_pooler_that_refuses_options_it_is_said_what_to_set(factory, pooler):
    pooler.first = lambda sent, server: (
        fatal("08P01", "unsupported startup parameter: options") if b"options" in sent else None
    )
    with pytest.raises(StoreBroken, match=r"a pooler is in between; set store\.listen: false in the config"):
        store_behind(pooler, factory, listen=True)
    assert store_behind(pooler, factory).enqueue([EnqueueRow("mail", "{}")]) == [1]


def test_of_a_pooler_that_refuses_options_of_the_environment_it_is_said_what_to_remove(factory, pooler, monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=8MB")
    pooler.first = lambda sent, server: (
        fatal("08P01", "unsupported startup parameter: options") if b"options" in sent else None
    )
    with pytest.raises(StoreBroken, match="remove PGOPTIONS from the environment"):
        store_behind(pooler, factory)


def test_a_pooler_that_drops_the_settings_of_a_session_is_not_used_for_a_session(factory, pooler):
    pooler.passes_options = False
    with pytest.raises(
        StoreBroken, match=r"statement_timeout is '0', not '9000': a pooler is in between; set store\.listen"
    ):
        store_behind(pooler, factory, listen=True)
    assert store_behind(pooler, factory).enqueue([EnqueueRow("mail", "{}")]) == [1]


def test_of_a_pooler_in_statement_mode_it_is_said_that_a_store_is_impossible(factory, pooler):
    """The store is near, since psycopg may lose an error that ends the session in a pipeline."""
    message = "transaction blocks not allowed in statement pooling mode"
    store = store_behind(pooler, factory, limits=PostgresLimits(near=True))
    pooler.script = lambda sent, server: fatal("08P01", message) if b"begin" in sent else None
    with pytest.raises(
        StoreBroken, match=r"in statement mode, in which a store is impossible; set pool_mode = transaction"
    ):
        store.enqueue([EnqueueRow("mail", "{}")])


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("state", ["26000", "42P05"])
def test_prepared_statements_of_other_sessions_show_a_pooler(factory, pooler, state, near):
    store = store_behind(pooler, factory, listen=True, limits=PostgresLimits(near=near))
    pooler.script = lambda sent, server: refusal(state, 'prepared statement "_pg3_0"')
    with pytest.raises(StoreBroken, match=r"a pooler is in between; set store\.listen: false"):
        store.clock()


def test_a_pooler_on_this_machine_whose_server_is_far_away_is_far(factory, pooler):
    pooler.script = lambda sent, server: time.sleep(0.03)
    with store_behind(pooler, factory).connection.session.connected(may_reconnect=True) as driver:
        assert not driver.near


@pytest.mark.parametrize(
    ("seconds", "near", "n"),
    [([0.0005], True, 1), ([0.005, 0.004, 0.0008], True, 3), ([0.002] * 9, False, 5), ([0.3] * 9, False, 1)],
)
def test_a_server_is_near_if_one_of_some_round_trips_is_short(factory, seconds, near, n):
    times = iter([time for took in seconds for time in (0.0, took)])
    calls = []

    def clock():
        calls.append(1)
        return next(times)

    with factory.open().connection.session.connected(may_reconnect=True) as driver:
        driver.measure(clock)
        assert (driver.near, len(calls)) == (near, 2 * n)


@pytest.mark.parametrize("listen", [True, False])
def test_timeouts_of_the_role_that_end_sessions_are_switched_off(factory, pooler, listen):
    factory.sql("create role hasty superuser login")
    factory.sql("alter role hasty set transaction_timeout = '5s'")
    factory.sql("alter role hasty set idle_session_timeout = '5s'")
    try:
        url = pooler.url.replace("postgres@", "hasty@")
        store = PostgresStore(url, schema=factory.schema, listen=listen)
        with store.transaction():
            assert store.connection.value("select current_setting('transaction_timeout')") == "0"
        if listen:
            assert store.connection.value("select current_setting('idle_session_timeout')") == "0"
        store.close()
    finally:
        factory.sql("drop role hasty")


@pytest.mark.parametrize("listen", [True, False])
def test_a_role_for_which_triggers_are_off_is_refused(factory, pooler, listen):
    factory.sql("create role copier superuser login")
    factory.sql("alter role copier set session_replication_role = replica")
    try:
        with pytest.raises(
            StoreBroken, match="session_replication_role is 'replica', not 'origin': alter role copier reset"
        ):
            PostgresStore(pooler.url.replace("postgres@", "copier@"), schema=factory.schema, listen=listen)
    finally:
        factory.sql("drop role copier")
