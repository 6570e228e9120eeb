"""A machine in a time zone that changes its clocks: an hour stays an hour, on either side of the change."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from supervisor.config.settings import RetentionSettings
from tests.stores.factories import again, promote, put, success, take

HOUR = 3600.0
CHANGES = {"to summer time": "2026-03-08T07:00:00+00:00", "from summer time": "2026-11-01T06:00:00+00:00"}


@pytest.fixture(params=CHANGES.values(), ids=CHANGES)
def half_an_hour_before(request, factory, monkeypatch):
    """The moment, half an hour before New York changes its clocks; it is now by the factory's clock."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
        time.tzset()
        moment = datetime.fromisoformat(request.param) - timedelta(minutes=30)
        factory.clock.now = moment.timestamp()
        assert time.localtime(factory.clock.now).tm_isdst != time.localtime(factory.clock.now + HOUR).tm_isdst
        yield moment
    time.tzset()


def test_delays_and_backoff_are_exact_across_the_change(half_an_hour_before, factory, store):
    (flaky,) = put(store)
    store.settle([again(lease, delay=HOUR) for lease in take(store)])
    at = round((half_an_hour_before + timedelta(hours=1)).timestamp() * 1e6)
    ids = [flaky, *put(store, delay=HOUR), *put(store, at=at)]
    for id in ids:
        assert datetime.fromisoformat(store.get(id)["due_at"]) == half_an_hour_before + timedelta(hours=1)
    factory.clock.step(HOUR - 0.001)
    assert promote(store, 10) == 0
    factory.clock.step(0.001)
    assert promote(store, 10) == len(ids)


def test_retention_is_exact_across_the_change(half_an_hour_before, factory, store):
    (id,) = put(store)
    store.settle([success(lease) for lease in take(store)])
    factory.clock.step(HOUR - 0.001)
    assert store.prune(RetentionSettings(succeeded=HOUR), 10) == 0
    factory.clock.step(0.001)
    assert store.prune(RetentionSettings(succeeded=HOUR), 10) == 1
    assert store.get(id) is None
