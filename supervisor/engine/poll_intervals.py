"""How often the engine looks by itself, for what nobody told it."""

from __future__ import annotations

from typing import NamedTuple


class PollIntervals(NamedTuple):
    """Seconds. `poll`: into the store, for a ring that was lost; `letters`: for dead letters that another supervisor has
    left; `watch`: at the workers, at the latest."""

    poll: float = 5.0
    dead_letters: float = 5.0
    watch: float = 1.0


USUAL = PollIntervals()
