"""Distinguishes second replies for a job from replies for jobs that a worker does not run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.jobs import Lease
from supervisor.workers.interface import Reply

MAX_REMEMBERED = 256  # jobs: as many as a frame has
MAX_REPEATED = 100
REPEATED = "wrote a second outcome of job {}, which is ignored, and is replaced: a handler has written into its channel"


class Checked(NamedTuple):
    """The replies that are right; the id of the job that was repeated, if that is the worker's first; the id that is wrong."""

    right: list[Reply]
    repeated: int | None
    wrong: int | None


class ReplyCheck:
    """The jobs that a worker has replied to, the last ones.

    A job that writes its own outcome has a second one when it really ends. That one blames nobody, since the next job may be
    running by then.
    """

    __slots__ = ("answered", "repeated")

    def __init__(self) -> None:
        self.answered: deque[int] = deque(maxlen=MAX_REMEMBERED)
        self.repeated = 0

    def check(self, sent: Sequence[Lease], replies: Sequence[Reply]) -> Checked:
        """Return those for the jobs sent, in their order, up to one that is neither right nor repeated."""
        right: list[Reply] = []
        repeated: int | None = None
        for reply in replies:
            id = reply.job_id
            if len(right) < len(sent) and sent[len(right)].id == id:
                right.append(reply)
            elif self.repeated < MAX_REPEATED and (id in self.answered or id in [each.job_id for each in right]):
                repeated = repeated if self.repeated else id
                self.repeated += 1
            else:
                return Checked(right, repeated, id)
        return Checked(right, repeated, None)
