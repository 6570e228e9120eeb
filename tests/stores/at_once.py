"""Calls that other threads make meanwhile: they raise in the test what they raise there, and it is known when one waits for a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from supervisor.errors import RowsLocked, StoreContended
from tests.stores.factories import StoreFactory
from tests.system.command import wait_for

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"


class Meanwhile(threading.Thread):
    """A call in a thread, which has started. A thread that never ends does not keep the tests from ending."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        super().__init__(target=call, args=arguments, daemon=True)
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the call, and raise what it has raised. Fail if it has not ended within the timeout."""
        super().join(timeout)
        if self.is_alive():
            pytest.fail(f"the call has not ended within {timeout}s")
        if self._error is not None:
            raise self._error


def all_at_once(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, and raise what they have raised once all have ended."""
    errors: list[BaseException] = []
    for thread in [Meanwhile(call) for call in calls]:
        try:
            thread.join()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup("several calls failed", errors)


def beside(factory: StoreFactory, call: Callable[..., object], *arguments: object) -> Meanwhile:
    """Make the call in a thread, and return the thread once a statement for this store waits for a lock."""
    thread = Meanwhile(call, *arguments)

    def waits() -> bool:
        if not thread.is_alive():
            thread.join()
            pytest.fail("the call has ended and has not waited for a lock")
        return waits_for_a_lock(factory)

    wait_for(waits)
    return thread


def waits_for_a_lock(factory: StoreFactory) -> bool:
    return bool(factory.sql(WAITING, f"%{factory.schema}%").fetchone()[0])


def insisting(call, *arguments, **named):
    """Call again after a deadlock or a lock timeout, as a supervisor does."""
    while True:
        try:
            return call(*arguments, **named)
        except (StoreContended, RowsLocked):
            continue
