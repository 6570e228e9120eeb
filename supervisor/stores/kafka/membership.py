"""Whether the group has given this supervisor its partitions, and for how long it has waited for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from supervisor.stores.problems import Problem

logger = logging.getLogger("supervisor")

NOT_JOINED = (
    "look at the log of the brokers, and whether other members of the group hang; a new member waits for all of them"
)


class Membership:
    """Times are seconds. It is changed on the thread of the consumer, and read on any."""

    def __init__(
        self, group: str, has_partitions: Callable[[], bool], settle: float, late: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """An assignment without partitions is believed after `settle`: a cooperative group gives a new member none at first,
        and those that others give up for it in a second step."""
        self._group, self._has_partitions, self._settle, self._late, self._now = (
            group,
            has_partitions,
            settle,
            late,
            now,
        )
        self._waiting_since: float | None = None
        self._assigned_at: float | None = None
        self._reported = False

    def wait(self) -> None:
        """Note that the supervisor joins the group, or does so again since it has no partition any more."""
        self._waiting_since, self._assigned_at, self._reported = self._now(), None, False

    def assigned(self) -> None:
        """Note an assignment, also one without partitions."""
        if self._assigned_at is None:
            self._assigned_at = self._now()
        self._waiting_since = None

    @property
    def joined(self) -> bool:
        """Whether the supervisor has the partitions that the group gives it now, which may be none."""
        settled = self._assigned_at is not None and self._now() - self._assigned_at >= self._settle
        return settled or self._has_partitions()

    def problems(self) -> list[Problem]:
        since = self._waiting_since
        if since is None or self._has_partitions() or self._now() - since <= self._late:
            return []
        return [
            Problem(
                "group", f"the group {self._group} has given no partition for {self._now() - since:.0f}s", NOT_JOINED
            )
        ]

    def report_if_late(self) -> None:
        """Log the problem once."""
        for problem in () if self._reported else self.problems():
            self._reported = True
            logger.warning("%s: %s", problem.message, problem.what_to_do)
