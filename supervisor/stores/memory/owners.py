"""Who uses a memory store: its transactions, and the bells of supervisors and clients of one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from supervisor.stores.codes import LEFT
from supervisor.stores.memory.state import KeptJob, KeptOwner, Shelf
from supervisor.stores.protocol import Presence, StoreError
from supervisor.stores.records import microseconds


class Owners:
    def __init__(self, clock: Callable[[], float] = time.time, shelf: Shelf | None = None) -> None:
        self._clock = clock
        self._shelf = shelf or Shelf()
        self._owner: str | None = None
        self.on_owner_gone: Callable[[str], None] = lambda owner: None  # never: owners die with this process

    def close(self) -> None:
        pass

    @contextmanager
    def transaction(self, *, single: bool = False) -> Iterator[None]:
        shelf = self._shelf
        with shelf.lock:
            if shelf.before is not None:
                with shelf.joined():
                    yield
                return
            shelf.before, sequence, paused, owners = {}, shelf.sequence, set(shelf.paused), dict(shelf.owners)
            try:
                yield
                if shelf.broken:
                    raise StoreError("a write inside this transaction failed, so none of it is kept")
            except BaseException:
                shelf.put_back(shelf.before)
                shelf.sequence, shelf.paused = sequence, paused
                shelf.owners = owners | shelf.owners  # those that were forgotten on the way
                raise
            finally:
                shelf.before, shelf.broken = None, False

    def _now(self) -> int:
        return microseconds(self._clock())

    def _change(self, job: KeptJob, **changes: Any) -> None:
        shelf = self._shelf
        shelf.remember(job.id)
        shelf.take_out(job)
        for name, value in changes.items():
            setattr(job, name, value)
        shelf.file(job)

    def ring(self) -> None:
        with self._shelf.lock:
            for name, owner in self._shelf.owners.items():
                if name != self._owner and owner.presence.state != LEFT:
                    with suppress(BlockingIOError):
                        os.write(owner.bell[1], b"!")

    def join(self, owner: str, host: str, pid: int) -> int | None:
        with self._shelf.lock:
            self._owner = owner
            if owner not in self._shelf.owners:
                bell = os.pipe()
                for end in bell:
                    os.set_blocking(end, False)
                self._shelf.owners[owner] = KeptOwner(host, pid, self._now(), bell)
        return None

    def leave(self) -> None:
        with self._shelf.lock:
            owner = self._shelf.owners.get(self._owner or "")
            if owner is None:
                return
            owner.presence = Presence(LEFT)
            for end in owner.bell:
                os.close(end)
            self._owner = None
            self._forget_owners()

    def bell(self) -> int | None:
        return None if self._owner is None else self._shelf.owners[self._owner].bell[0]

    def hush(self) -> None:
        bell = self.bell()
        with suppress(BlockingIOError):
            if bell is not None:
                os.read(bell, 4096)

    def announce(self, presence: Presence) -> None:
        with self._shelf.lock:
            owner = self._shelf.owners.get(self._owner or "")
            if owner is None:
                raise StoreError("announce: join first")
            owner.presence, owner.seen_at = presence, self._now()

    def _forget_owners(self) -> None:
        """Those that have left, once they hold no lease."""
        holding = {self._shelf.jobs[id].owner for id in self._shelf.in_flight}
        for name, owner in list(self._shelf.owners.items()):
            if owner.presence.state == LEFT and name not in holding:
                del self._shelf.owners[name]
