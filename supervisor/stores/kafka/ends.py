"""Partitions and offsets as the client takes and gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, TopicPartition

from supervisor.stores.kafka.partitions import Partition


def at_position(partition: Partition) -> TopicPartition:
    """Return the partition with the offset that is read next."""
    position = partition.offsets.position
    return TopicPartition(partition.topic, partition.number, OFFSET_INVALID if position is None else position)


def ends_of(
    client: Consumer, partitions: Sequence[Partition], timeout: float
) -> Mapping[tuple[str, int], tuple[int, int]]:
    """Return the first offset, and the one behind the last, of each partition for which the brokers give them. All are asked for at once, since each answer comes behind that
    to a fetch. Raises KafkaException without an answer within `timeout` seconds each."""
    answers: list[dict[tuple[str, int], int]] = []
    for end in (OFFSET_BEGINNING, OFFSET_END):
        asked = [TopicPartition(it.topic, it.number, end) for it in partitions]
        found = client.offsets_for_times(asked, timeout=timeout) if asked else []
        answers.append({(it.topic, it.partition): it.offset for it in found if it.error is None})
    low, high = answers
    return {name: (low[name], high[name]) for name in low.keys() & high.keys()}
