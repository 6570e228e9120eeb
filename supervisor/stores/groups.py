"""The turns of groups: in a queue, groups of jobs share what is claimed, each by its number of shares.

Jobs of one queue and one priority take turns in rounds: in each round a group starts as many jobs as it has shares. A job gets its
round when it becomes ready and fresh: the one behind the newest job of its group, but not one before the round that was reached. The
round is its `age`, so that a claim reads the index as if there were no groups. What holds, for groups that always have jobs waiting:
the numbers of their claimed jobs, each divided by its shares, differ by three rounds at most.

`position` is where the next job of a group would start, in UNIT to a round. `round` is the one that was reached: that of the first
job that waits. It never goes back, whatever is released into an older round. If no job waits, all groups start level, at the id of
the new job: no position is ahead of it, since each job had an id of its own, and takes one round at most.

Jobs without a group are one group more, NO_GROUP, with one share, in a queue in which others have groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

UNIT = 720_720
"""Each whole number of shares up to 16 divides it."""
NO_GROUP = ""

Shares = Mapping[str, Mapping[str, float]]
"""By queue, then by group. A group without an entry has one share."""


def spacing(shares: float) -> int:
    """Return the part of a round that a job takes whose group has so many shares."""
    return ceil(UNIT / shares)


def start_of(position: int | None, reached: int) -> int:
    """Return where the next job of a group starts whose last one has left this position."""
    return max(position or 0, reached * UNIT)
