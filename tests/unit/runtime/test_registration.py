"""The registration of a supervisor in its store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import ANY

import pytest

from supervisor.config.settings import Settings
from supervisor.errors import StoreUnavailable
from supervisor.events import Bus, StoreAvailableAgain, StoreBecameUnavailable
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.registration import Registration
from tests.unit.wrapped_store import WrappedStore


class UnavailableAtFirst(WrappedStore):
    tries = 0

    def join(self, owner: str, host: str, pid: int, sinks: frozenset[str]) -> None:
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailable
        self.inner.join(owner, host, pid, sinks)


def make_registration(store: Any = None, horizon: float | None = None) -> Registration:
    registration = Registration(Settings(), "us", Bus(), PluginManager(), lambda event: None, horizon)
    registration.store = store
    return registration


def test_the_horizon_counts_by_the_stores_clock_from_the_first_attempt_to_join() -> None:
    store = UnavailableAtFirst(clock=lambda: 1000.0 + 500.0 * store.tries)
    registration = make_registration(store, horizon=10.0)
    with pytest.raises(StoreUnavailable):
        registration.join_now()
    registration.join_now()
    assert registration.latest == 1010.0


def test_a_join_that_fails_after_the_end_was_requested_is_no_fault() -> None:
    """Python 3.14 reports an error behind a cancelled shield to the loop's exception handler."""
    begun, cancelled = threading.Event(), threading.Event()

    def join_now() -> Any:
        begun.set()
        cancelled.wait(30)
        raise StoreUnavailable("no connection")

    async def act() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        registration = make_registration()
        registration.join_now = join_now  # type: ignore[method-assign]
        joining = asyncio.ensure_future(registration.join())
        while not begun.is_set():
            await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait([joining])
        cancelled.set()
        await registration.joined()
        await asyncio.sleep(0)
        assert joining.cancelled() and registration._joining is not None and not registration._joining.cancelled()
        assert faults == []

    asyncio.run(asyncio.wait_for(act(), 30))


def test_an_outage_at_the_start_is_reported_with_each_new_reason_and_once_when_it_ends() -> None:
    errors = iter([StoreUnavailable(reason) for reason in ("no connection", "no connection", "starting up")])

    def join_now() -> Any:
        if (error := next(errors, None)) is not None:
            raise error

    async def act() -> None:
        registration, reported = make_registration(), []
        registration.bus.subscribe(reported.append, StoreBecameUnavailable, StoreAvailableAgain)
        registration.join_now = join_now  # type: ignore[method-assign]
        await registration.join()
        reasons = [StoreBecameUnavailable("no connection"), StoreBecameUnavailable("starting up")]
        assert reported == [*reasons, StoreAvailableAgain(ANY)]

    asyncio.run(asyncio.wait_for(act(), 30))
