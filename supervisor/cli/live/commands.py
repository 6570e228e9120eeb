"""The commands that keys give: each changes one job, or one queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult


class Change(NamedTuple):
    """A change of one job. `question` is asked first, if there is one."""

    done: str
    question: str
    change: Callable[[Store, int], OperatorResult]

    def carry_out(self, store: Store, id: int) -> str:
        """Change the job, and return what was done, or why not."""
        result = self.change(store, id)
        return f"job {id}: {result.refused.get(id, self.done)}"


CHANGES = {
    "retry": Change("runs again", "", lambda store, job: store.retry([job])),
    "cancel": Change(
        "cancelled", "Cancel job {}? If it runs, its worker is killed.", lambda store, job: store.cancel([job])
    ),
    "delete": Change("deleted", "Delete job {} for good?", lambda store, job: store.delete([job])),
    "redrive": Change("redriven", "", lambda store, job: store.redrive([job])),
}


def pause(store: Store, queue: str, paused: bool) -> str:
    """Pause or resume the queue, and return what was done."""
    store.pause(queue, paused)
    return f"queue {queue}: {'paused' if paused else 'resumed'}"
