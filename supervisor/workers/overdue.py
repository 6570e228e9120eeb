"""The decision about a cancelled job of an async worker that has not ended in its grace: whom to blame when the process is killed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

MAX_WAIT = 10.0  # seconds past its grace that a cancelled job gets because of other jobs
MIN_BLOCKED = 0.5  # seconds for which a job blocks the loop before it is blamed for the deadline of another one
LOOK_AGAIN = 0.1


class Blame(Enum):
    """Kill the process for this job, or the job that blocks the loop, or as suspects all that run; or look again later."""

    JOB = "job"
    BLOCKER = "blocker"
    ALL = "all"
    NOBODY_YET = "nobody yet"


class Overdue(NamedTuple):
    """A job that was cancelled `waited` seconds ago, and had `grace` seconds to end; it has reached its timeout if it is `late`.

    `read` is the seconds since its worker has read the order to cancel, None if it has not; `blocked` the seconds for which the
    event loop has been blocked, None if it turns. `blocks` is whether this job blocks it, `blocker_known` whether it is known
    which job does. `alone` is whether the worker runs no other job.
    """

    waited: float
    grace: float
    late: bool
    read: float | None
    blocked: float | None
    blocks: bool
    blocker_known: bool
    alone: bool

    @property
    def blame(self) -> Blame:
        had_grace = self.read is not None and self.read >= self.grace - LOOK_AGAIN / 2
        is_long = (self.blocked or 0.0) >= max(self.grace, MIN_BLOCKED)
        waits = self.late and self.waited < self.grace + MAX_WAIT
        if self.blocks or self.alone or (had_grace and (self.blocked is None or not (is_long or waits))):
            return Blame.JOB
        if waits and not is_long:
            return Blame.NOBODY_YET
        return Blame.BLOCKER if self.blocker_known and is_long else Blame.ALL
