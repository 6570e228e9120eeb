"""Find mistakes in the settings of librdkafka before anything is done with the store."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from supervisor.config.kafka import KafkaSettings
from supervisor.errors import StoreError
from supervisor.kafka_client import client_settings
from supervisor.kafka_errors import ErrorTexts


def require_settings(settings: KafkaSettings) -> None:
    """Raise StoreError if librdkafka refuses one of its settings. The client that it makes for that connects to nothing."""
    kafka = client_settings(settings.bootstrap, settings.kafka)
    try:
        Consumer({**kafka, "bootstrap.servers": "", "group.id": settings.group, "log_level": 0}).close()
    except KafkaException as error:
        raise StoreError(ErrorTexts(settings.bootstrap, settings.kafka).setting(error.args[0])) from None
