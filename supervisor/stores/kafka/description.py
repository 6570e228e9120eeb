"""The text of `supervisor check` about a Kafka store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from supervisor.config.kafka import KafkaSettings
from supervisor.config.settings import DlqSettings
from supervisor.stores.kafka.group import Group
from supervisor.stores.kafka.limits import NOT_HERE, NOWHERE
from supervisor.text.units import counted


def description(settings: KafkaSettings, dlq: DlqSettings, group: Group) -> list[str]:
    """Return a line for each topic, for the group, and for what the store can't do."""
    members = len(group.members())
    found = group.topics([*settings.topics, *(f"{topic}{dlq.topic_suffix}" for topic in settings.topics)])
    return [
        *(
            f"topic {name}: {_topic(settings, name, found[name])}{_target(name, dlq, found)}"
            for name in settings.topics
        ),
        f"group {settings.group}: {counted(members, 'member') if members else 'the brokers list no member'}",
        *_limits(),
    ]


def obstacles(group: Group) -> list[str]:
    missing = [name for name, partitions in group.topics().items() if partitions is None]
    return [f"no topic {', '.join(missing)}: create it, or correct store.topics"] if missing else []


def _topic(settings: KafkaSettings, name: str, partitions: int | None) -> str:
    exists = "it does not exist" if partitions is None else counted(partitions, "partition")
    handler = settings.topics[name]
    named = f"handler {handler}" if handler else f"a record names its handler in the header {settings.handler_header}"
    return f"{exists}, {named}"


def _target(name: str, dlq: DlqSettings, found: Mapping[str, int | None]) -> str:
    """Return what becomes of records that fail for good, as an addition to the line of their topic."""
    target = f"{name}{dlq.topic_suffix}"
    if not dlq.enabled:
        return ", no dead letters"
    exists = "" if found[target] is not None else ", which does not exist: create it, unless the brokers create topics"
    return f", dead letters to {target}{exists}"


def _limits() -> Iterator[str]:
    """Yield what the store can't do, with one line for all that has the same remedy."""
    for instead, limits in groupby([*NOT_HERE.values(), *NOWHERE.values()], lambda limit: limit.instead):
        whats = dict.fromkeys(limit.what for limit in limits)
        yield f"commands and clients can't {', '.join(whats)}: {instead}"
