"""A pooler stands between a store and its server, and answers for a server that it has lost."""

from __future__ import annotations

import pytest

from supervisor.client.client import Client
from supervisor.config.settings import Settings, StoreSettings
from supervisor.errors import StoreBroken, StoreUnavailable, StoreUnsure
from supervisor.stores.postgres.driver import is_undone
from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL
from tests.stores.pooler import Pooler, error

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


@pytest.mark.parametrize("n", [1, 2, 300])
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("state", ["08P01", "08006", "58000", "57P01", "XX000", "40003"])
def test_jobs_whose_commit_a_pooler_has_answered_are_not_enqueued_again(factory, pooler, state, near, n):
    store = store_behind(pooler, factory, limits=PostgresLimits(near=near))
    pooler.lose_answer_to_commit(error(state, "server conn crashed?"))
    with pytest.raises(StoreUnsure, match="may or may not have been enqueued"):
        store.enqueue([EnqueueRow("mail", "{}")] * n)
    assert jobs_of(factory) == n


def test_a_client_behind_a_pooler_enqueues_a_job_once(factory, pooler):
    settings = Settings(store=StoreSettings(url=pooler.url, options={"schema": factory.schema, "listen": False}))
    with Client(settings) as client:
        pooler.lose_answer_to_commit(error("08P01", "server conn crashed?"))
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
