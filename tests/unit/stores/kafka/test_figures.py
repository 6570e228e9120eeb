"""The figures of assigned partitions, and the records that hold their offsets, with a client that knows the ends only."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from supervisor.jobs import JobState
from supervisor.kafka.events import GroupFigures, PartitionFigures
from supervisor.stores.kafka.figures import FigureLimits, Figures
from supervisor.stores.kafka.offsets import Offsets
from supervisor.stores.kafka.partitions import Assignment, Partition, Record
from supervisor.stores.kafka.state import KafkaState
from supervisor.stores.problems import Problem

UNKNOWN = -1001


class World:
    """One consumer with partitions of the topic orders. The id of a job is its offset plus 1000 for each partition."""

    def __init__(self) -> None:
        self.now, self.ends, self.emitted = 0.0, {0: UNKNOWN, 1: UNKNOWN}, list[Any]()
        self.state = KafkaState(Assignment(1000, 10_000), {"orders": "ship"}, "handler", "json")
        self.figures = Figures(
            self, self.state, self.id, self.emitted.append, FigureLimits(partitions=2), lambda: self.now,  # type: ignore[arg-type]
        )  # fmt: skip

    def get_watermark_offsets(self, of: Any, cached: bool) -> tuple[int, int]:
        assert cached, "the brokers are not asked"
        if of.partition not in self.ends:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 0, self.ends[of.partition]

    @staticmethod
    def id(topic: str, partition: int, offset: int) -> int:
        assert topic == "orders"
        return 1000 * partition + offset

    def assign(self, number: int, position: int | None = None) -> Partition:
        partition = Partition("orders", number, 1, Offsets(position), position)
        self.state.assignment.partitions["orders", number] = partition
        return partition

    def fetch(self, partition: Partition, *offsets: int) -> None:
        for offset in offsets:
            assert partition.offsets.fetched(offset)
        self.state.add_records(
            Record(self.id("orders", partition.number, offset), partition, offset, None, None, b"{}", (), None)
            for offset in offsets
        )

    def change(self, id: int, state: JobState) -> None:
        with self.state.transaction():
            self.state.change(self.state.jobs[id], state=state)

    def report(self) -> dict[str, PartitionFigures]:
        """Report as the consumer does, and return the figures of the event."""
        self.emitted.clear()
        self.figures.report_if_due()
        (event,) = self.emitted
        assert isinstance(event, GroupFigures)
        return dict(event.partitions)

    def after(self, seconds: float) -> list[Problem]:
        self.now += seconds
        self.report()
        return [*self.figures.problems()]


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_not_known_is_left_open_and_is_not_zero(world: World) -> None:
    world.assign(0)
    world.assign(5, 7)
    assert world.report() == {
        "orders/0": PartitionFigures(None, None, 0, None, None, None),
        "orders/5": PartitionFigures(7, None, 0, None, None, None),
    }


def test_the_lag_is_what_is_fetched_and_not_done_and_what_is_not_fetched(world: World) -> None:
    partition = world.assign(0, 5)
    world.fetch(partition, 5, 6, 7)
    world.ends[0] = 20
    assert world.report()["orders/0"] == PartitionFigures(5, 3 + 12, 3, 5, 5, 0.0)
    world.change(6, JobState.SUCCEEDED)
    world.now = 2.0
    assert world.report()["orders/0"] == PartitionFigures(5, 2 + 12, 2, 5, 5, 2.0)


def test_the_oldest_record_is_counted_from_when_it_has_become_the_oldest(world: World) -> None:
    partition = world.assign(0, 5)
    world.fetch(partition, 5, 6)
    world.report()
    world.now = 100.0
    world.change(5, JobState.SUCCEEDED)
    assert world.report()["orders/0"].held_for == 0.0
    world.now = 101.0
    assert world.report()["orders/0"][-3:] == (6, 6, 1.0)
    world.change(6, JobState.SUCCEEDED)
    world.now = 102.0
    assert world.report()["orders/0"][-3:] == (None, None, None)


def test_figures_are_reported_once_a_second_and_their_end_too(world: World) -> None:
    world.figures.report_if_due()
    assert world.emitted == []  # nothing is assigned
    partition = world.assign(0, 5)
    world.now = 1.0
    world.report()
    world.now = 1.9
    world.emitted.clear()
    world.figures.report_if_due()
    assert world.emitted == []
    world.state.drop([partition])
    world.now = 2.0
    assert world.report() == {} and world.figures.rows() == []


def test_the_row_of_the_supervisor_has_a_limited_number_of_partitions(world: World) -> None:
    world.ends[2] = 9
    for number in (2, 0, 1):
        world.assign(number, 5)
    world.report()
    first, second = world.figures.rows()
    assert (first["partition"], second["partition"]) == (0, 1)
    assert first == {
        "topic": "orders", "partition": 0, "committed": 5, "lag": None, "undone": 0, "oldest": None, "job_id": None,
        "held_for": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "message", "what_to_do"),
    [
        (JobState.READY, "job 1005 of handler ship is ready", "add workers"),
        (JobState.SCHEDULED, "job 1005 of handler ship is scheduled", "correct its handler"),
        (JobState.IN_FLIGHT, "job 1005 of handler ship is in flight", "POST /api/jobs/1005/cancel"),
    ],
)
def test_a_record_that_holds_an_offset_for_ten_minutes_is_a_problem(
    world: World, state: JobState, message: str, what_to_do: str
) -> None:
    partition = world.assign(1, 5)
    world.fetch(partition, 5, 6)
    if state is not JobState.READY:
        world.change(1005, state)
    assert world.after(0.0) == world.after(599.0) == []
    (problem,) = world.after(1.0)
    assert problem.kind == "offset_held"
    assert problem.message == f"{message} and has held the offset of orders/1 at 5 for 10m"
    assert what_to_do in problem.what_to_do
    world.change(1005, JobState.SUCCEEDED)
    assert world.after(1.0) == []


def test_a_dead_letter_that_is_not_accepted_is_said_to_hold_the_offset(world: World) -> None:
    from supervisor.stores.memory.other_records import DeadLetterRecord

    partition = world.assign(0, 5)
    world.fetch(partition, 5)
    with world.state.transaction():
        job = world.state.jobs[5]
        world.state.change(job, state=JobState.FAILED, dead_letter=DeadLetterRecord(0, owed=frozenset({"file"})))
    world.after(0.0)
    (problem,) = world.after(700.0)
    assert problem.message.endswith("its dead letter is not accepted") and "sink" in problem.what_to_do


def test_a_paused_queue_holds_its_offsets_on_purpose(world: World) -> None:
    partition = world.assign(0, 5)
    world.fetch(partition, 5)
    world.state.paused.add("orders")
    world.after(0.0)
    assert world.after(700.0) == []
    world.state.paused.discard("orders")
    assert len(world.after(1.0)) == 1


def test_the_records_that_hold_longest_come_first_and_no_more_than_a_few(world: World) -> None:
    for number in range(8):
        world.ends[number] = 9
        world.fetch(world.assign(number, 5), 5)
        world.after(10.0)
    problems = world.after(1000.0)
    assert [it.message.partition(" of ")[0] for it in problems] == [f"job {1000 * n + 5}" for n in range(5)]
