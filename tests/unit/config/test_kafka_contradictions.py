"""Mistakes in the config of a Kafka store that no single key shows, and keys without an effect on it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.config.misspelt import named_queues, unknown_handlers
from supervisor.config.without_effect import without_effect

STORE = "store: {type: kafka, bootstrap: 'k1:9092', group: g, topics: {orders: take, mixed: null}%s}\n%s"


@pytest.mark.parametrize(
    ("keys", "rest", "error"),
    [
        (", revoke_timeout: 5m", "", "store.revoke_timeout: expected less than max.poll.interval.ms (5m), got 5m"),
        (
            ", revoke_timeout: 10s, kafka: {max.poll.interval.ms: '9000'}",
            "",
            "store.revoke_timeout: expected less than max.poll.interval.ms (9s), got 10s",
        ),
        (
            ", kafka: {heartbeat.interval.ms: 4000, session.timeout.ms: 6000}",
            "",
            "store.kafka.heartbeat.interval.ms: expected at most half of session.timeout.ms, got 4000",
        ),
        (
            "",
            f"dlq: {{topic_suffix: .{'x' * 243}}}",
            "dlq.topic_suffix: expected a suffix with which the name of topic orders has at most 249 characters",
        ),
        (
            "",
            "dlq: {sinks: [{type: kafka, topic: orders, bootstrap: 'k2:9092, k1:9092'}]}",
            "dlq.sinks[0].topic: expected a topic that is not in store.topics: dead letters would be jobs again",
        ),
        (
            "",
            "dlq: {sinks: [{type: file, path: d, name: dead-letter topic}]}",
            "dlq.sinks[0]: a second sink named dead-letter topic beside dlq.topic_suffix: give it another name",
        ),
        (
            "",
            "workers: {queues: [orders, mixed, order]}",
            "workers.queues: no topic of the store is named order, did you mean 'orders'?",
        ),
        (
            "",
            "workers: {groups: {g: {queues: [mail]}}}",
            "workers.groups.g.queues: no topic of the store is named mail; expected one of orders, mixed",
        ),
        (
            "",
            "handlers: {take: {queue: ordres}}",
            "handlers.take.queue: no topic of the store is named ordres, did you",
        ),
        (
            "",
            "workers: {queues: [orders]}",
            "workers.queues: expected all topics of the store: the records of mixed would be fetched and never run",
        ),
        ("", "queues: {orders: {limit: {running: 2}}}", "queues.orders.limit: expected no limit with a Kafka store"),
        (
            "",
            "queues: {orders: {group_limit: {running: 2}}}",
            "queues.orders.group_limit: expected no limit with a Kafka store",
        ),
        ("", "handlers: {take: {limit: {rate: 5/1s}}}", "handlers.take.limit: expected no limit with a Kafka store"),
    ],
)
def test_a_contradiction_is_named_with_the_key_to_change(errors: Any, keys: str, rest: str, error: str) -> None:
    (found,) = errors(STORE % (keys, rest))
    assert found.partition(": ")[2].startswith(error)


@pytest.mark.parametrize(
    ("keys", "rest"),
    [
        ("", ""),
        (", kafka: {heartbeat.interval.ms: 3000, session.timeout.ms: 6000}", ""),
        (", kafka: {heartbeat.interval.ms: 30000, max.poll.interval.ms: what}", ""),
        ("", "dlq: {sinks: [{type: kafka, topic: orders, bootstrap: 'other:9092'}]}"),
        ("", "dlq: {sinks: [{type: kafka, topic: dead, bootstrap: 'k1:9092'}]}"),
        ("", "workers: {queues: [mixed, orders], groups: {g: {queues: [mixed]}}}\nhandlers: {take: {queue: orders}}"),
        ("", f"dlq: {{enabled: false, topic_suffix: .{'x' * 245}}}"),
    ],
)
def test_what_fits_together_is_no_mistake(write: Any, keys: str, rest: str) -> None:
    load(write(STORE % (keys, rest)), {})


@pytest.mark.parametrize("topics", ["[orders, orders.dlq]", "{orders: take, orders.dlq: null}"])
def test_a_topic_of_dead_letters_needs_a_handler_of_its_own(errors: Any, write: Any, topics: str) -> None:
    """From the header, the handler that has failed would get the record again and again."""
    store = f"store: {{type: kafka, bootstrap: 'k:1', group: g, topics: {topics}}}\n"
    (found,) = errors(store)
    assert found.startswith(
        "supervisor.yaml:1: store.topics: expected a handler for topic orders.dlq, which gets the dead letters of orders, or another suffix"
    )
    load(write(f"{store}dlq: {{enabled: false}}"), {})
    load(write(f"{store}dlq: {{topic_suffix: -dead}}"), {})
    load(write(store.replace(topics, "{orders: take, orders.dlq: repair}")), {})


def test_the_suffix_of_a_further_sink_is_looked_at_too(errors: Any) -> None:
    topics = "store: {type: kafka, bootstrap: 'k1:9092', group: g, topics: [orders, orders-dead]}\n"
    (found,) = errors(f"{topics}dlq: {{sinks: [{{type: kafka, topic_suffix: -dead, bootstrap: 'k1:9092'}}]}}")
    assert ": store.topics: expected a handler for topic orders-dead, which gets the dead letters of orders" in found


def test_the_handler_of_a_topic_that_no_plugin_has_is_named(write: Any) -> None:
    settings = load(path := write(STORE % ("", "")), {})
    assert unknown_handlers(settings, ["take"]) == []
    assert unknown_handlers(settings, ["tale"]) == [
        f"{path}: store.topics.orders: no plugin has the handler take, did you mean 'tale'?"
    ]


def test_topics_are_queues_that_the_config_names(write: Any) -> None:
    assert {"orders", "mixed"} <= named_queues(load(write(STORE % ("", "")), {}))


@pytest.mark.parametrize(
    ("rest", "warning"),
    [
        (
            "lease: {ttl: 1m}",
            "lease.ttl: it has no effect, since others get the partitions of a lost supervisor",
        ),
        ("retention: {failed: 1d}", "retention.failed: it has hardly an effect: supervisors keep only the newest jobs"),
        (
            "limits: {payload: 2MB}",
            "limits.payload: it is a limit for jobs that are enqueued here, and none for the records",
        ),
        ("limits: {result: 2MB}", "limits.result: it has no effect, since results are not kept"),
        ("retry: {urgent: 50}", "retry.urgent: it has no effect, since all records have priority 0"),
        ("queues: {orders: {retry: {urgent: 50}}}", "queues.orders.retry.urgent: it has no effect, since all records"),
        (
            "queues: {orders: {group_shares: {a: 2}}}",
            "queues.orders.group_shares: it has no effect, since records have no",
        ),
        (
            "queues: {orderz: {retry: {max_retries: 1}}}",
            "queues.orderz: it has no effect, since store.topics has no such topic, did you mean 'orders'?",
        ),
        ("dlq: {enabled: false, topic_suffix: .x}", "dlq.topic_suffix: it has no effect, since dlq.enabled is false"),
    ],
)
def test_a_key_without_an_effect_on_this_store_is_named(write: Any, rest: str, warning: str) -> None:
    path = write(STORE % ("", rest))
    (found,) = without_effect(load(path, {}), [])
    assert found.startswith(f"{path}: {warning}")


def test_the_suffix_of_topics_has_no_effect_on_other_stores(write: Any) -> None:
    (found,) = without_effect(load(write("dlq: {topic_suffix: .x}"), {}), [])
    assert found.endswith("dlq.topic_suffix: it has no effect, since the store is not of type kafka")


def test_what_has_an_effect_on_this_store_is_not_named(write: Any) -> None:
    rest = "retry: {urgent: 0}\nqueues: {orders: {retry: {max_retries: 1}}}\ndlq: {topic_suffix: .x}"
    assert list(without_effect(load(write(STORE % ("", rest)), {}), [])) == []
