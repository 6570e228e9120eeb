"""How often the engine looks by itself for changes that it was not notified of."""

from __future__ import annotations

from typing import NamedTuple


class PollIntervals(NamedTuple):
    """Seconds between two looks. `poll` is for claimable jobs, since a notification may be lost; `dead_letters` is for dead
    letters that another supervisor has left; `watch`, the longest interval, is for the state of the workers."""

    poll: float = 5.0
    dead_letters: float = 5.0
    watch: float = 1.0


USUAL = PollIntervals()
