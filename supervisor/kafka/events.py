"""Events of the consumer group of a Kafka store. A partition is named as `topic/number`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class PartitionsAssigned(NamedTuple):
    """The group has given these partitions to this supervisor."""

    partitions: Sequence[str]


class PartitionsRevoked(NamedTuple):
    """These partitions are given up, since the group gives them to another supervisor. Records that were not done are run by their next owner; with `lost`, also those
    that are done and were not committed."""

    partitions: Sequence[str]
    lost: bool
    undone: int


class OffsetsCommitted(NamedTuple):
    """The broker has taken these offsets: of each partition the one that is to be read next after a restart."""

    offsets: Mapping[str, int]


class CommitFailed(NamedTuple):
    """The broker has not taken the offsets of these partitions. They are committed again with the next ones."""

    partitions: Sequence[str]
    error: str


class OffsetReset(NamedTuple):
    """The next offset of a partition does not exist any more (its records were deleted before they were read, or the topic was made
    anew), so reading goes on at another one."""

    partition: str
    wanted: int
    now: int


class GroupProblem(NamedTuple):
    """The Kafka client has reported an error; it tries again."""

    error: str


class PartitionFigures(NamedTuple):
    """The figures of one partition. What is not known yet is None.

    `lag` are the records that are not done: those fetched, and those up to the end of the partition as of the last fetch. `undone`
    are those of them that are fetched. The first of these has the offset `oldest`, is the job `job_id`, and has kept the committed
    offset where it is for `held_for` seconds; all three are None if there is none.
    """

    committed: int | None
    lag: int | None
    undone: int
    oldest: int | None
    job_id: int | None
    held_for: float | None


class GroupFigures(NamedTuple):
    """The figures of all partitions that this supervisor has, about once a second."""

    partitions: Mapping[str, PartitionFigures]


GroupEvent = (
    PartitionsAssigned | PartitionsRevoked | OffsetsCommitted | CommitFailed | OffsetReset | GroupProblem | GroupFigures
)
