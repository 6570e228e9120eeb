"""The first offset of partitions, and the one behind the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from supervisor.stores.kafka.partitions import Partition


def ends_of(
    client: Consumer, partitions: Sequence[Partition], timeout: float
) -> Mapping[tuple[str, int], tuple[int, int]]:
    """Return both of each partition for which the brokers give them. All are asked for at once, since each answer comes behind that
    to a fetch. Raises KafkaException without an answer within `timeout` seconds each."""
    answers: list[dict[tuple[str, int], int]] = []
    for end in (OFFSET_BEGINNING, OFFSET_END):
        asked = [TopicPartition(it.topic, it.number, end) for it in partitions]
        found = client.offsets_for_times(asked, timeout=timeout) if asked else []
        answers.append({(it.topic, it.partition): it.offset for it in found if it.error is None})
    low, high = answers
    return {name: (low[name], high[name]) for name in low.keys() & high.keys()}
