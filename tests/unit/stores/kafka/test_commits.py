"""Commits that fail, with a client that refuses what the test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from supervisor.kafka.errors import ErrorTexts
from supervisor.kafka.events import CommitFailed, OffsetsCommitted
from supervisor.stores.kafka.commits import ANSWER, Commits
from supervisor.stores.kafka.offsets import Offsets
from supervisor.stores.kafka.partitions import Assignment, Partition
from supervisor.stores.kafka.state import KafkaState


class World:
    """Commits are due at once. `refused` are the partitions whose offsets the brokers refuse."""

    def __init__(self) -> None:
        self.now, self.refused, self.sent, self.emitted = 0.0, set[int](), list[dict[int, int]](), list[Any]()
        self.state = KafkaState(Assignment(1000, 10_000), {"orders": "ship"}, "handler", "json")
        texts = ErrorTexts("box:9092", {})
        self.commits = Commits(self, self.state, 0.0, self.emitted.append, texts, lambda: self.now)  # type: ignore[arg-type]

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        """Answer with an exception if all are refused, and to an asynchronous one by its callback, as the real client does."""
        self.sent.append({it.partition: it.offset for it in offsets})
        refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        if self.refused >= {it.partition for it in offsets}:
            raise KafkaException(refusal)
        if asynchronous:
            answers: list[Any] = [_Answer(it, refusal if it.partition in self.refused else None) for it in offsets]
            self.commits.committed(None, answers)
        return list(offsets)

    def assign(self, number: int) -> Partition:
        partition = Partition("orders", number, 1, Offsets(5), changed=True)
        self.state.assignment.partitions["orders", number] = partition
        return partition

    def commit_at(self, now: float) -> list[Any]:
        """Return the events of a commit at this time."""
        self.now = now
        self.emitted.clear()
        self.commits.commit_if_due()
        return [*self.emitted]


class _Answer:
    def __init__(self, of: TopicPartition, error: KafkaError | None) -> None:
        self.topic, self.partition, self.offset, self.error = of.topic, of.partition, of.offset, error


@pytest.fixture
def world() -> World:
    return World()


def test_offsets_that_are_refused_are_committed_again_until_they_are_taken(world: World) -> None:
    world.assign(0), world.assign(1)
    world.refused.add(0)
    failed, committed = world.commit_at(1.0)
    assert (failed.partitions, committed) == (["orders/0"], OffsetsCommitted({"orders/1": 5}))
    assert world.commits.failing_since == 1.0 and "no right to this topic" in world.commits.error
    assert [type(it) for it in world.commit_at(2.0)] == [CommitFailed] and world.commits.failing_since == 1.0
    world.refused.clear()
    assert world.commit_at(3.0) == [OffsetsCommitted({"orders/0": 5})]
    assert not world.commits.failing_since and not world.commits.error


def test_partitions_that_were_given_up_leave_no_problem_behind(world: World) -> None:
    first, second = world.assign(0), world.assign(1)
    world.refused |= {0, 1}
    world.commit_at(1.0)
    world.state.drop([first])
    world.commit_at(2.0)
    assert world.commits.failing_since == 1.0  # the other one fails still
    world.state.drop([second])
    world.commit_at(3.0)
    assert not world.commits.failing_since and not world.commits.error


def test_an_answer_that_comes_after_a_later_commit_shows_nothing_of_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = world.assign(0)
    answer, unanswered = world.commits.committed, list[Any]()
    monkeypatch.setattr(world.commits, "committed", lambda error, answers: unanswered.append(answers))
    world.commit_at(1.0)
    partition.offsets.reached_end(9)
    partition.changed = True
    world.commit_at(1.0 + ANSWER)
    first, second = unanswered
    answer(None, first)
    assert (world.sent, partition.committed, world.emitted) == ([{0: 5}, {0: 9}], None, [])
    answer(None, second)
    assert (partition.committed, world.emitted) == (9, [OffsetsCommitted({"orders/0": 9})])
