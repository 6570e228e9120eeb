"""Keys that contradict each other in the config of a Kafka store, though each is right by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from supervisor.config.diagnostics import Contradiction
from supervisor.config.document import Keys
from supervisor.config.kafka import KAFKA, MAX_TOPIC, KafkaSettings
from supervisor.config.settings import Settings, SinkSettings
from supervisor.text.names import did_you_mean
from supervisor.text.units import format_duration

DEFAULT_POLL_INTERVAL = 300_000
"""The default of librdkafka for max.poll.interval.ms."""
MAX_NAMED = 5


def kafka_contradictions(settings: Settings) -> Iterator[Contradiction]:
    store = settings.store.kafka
    if store is None:
        return
    yield from _times(store)
    yield from _dead_letter_topics(settings, store)
    yield from _queues(settings, store)
    limits = [
        *(("queues", name, "limit", it.limit) for name, it in settings.queues.items()),
        *(("queues", name, "group_limit", it.group_limit) for name, it in settings.queues.items()),
        *(("handlers", name, "limit", it.limit) for name, it in settings.handlers.items()),
    ]
    for *place, limit in limits:
        if limit is not None:
            message = (
                "expected no limit with a Kafka store, whose supervisors share nothing that could count their jobs"
            )
            yield Contradiction((*place,), message)


def _times(store: KafkaSettings) -> Iterator[Contradiction]:
    polled = _milliseconds(store.kafka.get("max.poll.interval.ms", DEFAULT_POLL_INTERVAL))
    if polled is not None and store.revoke_timeout * 1000 >= polled:
        message = f"expected less than max.poll.interval.ms ({format_duration(polled / 1000)})"
        yield Contradiction(("store", "revoke_timeout"), message, (("store", "kafka", "max.poll.interval.ms"),))
    heartbeat, session = (
        _milliseconds(store.kafka.get(f"{key}.ms")) for key in ("heartbeat.interval", "session.timeout")
    )
    if heartbeat is not None and session is not None and heartbeat > session / 2:
        path: Keys = ("store", "kafka", "heartbeat.interval.ms")
        yield Contradiction(path, "expected at most half of session.timeout.ms")


def _milliseconds(value: Any) -> float | None:
    """Return a number of librdkafka, or None for a value that librdkafka refuses itself."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _dead_letter_topics(settings: Settings, store: KafkaSettings) -> Iterator[Contradiction]:
    """Find topics for the dead letters of others. Such a topic needs a handler of its own: from the header, which is a copy, the
    handler that has failed would get the record again, without an end."""
    path: Keys = ("store", "topics")
    for own, sink in _sinks_here(settings, store):
        if sink.options.get("topic") in store.topics:
            message = "expected a topic that is not in store.topics: dead letters would be jobs again, without an end"
            yield Contradiction((*own, "topic"), message, (path,))
        suffix = sink.options.get("topic_suffix")
        for topic, target in ((topic, f"{topic}{suffix}") for topic in store.topics if isinstance(suffix, str)):
            key: Keys = (*own, "topic_suffix")
            if len(target) > MAX_TOPIC:
                message = f"expected a suffix with which the name of topic {topic} has at most {MAX_TOPIC} characters"
                yield Contradiction(key, message, (path,))
            if target in store.topics and store.topics[target] is None:
                message = f"expected a handler for topic {target}, which gets the dead letters of {topic}, or another suffix for these"
                yield Contradiction(path, message, (key,))


def _sinks_here(settings: Settings, store: KafkaSettings) -> Iterator[tuple[Keys, SinkSettings]]:
    """Yield the sinks that publish to the brokers of the store, each with the key that has its options."""
    for index, sink in enumerate(settings.dlq.sinks if settings.dlq.enabled else ()):
        servers = _servers(str(sink.options.get("bootstrap")))
        if sink.type == KAFKA and not servers.isdisjoint(_servers(store.bootstrap)):
            yield ("dlq",) if sink.is_of_store else ("dlq", "sinks", index), sink


def _servers(bootstrap: str) -> set[str]:
    return {server.strip() for server in bootstrap.split(",")}


def _queues(settings: Settings, store: KafkaSettings) -> Iterator[Contradiction]:
    """Find names of queues that can't have jobs, and topics whose records would be fetched and never run."""
    workers, topics = settings.workers, store.topics
    named: list[tuple[Keys, frozenset[str]]] = [
        (("workers", "queues"), workers.queues or frozenset()),
        *((("workers", "groups", name, "queues"), group.queues) for name, group in workers.groups.items()),
        *((("handlers", name, "queue"), frozenset([it.queue])) for name, it in settings.handlers.items() if it.queue),
    ]
    for path, queues in named:
        for queue in sorted(queues - topics.keys()):
            hint = did_you_mean(queue, topics) or f"; expected one of {', '.join(islice(topics, MAX_NAMED))}"
            yield Contradiction(path, f"no topic of the store is named {queue}{hint}", (("store", "topics"),))
    left_out = [topic for topic in topics if workers.queues is not None and topic not in workers.queues]
    if left_out and workers.queues and not workers.queues - topics.keys():
        message = f"expected all topics of the store: the records of {', '.join(left_out[:MAX_NAMED])} would be fetched and never run"
        yield Contradiction(("workers", "queues"), message, (("store", "topics"),))
