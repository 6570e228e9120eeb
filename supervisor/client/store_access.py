"""Access to a store from any thread of a program that may fork.

SQLite's locks belong to the process, but a forked child has a copy of the memory in which its parent noted them. It would write
to a log that others, who see no lock, have removed, and its jobs would be lost. So no SQLite file is open during a fork. A client
of Kafka has threads, which the child would lack: it is closed too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from supervisor.client import replacement
from supervisor.config.settings import Settings
from supervisor.errors import StoreError, StoreMissing, StoreReplaced, StoreUnavailable
from supervisor.stores.opening import BUILT_IN, open_store

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

WHO_CREATES = "supervisor run creates it, and so does a Client with create=True"

NOT_FORKED = frozenset({"sqlite", "kafka"})
"""The stores that are closed before a fork."""

_inherited: list[Store] = []
"""Stores that were open at a fork. They are never closed, not even by garbage collection: that would disturb the parent's."""

_all: WeakSet[StoreAccess] = WeakSet()
_registry = threading.RLock()


class Use(Enum):
    NONE = 0
    UNDER_WAY = 1
    IMPOSSIBLE = 2
    """The process was forked while the forking thread used such a store: by a signal handler, for example."""


class StoreAccess:
    """The store of `settings`: opened when a process first uses it, and used by one thread at a time.

    `min_wait` is the least number of seconds for which a call waits for other threads, even if `timeout` is shorter.
    """

    def __init__(self, settings: Settings, *, create: bool, timeout: float, min_wait: float = 1.0) -> None:
        self._settings, self._create = settings, create
        self.timeout, self._min_wait = timeout, min_wait
        self._opened: Store | None = None
        self._replacement: replacement.Replacement | None = None  # that the store was opened for
        self._held_for_fork = False
        self._lock = threading.RLock()  # held during one use only, so that forks and other threads wait for one at most
        self._use = Use.NONE
        self._last_problem = ""
        self._closes_for_forks = settings.store.scheme in NOT_FORKED
        with _registry:
            _all.add(self)

    def deadline(self, timeout: float = inf) -> float:
        """Return the time (monotonic) until which a call that begins now waits for other threads; at most `timeout` seconds if that
        is more than `min_wait`."""
        return time.monotonic() + max(min(self.timeout, timeout), self._min_wait)

    @contextmanager
    def use(self, deadline: float) -> Iterator[Store]:
        """Yield the store for the use of this thread alone.

        Raises StoreUnavailable if other threads use it until `deadline`, and StoreError if this process can't use it.
        """
        lock = self._lock  # kept, since a child that is forked meanwhile replaces the attribute
        if not lock.acquire(timeout=min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
            raise self._error("other threads kept the client busy for too long" + self._last_problem, StoreUnavailable)
        try:
            self._refuse_interrupting()
            if self._use is Use.IMPOSSIBLE:
                raise self._error(
                    "this process was forked while the thread that forked it was using the client: "
                    "its store can't be used in it any more"
                )
            self._use = Use.UNDER_WAY
            try:
                yield self._store()
                self._last_problem = ""
            except StoreUnavailable as error:
                self._last_problem = f"; their last error: {error}"
                if isinstance(error, StoreReplaced):
                    self._disconnect()
                raise
            finally:
                if self._use is Use.UNDER_WAY:
                    self._use = Use.NONE
        finally:
            lock.release()

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        with self._lock:
            self._refuse_interrupting()
            self._disconnect()

    def _refuse_interrupting(self) -> None:
        """Raise StoreError if this call interrupts another: the lock admits its own thread again, even during a use."""
        if self._use is Use.UNDER_WAY:
            raise self._error(
                "this call interrupted another of the same client on the same thread, as a signal handler, a logging handler "
                "or __del__ may: nothing was done; call again once that one has returned"
            )

    def _error(self, message: str, kind: type[StoreError] = StoreError) -> StoreError:
        return kind(f"{self._settings.store.shown}: {message}")

    def _store(self) -> Store:
        settings, replaced = self._settings, replacement.current()
        if self._replacement is not replaced:
            self._disconnect()
            self._replacement = replaced
        if self._opened is None and replaced is not None:
            self._opened = replaced.open()
        elif self._opened is None:
            if settings.store.scheme == "memory":
                raise StoreError(
                    "store: memory:// exists in one process only, so no supervisor would see the jobs of a Client"
                )
            openers = {} if settings.store.scheme in BUILT_IN else _openers_of_plugins(settings)
            try:
                self._opened = open_store(settings.store, create=self._create, base=settings.base, openers=openers)
            except StoreMissing as missing:
                raise StoreMissing(f"{missing}; {WHO_CREATES}", missing.obstacle) from None
        return self._opened

    def _disconnect(self) -> None:
        store, self._opened = self._opened, None
        if store is not None:
            store.close()

    def before_fork(self) -> None:
        self._held_for_fork = self._closes_for_forks or replacement.current() is not None
        if self._held_for_fork:
            self._lock.acquire()
            if self._use is not Use.UNDER_WAY:
                with suppress(StoreError):
                    self._disconnect()

    def after_fork_in_parent(self) -> None:
        if self._held_for_fork:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Leave the connection to the parent. Replace the lock, since a thread that the child doesn't have may hold it."""
        self._lock, self._use = threading.RLock(), Use.NONE
        if self._opened is not None:
            _inherited.append(self._opened)
            self._opened = None
            if self._held_for_fork:
                self._use = Use.IMPOSSIBLE


def _openers_of_plugins(settings: Settings) -> Mapping[str, Any]:
    from supervisor.config.file_permissions import require_trust
    from supervisor.plugins.discovery import discover
    from supervisor.plugins.manager import PluginManager

    require_trust(settings)
    manager = PluginManager()
    manager.load_all(discover(settings.plugins.paths, settings.base))
    return manager.merged("supervisor_stores")


def _before_fork() -> None:
    _registry.acquire()
    for access in _all:
        access.before_fork()


def _after_fork_in_parent() -> None:
    for access in _all:
        access.after_fork_in_parent()
    _registry.release()


def _after_fork_in_child() -> None:
    for access in _all:
        access.after_fork_in_child()
    _registry.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
