"""A claim is one statement, which commits by itself if it is the only one that writes."""

from __future__ import annotations

import pytest

from supervisor.stores.records import EnqueueRow, Waiting
from tests.stores.factories import ON_POSTGRESQL, put, success, take, take_one, waiting

pytestmark = ON_POSTGRESQL

FRESH = {"retries_first": 0, "max_retries_claimed": 0}


@pytest.fixture
def store(factory):
    """It knows the policy of "mail"."""
    store = factory.joined("one")
    put(store)
    store.settle([success(take_one(store))])
    return store


@pytest.fixture
def sent(store, monkeypatch):
    """The statements sent from now on."""
    sent, send = [], store.connection._send

    def and_note(driver, statement):
        sent.append(statement[0])
        return send(driver, statement)

    monkeypatch.setattr(store.connection, "_send", and_note)
    return sent


def test_a_lone_claim_is_two_statements_and_durable(factory, store, sent):
    (id,) = put(store)
    del sent[:]
    with store.transaction(single=True):
        store.look(None, 10)
        (lease,) = take(store, 1, **FRESH)
    assert lease.id == id and len(sent) == 2
    ((state, token, policy),) = factory.sql("select state, token, policy is not null from {s}.jobs where id = %s", id)
    assert (state, token, policy) == (2, lease.token, True)


def test_a_claim_together_with_other_work_is_undone_with_it(store):
    put(store)
    with pytest.raises(ZeroDivisionError), store.transaction():
        assert len(take(store, 1, **FRESH)) == 1
        raise ZeroDivisionError
    assert waiting(store, None) == {"default": Waiting(1, 0)}
    with pytest.raises(ZeroDivisionError), store.transaction(single=True):
        (id,) = put(store)
        assert len(take(store, 2, **FRESH)) == 2
        raise ZeroDivisionError
    assert store.get(id) is None and waiting(store, None) == {"default": Waiting(1, 0)}


def test_jobs_are_claimed_by_priority_and_age_and_no_more_than_asked_for(store):
    low, first, second = put(store, priority=-1)[0], *put(store, "mail", "mail")
    high, urgent = put(store, priority=5)[0], put(store, priority=200)[0]
    assert [lease.id for lease in take(store, 4, **FRESH)] == [urgent, high, first, second]
    assert [lease.id for lease in take(store, 4, **FRESH)] == [low]
    assert waiting(store, None) == {}
    assert store.stats()["queues"][0]["in_flight"] == 5


def test_a_large_job_and_one_of_an_unknown_policy_are_claimed_in_their_place(store, sent):
    for unusual in ({"payload": f'"{"x" * 1_000_000}"'}, {"handler": "strange"}):
        row = {"handler": "mail", "payload": "{}"} | unusual
        ids = [*put(store), *store.enqueue([EnqueueRow(**row)]), *put(store)]
        leases = take(store, 16, **FRESH)
        assert [lease.id for lease in leases] == ids
        assert [lease.payload for lease in leases] == ["{}", row["payload"], "{}"]
    put(store, "strange")
    del sent[:]
    assert len(take(store, 1, **FRESH)) == 1 and len(sent) == 1, "its policy is known now"


def test_no_job_of_a_paused_queue_is_claimed(store):
    put(store)
    store.pause("default", True)
    assert take(store, 1, **FRESH) == []
