"""Records that are no plain JSON with plain headers, and offsets without a record."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from tests.kafka.mock_cluster import MockCluster
from tests.kafka.raw_producer import produce_with_header
from tests.kafka.supervised import Supervised

UNDECODABLE = {
    "tombstone": None, "empty": b"", "not UTF-8": b"\x80", "Avro": b"\x00\x00\x00\x00\x01\x0eabc", "broken": b"{",
    "unclosed": b"[1", "NaN": b"NaN", "deep": b"[" * 900_000, "two": b"1 2", "null byte": b'"a\x00"',
}  # fmt: skip


def dead_letters(supervised: Supervised) -> list[Any]:
    return supervised.broker.read(f"{supervised.topic}.dlq")


def test_values_that_are_no_json_become_dead_letters_as_they_were_and_the_others_run(supervised: Supervised) -> None:
    supervised.broker.create_topic(f"{supervised.topic}.dlq")
    records = [
        (key, value, ()) for name, bad in UNDECODABLE.items() for key, value in [(name.encode(), bad), (None, b"7")]
    ]
    supervised.broker.produce(supervised.topic, records)
    supervised.run()
    supervised.until_committed(len(records))
    assert supervised.ends() == dict.fromkeys(range(1, len(records), 2), 1)
    found = {message.key().decode(): message for message in dead_letters(supervised)}
    assert {name: message.value() for name, message in found.items()} == UNDECODABLE
    for message in found.values():
        headers = dict(message.headers())
        assert headers["x-error-reason"].startswith(b"rejected: ") and headers["x-retry-attempt"] == b"1"


def test_a_record_whose_headers_the_client_can_not_read_becomes_a_dead_letter_without_them(
    supervised: Supervised,
) -> None:
    supervised.broker.create_topic(f"{supervised.topic}.dlq")
    produce_with_header(supervised.broker.bootstrap, supervised.topic, b'{"a": 1}', b"\xff")
    supervised.produce(1)
    supervised.run()
    supervised.until_committed(2)
    assert supervised.ends() == {1: 1}
    (message,) = dead_letters(supervised)
    headers = dict(message.headers())
    assert (message.value(), headers["offset"]) == (b'{"a": 1}', b"0")
    assert headers["x-error-reason"].startswith(b"rejected: ") and b"headers can't be read" in headers["x-error-reason"]


def test_offsets_without_a_record_are_committed(supervised: Supervised) -> None:
    """Such as the markers of transactions."""
    producer = Producer({"bootstrap.servers": supervised.broker.bootstrap, "transactional.id": supervised.topic})
    producer.init_transactions(20)
    for _ in range(3):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(supervised.topic, b"1")
        producer.commit_transaction(20)
    supervised.run()
    supervised.until_committed(12)
    assert supervised.ends() == dict.fromkeys([0, 1, 2, 4, 5, 6, 8, 9, 10], 1)


def test_records_that_were_deleted_before_they_were_read_are_reported(
    mocked: Supervised, mock_cluster: MockCluster
) -> None:
    mocked.produce(*[None] * 3)
    first = mocked.run()
    mocked.until_committed(3)
    first.end()
    mocked.produce(*[None] * 7)
    mock_cluster.delete_records(mocked.topic, 0, before=8)
    second = mocked.run()
    mocked.until_committed(10)
    assert mocked.ends() == dict.fromkeys([0, 1, 2, 8, 9], 1)
    second.logged(f"{mocked.topic}/0 has no record 3 any more, reading goes on at offset 8")


def test_a_topic_that_was_made_anew_is_read_from_its_first_record(
    mocked: Supervised, mock_cluster: MockCluster
) -> None:
    run = mocked.run()
    mocked.produce(*[None] * 5)
    mocked.until_committed(5)
    mock_cluster.delete_topic(mocked.topic)
    mock_cluster.create_topic(mocked.topic)
    mocked.produce(*[None] * 2)
    mocked.until_committed(2)
    run.logged(f"{mocked.topic}/0 has no offset 5, since its topic was made anew")
    assert mocked.ends() == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}


RESULTS = """
from supervisor import handler

async def later():
    ...

@handler
def work(job):
    return {"large": "x" * 2_000_000, "object": object(), "coroutine": later()}.get(job.payload)
"""


def test_a_result_is_not_kept_so_it_need_be_neither_json_nor_small(supervised: Supervised) -> None:
    supervised.broker.create_topic(f"{supervised.topic}.dlq")
    supervised.write(plugin=RESULTS)
    supervised.produce("large", "object", "coroutine")
    supervised.run()
    supervised.until_committed(3)
    [message] = dead_letters(supervised)
    assert message.value() == b'"coroutine"', "its work was never done"
    assert b"nobody awaited it" in dict(message.headers())["x-error-reason"]
