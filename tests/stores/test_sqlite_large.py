"""Payloads so large that a supervisor could not hold a claim of many of them at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from supervisor.stores.records import EnqueueRow, Waiting
from supervisor.stores.sqlite.connection import SqliteLimits
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.stores.transfer import transfer_jobs
from tests.stores.factories import again, dead, dead_letters, promote, success, take, waiting

LONG = "x" * 5000


@pytest.fixture
def most():
    return 100_000


@pytest.fixture
def store(tmp_path, most):
    limits = SqliteLimits(claim_characters=most)
    store = SqliteStore(tmp_path / "jobs.db", create=True, synchronous="normal", limits=limits)
    store.join("one", "host", 4711, frozenset({"file"}))
    yield store
    store.leave()
    store.close()


def enqueue_sized(store, *sizes, headers=None):
    return store.enqueue([EnqueueRow("mail", f'"{"x" * (size - 2)}"', headers=headers) for size in sizes])


def test_a_claim_ends_where_its_payloads_grow_too_large(store):
    ids = enqueue_sized(store, *[10] * 100, *[10_000] * 100)
    assert [lease.id for lease in take(store, 1000)] == ids[:110]
    assert waiting(store) == {"default": Waiting(90, 0)}
    assert [lease.id for lease in take(store, 1000)] == ids[110:120]


def test_a_job_larger_than_a_whole_claim_is_claimed_with_small_ones_alone(store):
    ids = enqueue_sized(store, 200_000, 200_000, 10)
    assert [[lease.id for lease in take(store)] for _ in range(2)] == [[ids[0]], [ids[1], ids[2]]]


def test_headers_are_measured_too(store):
    enqueue_sized(store, *[10] * 10, headers='{"a": "' + "x" * 40_000 + '"}')
    assert [len(take(store)) for _ in range(5)] == [2] * 5


def test_dead_letters_come_as_many_at_once_as_can_be_held(store):
    ids = enqueue_sized(store, *[30_000] * 5)
    while leases := take(store):
        assert store.settle([dead(lease) for lease in leases]) == []
    assert [[dead_letter.id for dead_letter in dead_letters(store)] for _ in range(3)] == [ids[:3], ids[3:], []]


@pytest.mark.parametrize("most", [15_000])
def test_the_attempts_of_dead_letters_are_measured_too(store, most):
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


def test_a_long_payload_is_written_once_whatever_its_job_goes_through(store, tmp_path):
    """The write-ahead log has all that was written, as long as it is not so long that SQLite uses it again."""
    log = tmp_path / "jobs.db-wal"
    before = log.stat().st_size
    enqueue_sized(store, *[90_000] * 5)
    enqueued = log.stat().st_size - before
    assert store.settle([again(lease) for lease in take(store, 5)]) == []
    promote(store, 10)
    leases = take(store, 5)
    assert store.extend(leases, 60.0, leases) == []
    assert store.settle([success(lease) for lease in leases]) == []
    assert enqueued < 5 * 100_000
    assert log.stat().st_size - before - enqueued < 5 * 90_000 / 2


@pytest.mark.parametrize(
    ("payload", "headers"),
    [(LONG, None), (LONG, "x"), (LONG, LONG), ("x", LONG), ("x", "x")],
    ids=lambda it: len(it or ""),
)
@pytest.mark.parametrize("rows", [1, 3])
def test_texts_of_any_length_are_read_as_they_were_given(store, tmp_path, payload, headers, rows):
    row = EnqueueRow("mail", f'"{payload}"', headers=headers and f'{{"a": "{headers}"}}')
    ids = store.enqueue([row, *[EnqueueRow("mail", '"short"', headers=row.headers)] * (rows - 1)])
    other = SqliteStore(tmp_path / "other.db", create=True)
    texts = [(row.payload, row.headers), *[('"short"', row.headers)] * (rows - 1)]
    shown = (payload, {"a": headers} if headers else {})
    leases = take(store, 10)
    assert [(lease.payload, lease.headers) for lease in leases] == texts
    assert [(lease.payload, lease.headers) for lease in store.leases(ids)] == texts
    assert store.settle([dead(lease) for lease in leases]) == []
    job = dead_letters(store)[0].job
    assert (job["payload"], job["headers"]) == shown
    store.leave()
    transfer_jobs(store, other)
    assert (other.get(ids[0])["payload"], other.get(ids[0])["headers"]) == shown
    other.purge(force=True)
    with other.transaction():
        assert other.get(ids[0]) is None
    other.close()
    with closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        assert raw.execute("select count(*) from payloads").fetchone() == (0,), "they go with their jobs"
