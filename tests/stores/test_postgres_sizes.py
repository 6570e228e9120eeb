"""Large jobs: however large they are together, a slow line takes each exchange with the server within its limit."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from supervisor.stores.postgres.limits import PostgresLimits
from supervisor.stores.postgres.store import PostgresStore
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import ON_POSTGRESQL, dead, dead_letters, put, take

pytestmark = ON_POSTGRESQL

LIMIT = 1.0
SENT = 50_000
PER_SECOND = 500_000
TOTAL = 750_000


def pump(source, target, per_second=None):
    try:
        while data := source.recv(16_384):
            if per_second:
                time.sleep(len(data) / per_second)
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()


def serve(door, path):
    try:
        while True:
            near, _ = door.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(path)
            threading.Thread(target=pump, args=(near, far, PER_SECOND), daemon=True).start()
            threading.Thread(target=pump, args=(far, near), daemon=True).start()
    except OSError:
        return


@pytest.fixture
def slow_url(factory):
    """A line to the server that takes so many bytes a second."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, args=(door, f"{factory.server.folder}/.s.PGSQL.5432"), daemon=True).start()
        yield f"postgresql://postgres@127.0.0.1:{door.getsockname()[1]}/postgres?sslmode=disable&gssencmode=disable"


@pytest.mark.parametrize("n", [300, 50], ids=["many", "large"])
def test_more_than_a_slow_line_takes_within_one_call_is_enqueued(factory, slow_url, n):
    factory.open()
    limits = PostgresLimits(call_seconds=LIMIT, statement_milliseconds=int(1000 * LIMIT), sent_characters=SENT)
    far = PostgresStore(slow_url, schema=factory.schema, limits=limits)
    ids = far.enqueue([EnqueueRow("mail", '"' + "x" * (TOTAL // n) + '"')] * n)
    assert factory.sql("select array_agg(id order by id) from {s}.jobs").fetchone() == (ids,)
    factory.check()
    far.close()


def test_dead_letters_come_as_many_at_once_as_can_be_held_with_their_attempts(factory):
    factory.limits = PostgresLimits(claim_bytes=15_000)
    store = factory.joined("one")
    ids = put(store, *["mail"] * 6)
    records = [*["x" * 4_000] * 5, "x" * 16_000]
    outcomes = [dead(lease, stderr=record) for lease, record in zip(take(store), records, strict=True)]
    assert store.settle(outcomes) == []
    assert [[dead_letter.id for dead_letter in dead_letters(store)] for _ in range(4)] == [
        ids[:3],
        ids[3:5],
        ids[5:],
        [],
    ]
