"""Log what happens in the consumer group of a Kafka store."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.kafka.events import (
    CommitFailed,
    GroupProblem,
    OffsetReset,
    OffsetsCommitted,
    PartitionsAssigned,
    PartitionsRevoked,
)
from supervisor.text.rate_limit import RateLimit, times
from supervisor.text.units import counted

MAX_NAMES = 20  # partitions that a line names
_AGAIN = "some records that are done are run again by their next owner"
_DIGITS = re.compile(r"\d+")


class GroupLines:
    """`writers` has the writer of each event. Commits that fail are logged once a minute for each error, and when all of their
    partitions are committed again."""

    def __init__(self, log: Callable[..., None], clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._repeats = RateLimit(clock)
        self._assigned: set[str] = set()
        self._failing: dict[str, float] = {}  # the partitions whose last commit failed, and since when commits fail
        self.writers: Mapping[type[Any], Callable[[Any], None]] = {
            PartitionsAssigned: self._partitions_assigned,
            PartitionsRevoked: self._partitions_revoked,
            OffsetsCommitted: self._offsets_committed,
            CommitFailed: self._commit_failed,
            OffsetReset: self._offset_reset,
            GroupProblem: self._problem,
        }

    def _partitions_assigned(self, event: PartitionsAssigned) -> None:
        """Log the partitions. Each rebalance that gives none has an event too."""
        self._assigned.update(event.partitions)
        if event.partitions:
            self._log(logging.INFO, "partitions assigned: %s", _list(event.partitions))
        elif not self._assigned and (held := self._repeats.allow(PartitionsAssigned)) is not None:
            line = "the group has given this supervisor no partition: the other members have them%s"
            self._log(logging.INFO, line, times(held))

    def _partitions_revoked(self, event: PartitionsRevoked) -> None:
        self._assigned.difference_update(event.partitions)
        uncommitted = [partition for partition in event.partitions if self._failing.pop(partition, None) is not None]
        level = logging.WARNING if event.lost or uncommitted else logging.INFO
        rest = f"; {counted(event.undone, 'record')} not done here" if event.undone else ""
        if event.lost:
            rest += "; records that are done and were not committed are run again by their next owner"
        elif uncommitted:
            rest += f"; the last commit of {_list(uncommitted)} failed, so {_AGAIN}"
        line = "partitions lost: %s%s" if event.lost else "partitions given up: %s%s"
        self._log(level, line, _list(event.partitions), rest)

    def _offsets_committed(self, event: OffsetsCommitted) -> None:
        offsets = [f"{partition}={offset}" for partition, offset in event.offsets.items()]
        self._log(logging.DEBUG, "offsets committed: %s", _list(offsets))
        since = min(self._failing.values(), default=None)
        for partition in event.offsets:
            self._failing.pop(partition, None)
        if since is not None and not self._failing:
            self._repeats = RateLimit(self._clock)
            self._log(logging.INFO, "offsets are committed again, after %.2fs", self._clock() - since)

    def _commit_failed(self, event: CommitFailed) -> None:
        since = min(self._failing.values(), default=self._clock())
        failing = [partition for partition in event.partitions if partition in self._assigned]
        self._failing.update(dict.fromkeys(failing, since))
        if not failing:  # the answer to the last commit has come late
            line = "offsets not committed of %s, which were given up meanwhile, so %s: %s"
            self._log(logging.WARNING, line, _list(event.partitions), _AGAIN, event.error)
        elif (held := self._repeats.allow((CommitFailed, event.error))) is not None:
            line = "offsets not committed of %s, and committed again with the next ones: %s%s"
            self._log(logging.WARNING, line, _list(event.partitions), event.error, times(held))

    def _offset_reset(self, event: OffsetReset) -> None:
        partition, wanted, now = event
        if now > wanted:
            line = "records skipped: %s has no record %d any more, reading goes on at offset %d, and up to %d records were not run; if their retention has ended, raise retention.ms or retention.bytes of the topic"
            self._log(logging.ERROR, line, partition, wanted, now, now - wanted)
        else:
            line = "offset reset: %s has no offset %d, since its topic was made anew or truncated; reading goes on at offset %d"
            self._log(logging.WARNING, line, partition, wanted, now)

    def _problem(self, event: GroupProblem) -> None:
        key = GroupProblem, _DIGITS.sub("", event.error)  # the client adds how long it took, and how often it happened
        if (held := self._repeats.allow(key)) is not None:
            self._log(logging.WARNING, "the Kafka client has an error, and tries again: %s%s", event.error, times(held))


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
