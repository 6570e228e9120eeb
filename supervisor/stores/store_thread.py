"""Use a store on a thread of its own: one that hangs holds up neither its users nor the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from supervisor.errors import StoreError
from supervisor.stores.protocol import Store
from supervisor.threads import start_thread

Result = TypeVar("Result")


class _Work(NamedTuple):
    call: Callable[[Store], Any]
    future: Future[Any]


class StoreThread:
    """Opens the store when it is first used, and again after an error. Nothing waits for its end. A `shared` store is not closed."""

    def __init__(self, opener: Callable[[], Store], name: str = "store", *, shared: bool = False) -> None:
        self._opener, self._shared = opener, shared
        self._opened: Store | None = None
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        start_thread(self._run, name)

    def submit(self, call: Callable[[Store], Result]) -> Future[Result]:
        """Call `call` with the store, after the calls submitted before. The result may be StoreError."""
        future: Future[Result] = Future()
        self._queue.put(_Work(call, future))
        return future

    def close(self) -> None:
        self._queue.put(None)

    # on the thread

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            if not work.future.set_running_or_notify_cancel():
                continue
            try:
                result = work.call(self._store())
            except Exception as error:
                if isinstance(error, StoreError):
                    self._disconnect()
                work.future.set_exception(error)
            else:
                work.future.set_result(result)
        self._disconnect()

    def _store(self) -> Store:
        if self._opened is None:
            self._opened = self._opener()
        return self._opened

    def _disconnect(self) -> None:
        store, self._opened = self._opened, None
        if store is not None and not self._shared:
            with suppress(StoreError):
                store.close()
