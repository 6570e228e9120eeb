"""The settings of the consumer that have other defaults here, and mistakes in them before anything is done with the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException

from supervisor.config.kafka import KafkaSettings
from supervisor.errors import StoreError
from supervisor.kafka.client import client_settings
from supervisor.kafka.errors import ErrorTexts


def usual_settings(kafka: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the settings of the client that the user may set, and whose defaults are other ones here."""
    usual = {"auto.offset.reset": "earliest"}
    return usual if _brokers_assign(kafka) else {**usual, "partition.assignment.strategy": "cooperative-sticky"}


def is_cooperative(kafka: Mapping[str, Any]) -> bool:
    """Return whether the group takes single partitions from a member, and leaves it the others."""
    strategy = {**usual_settings(kafka), **kafka}.get("partition.assignment.strategy", "")
    return _brokers_assign(kafka) or "cooperative" in str(strategy).lower()


def _brokers_assign(kafka: Mapping[str, Any]) -> bool:
    """Return whether the user has chosen the group protocol of Kafka 4, in which the client has no strategy."""
    return str(kafka.get("group.protocol", "")).lower() == "consumer"


def require_settings(settings: KafkaSettings) -> None:
    """Raise StoreError if librdkafka refuses one of its settings. The client that it makes for that connects to nothing."""
    kafka = {**usual_settings(settings.kafka), **client_settings(settings.bootstrap, settings.kafka)}
    try:
        Consumer({**kafka, "bootstrap.servers": "", "group.id": settings.group, "log_level": 0}).close()
    except KafkaException as error:
        raise StoreError(ErrorTexts(settings.bootstrap, settings.kafka).setting(error.args[0])) from None
