"""The fetcher's view of the claimable jobs in the store."""

from __future__ import annotations

from enum import Enum, IntEnum


class Claimable(Enum):
    """Whether the store has claimable jobs."""

    NONE = "none"
    """The last claim left none."""
    HELD_OFF = "held off"
    """There are some, but a limit forbids claiming them until a worker changes."""
    POSSIBLE = "possible"
    """There may be some: a claim is worthwhile."""


class Change(IntEnum):
    """The most important change in the store since the last claim began."""

    NOTHING = 0
    NOTIFIED = 1
    """There may be jobs that this claim does not see."""
    CAME_DUE = 2
    """A scheduled job came due: a retry may have to overtake the jobs held here."""


class StoreView:
    """The view, which changes with notifications, with workers and with the result of each claim."""

    def __init__(self) -> None:
        self.claimable = Claimable.POSSIBLE
        self.change = Change.NOTHING
        self._worker_changed = False  # since the last claim began

    def notified(self, change: Change = Change.NOTIFIED) -> None:
        self.claimable = Claimable.POSSIBLE
        self.change = max(self.change, change)

    def released(self) -> None:
        """Note that jobs are ready again. This supervisor claims them once a worker is free, if no other has done so."""
        if self.claimable is Claimable.NONE:
            self.claimable = Claimable.HELD_OFF

    def worker_changed(self) -> None:
        self._worker_changed = True
        if self.claimable is Claimable.HELD_OFF:
            self.claimable = Claimable.POSSIBLE

    def claim_begins(self) -> None:
        self.change = Change.NOTHING
        self._worker_changed = False

    def claim_ended(self, *, brought: bool, left: bool) -> None:
        """Note whether the claim brought jobs, and whether it left some. If it left some and brought none, a limit forbids claiming
        them, or other supervisors were claiming them."""
        if self.change or (left and (brought or self._worker_changed)):
            self.claimable = Claimable.POSSIBLE
        else:
            self.claimable = Claimable.HELD_OFF if left else Claimable.NONE
