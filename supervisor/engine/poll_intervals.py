"""How often the engine looks by itself for changes that it was not notified of."""

from __future__ import annotations

from typing import NamedTuple


class PollIntervals(NamedTuple):
    """Seconds between two looks: `poll` for claimable jobs, since a notification may be lost; `dead_letters` for pending ones
    that another supervisor has left; `watch`, at most, for the state of the workers."""

    poll: float = 5.0
    dead_letters: float = 5.0
    watch: float = 1.0


USUAL = PollIntervals()
