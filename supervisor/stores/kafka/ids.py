"""The id of a job that is a record of Kafka: the same at every run of the record, on every supervisor of the group."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

TOPIC_BITS, PARTITION_BITS, OFFSET_BITS = 9, 12, 42  # 63 in all: an id is a positive 64-bit integer
MAX_TOPICS = 2**TOPIC_BITS - 1
MAX_PARTITIONS = 2**PARTITION_BITS
MAX_OFFSET = 2**OFFSET_BITS - 1


class Place(NamedTuple):
    """The place of a record; `topic` is the number of its topic."""

    topic: int
    partition: int
    offset: int


def topic_numbers(topics: Iterable[str]) -> dict[str, int]:
    """Return a number from 1 to MAX_TOPICS for each topic. It depends on the names only, not on their order. A further topic changes
    it only if the number that it would have is taken."""
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for topic in sorted(topics):
        number = zlib.crc32(topic.encode()) % MAX_TOPICS
        while number in taken:
            number = (number + 1) % MAX_TOPICS
        taken.add(number)
        numbers[topic] = number + 1
    return numbers


def job_id(place: Place) -> int:
    """Return the id of the job at this place. Raises ValueError for a partition or an offset past what fits."""
    topic, partition, offset = place
    if not (partition < MAX_PARTITIONS and offset <= MAX_OFFSET):
        raise ValueError(f"expected a partition below {MAX_PARTITIONS} and an offset up to {MAX_OFFSET}, got {place}")
    return (topic << PARTITION_BITS | partition) << OFFSET_BITS | offset


def job_ids(topics: Iterable[str]) -> Callable[[str, int, int], int]:
    """Return the function that makes the id of a job of the topic, the number of the partition, and the offset."""
    numbers = topic_numbers(topics)
    return lambda topic, partition, offset: job_id(Place(numbers[topic], partition, offset))


def place_of(id: int) -> Place:
    """Return the place of the record with this id."""
    partition = id >> OFFSET_BITS
    return Place(partition >> PARTITION_BITS, partition & (MAX_PARTITIONS - 1), id & MAX_OFFSET)
