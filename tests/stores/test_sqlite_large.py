"""Payloads so heavy that a claim of many of them at once would be more than a supervisor can hold."""

from __future__ import annotations

import pytest

from supervisor.stores.records import EnqueueRow, Waiting
from supervisor.stores.sqlite import claim as sqlite_claims
from tests.stores.factories import SqliteFactory, dead, dead_letters, take


@pytest.fixture
def store(tmp_path):
    factory = SqliteFactory(tmp_path)
    yield factory.joined("one")
    factory.close()


def enqueue_sized(store, *sizes, headers=None):
    return store.enqueue([EnqueueRow("mail", f'"{"x" * (size - 2)}"', headers=headers) for size in sizes])


def test_a_claim_ends_where_its_payloads_grow_too_heavy(store, monkeypatch):
    monkeypatch.setattr(sqlite_claims, "CLAIM_LENGTH", 100_000)
    ids = enqueue_sized(store, *[10] * 100, *[10_000] * 100)
    assert [lease.id for lease in take(store, 1000)] == ids[:110]
    assert store.waiting(None) == {"default": Waiting(90, 0)}
    assert [lease.id for lease in take(store, 1000)] == ids[110:120]


def test_a_job_heavier_than_a_whole_claim_is_claimed_with_light_ones_alone(store, monkeypatch):
    monkeypatch.setattr(sqlite_claims, "CLAIM_LENGTH", 100_000)
    ids = enqueue_sized(store, 200_000, 200_000, 10)
    assert [[lease.id for lease in take(store)] for _ in range(2)] == [[ids[0]], [ids[1], ids[2]]]


def test_headers_weigh_too(store, monkeypatch):
    monkeypatch.setattr(sqlite_claims, "CLAIM_LENGTH", 100_000)
    enqueue_sized(store, *[10] * 10, headers='{"a": "' + "x" * 40_000 + '"}')
    assert [len(take(store)) for _ in range(5)] == [2] * 5


def test_dead_letters_come_as_many_at_once_as_can_be_held(store, monkeypatch):
    monkeypatch.setattr(sqlite_claims, "CLAIM_LENGTH", 100_000)
    ids = enqueue_sized(store, *[30_000] * 5)
    while leases := take(store):
        assert store.settle([dead(lease) for lease in leases]) == []
    assert [[dead_letter.id for dead_letter in dead_letters(store)] for _ in range(3)] == [ids[:3], ids[3:], []]


def test_the_attempts_of_dead_letters_weigh_too(store, monkeypatch):
    monkeypatch.setattr(sqlite_claims, "CLAIM_LENGTH", 15_000)
    ids = enqueue_sized(store, *[10] * 6)
    records = [*["x" * 4_000] * 5, "x" * 16_000]
    outcomes = [dead(lease, stderr=record) for lease, record in zip(take(store), records, strict=True)]
    assert store.settle(outcomes) == []
    assert [[dead_letter.id for dead_letter in dead_letters(store)] for _ in range(4)] == [
        ids[:3],
        ids[3:5],
        ids[5:],
        [],
    ]
