"""Who uses a memory store: its transactions, and the bells of supervisors and clients of one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from supervisor.errors import StoreError
from supervisor.stores.codes import LEFT
from supervisor.stores.memory.state import JobRecord, MemoryState, OwnerRecord
from supervisor.stores.records import Presence, microseconds


class Owners:
    def __init__(self, clock: Callable[[], float] = time.time, memory: MemoryState | None = None) -> None:
        self._clock = clock
        self._memory = memory or MemoryState()
        self._owner: str | None = None
        self.on_owner_gone: Callable[[str], None] = lambda owner: None  # never: owners die with this process

    def close(self) -> None:
        pass

    @contextmanager
    def transaction(self, *, single: bool = False) -> Iterator[None]:
        memory = self._memory
        with memory.lock:
            if memory.before is not None:
                with memory.joined():
                    yield
                return
            memory.before, sequence, paused, owners = {}, memory.sequence, set(memory.paused), dict(memory.owners)
            try:
                yield
                if memory.broken:
                    raise StoreError("a write inside this transaction failed, so none of it is kept")
            except BaseException:
                memory.undo(memory.before)
                memory.sequence, memory.paused = sequence, paused
                memory.owners = owners | memory.owners  # those that were forgotten on the way
                raise
            finally:
                memory.before, memory.broken = None, False

    def _now(self) -> int:
        return microseconds(self._clock())

    def _change(self, job: JobRecord, **changes: Any) -> None:
        memory = self._memory
        memory.remember(job.id)
        memory.take_out(job)
        for name, value in changes.items():
            setattr(job, name, value)
        memory.file(job)

    def notify(self) -> None:
        with self._memory.lock:
            for name, owner in self._memory.owners.items():
                if name != self._owner and owner.presence.state != LEFT:
                    with suppress(BlockingIOError):
                        os.write(owner.notification_pipe[1], b"!")

    def join(self, owner: str, host: str, pid: int) -> int | None:
        with self._memory.lock:
            self._owner = owner
            if owner not in self._memory.owners:
                notification_pipe = os.pipe()
                for end in notification_pipe:
                    os.set_blocking(end, False)
                self._memory.owners[owner] = OwnerRecord(host, pid, self._now(), notification_pipe)
        return None

    def leave(self) -> None:
        with self._memory.lock:
            owner = self._memory.owners.get(self._owner or "")
            if owner is None:
                return
            owner.presence = Presence(LEFT)
            for end in owner.notification_pipe:
                os.close(end)
            self._owner = None
            self._forget_owners()

    def notification_fd(self) -> int | None:
        return None if self._owner is None else self._memory.owners[self._owner].notification_pipe[0]

    def clear_notifications(self) -> None:
        notification_pipe = self.notification_fd()
        with suppress(BlockingIOError):
            if notification_pipe is not None:
                os.read(notification_pipe, 4096)

    def watch_owners(self, on_gone: Callable[[str], None]) -> None:
        self.on_owner_gone = on_gone

    def announce(self, presence: Presence) -> None:
        with self._memory.lock:
            owner = self._memory.owners.get(self._owner or "")
            if owner is None:
                raise StoreError("announce: join first")
            owner.presence, owner.seen_at = presence, self._now()

    def _forget_owners(self) -> None:
        """Those that have left, once they hold no lease."""
        holding = {self._memory.jobs[id].owner for id in self._memory.in_flight}
        for name, owner in list(self._memory.owners.items()):
            if owner.presence.state == LEFT and name not in holding:
                del self._memory.owners[name]
