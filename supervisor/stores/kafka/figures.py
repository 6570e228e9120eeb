"""The figures of the assigned partitions, and the records that hold their offsets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from supervisor.jobs import JobState
from supervisor.kafka.events import GroupEvent, GroupFigures, PartitionFigures
from supervisor.stores.kafka.partitions import Partition
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.problems import Problem
from supervisor.text.units import format_duration


class FigureLimits(NamedTuple):
    """Times are seconds."""

    period: float = 1.0
    held: float = 600.0  # for which a record may hold an offset, until this is a problem
    held_most: int = 5  # records that are reported
    partitions: int = 1000  # that the row of the supervisor shows


USUAL_LIMITS = FigureLimits()
_CANCEL = "or cancel it (on the dashboard, or by POST /api/jobs/{id}/cancel)"
_WHAT_TO_DO = {
    JobState.READY: "add workers, or look why they are busy, " + _CANCEL,
    JobState.SCHEDULED: "look at its errors and correct its handler, " + _CANCEL,
    JobState.IN_FLIGHT: "look where its handler is and give it a timeout, " + _CANCEL,
    JobState.FAILED: "repair the sink that does not accept its dead letter",
}


class _Oldest(NamedTuple):
    """The first record of a partition that is not done, and since when it has been the first."""

    offset: int
    since: float


class Figures:
    """`report_if_due` is called on the thread that polls; `problems` and `rows` on any thread."""

    def __init__(
        self, client: Consumer, state: KafkaState, job_id: Callable[[str, int, int], int],
        emit: Callable[[GroupEvent], None], limits: FigureLimits = USUAL_LIMITS, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._state, self._job_id, self._emit = client, state, job_id, emit
        self._limits, self._now = limits, now
        self._due = -math.inf
        self._oldest: dict[Partition, _Oldest] = {}
        self._latest: Mapping[str, PartitionFigures] = {}
        self._problems: Sequence[Problem] = ()

    def problems(self) -> Sequence[Problem]:
        """Return the records that have held an offset for long."""
        return self._problems

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures of each partition, as `status --json` has them."""
        shown = sorted(self._latest.items())[: self._limits.partitions]
        return [partition_row(name, figures) for name, figures in shown]

    def report_if_due(self) -> None:
        now = self._now()
        if now < self._due:
            return
        self._due = now + self._limits.period
        with self._state.lock:
            partitions = list(self._state.assignment.partitions.values())
            fetched = {partition: (partition.offsets.position, partition.offsets.undone) for partition in partitions}
            self._oldest = {partition: found for partition in partitions if (found := self._oldest_of(partition, now))}
            self._problems = list(self._held(now))
        figures = {
            partition.name: self._figures(partition, position, undone, now)
            for partition, (position, undone) in fetched.items()
        }
        if figures or self._latest:
            self._latest = figures
            self._emit(GroupFigures(figures))

    def _oldest_of(self, partition: Partition, now: float) -> _Oldest | None:
        offsets, before = partition.offsets, self._oldest.get(partition)
        if not offsets.undone or (offset := offsets.committable) is None:
            return None
        return before if before is not None and before.offset == offset else _Oldest(offset, now)

    def _figures(self, partition: Partition, position: int | None, undone: int, now: float) -> PartitionFigures:
        end = self._end(partition)
        lag = None if position is None or end is None else max(0, end - position) + undone
        if (oldest := self._oldest.get(partition)) is None:
            return PartitionFigures(partition.committed, lag, undone, None, None, None)
        id = self._job_id(partition.topic, partition.number, oldest.offset)
        return PartitionFigures(partition.committed, lag, undone, oldest.offset, id, now - oldest.since)

    def _end(self, partition: Partition) -> int | None:
        """Return the end of the partition as of the last fetch; None before the first."""
        try:
            _, end = self._client.get_watermark_offsets(TopicPartition(partition.topic, partition.number), cached=True)
        except KafkaException:  # the client does not know the partition any more
            return None
        return None if end < 0 else end

    def _held(self, now: float) -> Iterator[Problem]:
        """Yield a problem for each of the records that have held an offset for longest. Those of a paused queue do so on
        purpose."""
        held = [
            (oldest.since, partition)
            for partition, oldest in self._oldest.items()
            if now - oldest.since >= self._limits.held and partition.topic not in self._state.paused
        ]
        for since, partition in sorted(held, key=lambda it: it[0])[: self._limits.held_most]:
            offset = self._oldest[partition].offset
            id = self._job_id(partition.topic, partition.number, offset)
            yield _problem(id, partition.name, offset, now - since, self._state.jobs.get(id))


def partition_row(name: str, figures: PartitionFigures) -> dict[str, Any]:
    """Return one of the `partitions` of a supervisor in `status --json`."""
    topic, _, number = name.rpartition("/")
    return {"topic": topic, "partition": int(number), **figures._asdict()}


def _problem(id: int, partition: str, offset: int, seconds: float, job: JobRecord | None) -> Problem:
    state = JobState.READY if job is None else job.state
    handler = "" if job is None else f" of handler {job.row.handler}"
    message = f"job {id}{handler} is {state.value.replace('_', ' ')} and has held the offset of {partition} at {offset} for {format_duration(seconds)}"
    if state is JobState.FAILED:
        message += ", since its dead letter is not accepted"
    return Problem("offset_held", message, _WHAT_TO_DO.get(state, "look at the log").format(id=id))
