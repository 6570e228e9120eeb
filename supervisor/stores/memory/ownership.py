"""One owner of a memory store, and the pipes by which owners of one process are notified."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from supervisor.errors import StoreError
from supervisor.stores.codes import LEFT
from supervisor.stores.memory.other_records import OwnerRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.records import Presence
from supervisor.stores.sinks import Sinks


class Ownership:
    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self.name: str | None = None
        self.sinks: Sinks = frozenset()

    def join(self, owner: str, host: str, pid: int, sinks: Sinks = frozenset()) -> int | None:
        with self._state.lock:
            self.name, self.sinks = owner, sinks
            if owner not in self._state.owners:
                pipe = os.pipe()
                for end in pipe:
                    os.set_blocking(end, False)
                self._state.owners[owner] = OwnerRecord(host, pid, self._state.now(), pipe)
            self._state.owners[owner].sinks = sinks
        return None

    def owed(self) -> Sinks:
        """Return the sinks that a dead letter made here is owed to: without own sinks, those of all supervisors of the store, gone
        ones too, since a lease of theirs may be recovered here."""
        return self.sinks or frozenset().union(*(owner.sinks for owner in self._state.owners.values()))

    def leave(self) -> None:
        with self._state.lock:
            owner = self._state.owners.get(self.name or "")
            if owner is None:
                return
            owner.presence = Presence(LEFT)
            for end in owner.notification_pipe:
                os.close(end)
            self.name = None
            self._state.forget_owners()

    def announce(self, presence: Presence) -> None:
        with self._state.lock:
            owner = self._state.owners.get(self.name or "")
            if owner is None:
                raise StoreError("announce: join first")
            owner.presence, owner.seen_at = presence, self._state.now()

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        """Do nothing: all owners are in this process, so none is ever found gone."""

    def notify(self) -> None:
        with self._state.lock:
            for name, owner in self._state.owners.items():
                if name != self.name and owner.presence.state != LEFT:
                    _wake(owner)

    def notify_self(self) -> None:
        """Wake the supervisor whose store this is: jobs have become ready, or are gone."""
        with self._state.lock:
            owner = self._state.owners.get(self.name or "")
            if owner is not None and owner.presence.state != LEFT:
                _wake(owner)

    def notification_fd(self) -> int | None:
        if self.name is None:
            return None
        read_end, _ = self._state.owners[self.name].notification_pipe
        return read_end

    def clear_notifications(self) -> None:
        fd = self.notification_fd()
        with suppress(BlockingIOError):
            if fd is not None:
                os.read(fd, 4096)


def _wake(owner: OwnerRecord) -> None:
    _, write_end = owner.notification_pipe
    with suppress(BlockingIOError):
        os.write(write_end, b"!")
