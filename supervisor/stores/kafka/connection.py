"""Whether the brokers answer. While they do not, the store is unavailable: no job starts whose offset could not be committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException

from supervisor.errors import StoreBroken, StoreUnavailable
from supervisor.kafka.client import serve_errors
from supervisor.kafka.errors import ErrorTexts

BROKEN = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.FENCED_INSTANCE_ID,
    KafkaError._FATAL,
})  # fmt: skip
"""Errors that last until a person has done something."""


class ConnectionLimits(NamedTuple):
    """Seconds."""

    ask: float = 2.0  # for an answer, while the client does not poll
    retry: float = 0.5  # between two questions while the brokers do not answer
    idle: float = 5.0  # without any answer, until they are asked


USUAL_LIMITS = ConnectionLimits()


class Connection:
    """Asks the brokers after an error, or when nothing has been received for a while. `look` is called on the thread that polls."""

    def __init__(
        self, client: Consumer, topics: Collection[str], texts: ErrorTexts, limits: ConnectionLimits = USUAL_LIMITS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._topics, self._texts, self._limits, self._now = client, topics, texts, limits, now
        self._unavailable = ""
        self._broken = ""
        self._cause: KafkaError | None = None
        self._answered = self._asked = now()
        self._suspect = False
        self.polled = False
        """Whether a thread polls the client. Until then its errors are fetched here."""

    def require(self) -> None:
        """Raise StoreUnavailable if the brokers do not answer. It may be called on any thread."""
        if self._broken:
            raise StoreBroken(self._broken)
        if self._unavailable:
            raise StoreUnavailable(self._unavailable)

    @property
    def answers(self) -> bool:
        return not (self._broken or self._unavailable)

    def answered(self) -> None:
        self._answered, self._suspect, self._unavailable, self._cause = self._now(), False, "", None

    def broken(self, error: str) -> None:
        """Note an error that lasts until a person has done something: no job starts until then."""
        self._broken = error

    def failed(self, error: KafkaError) -> None:
        """Note an error that the client has reported by itself."""
        if error.code() == KafkaError._FATAL:
            self.broken(f"{self._texts.of(error)}; restart the supervisor")
        self._suspect = self._suspect or error.code() == KafkaError._ALL_BROKERS_DOWN
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._cause = error

    def look(self) -> None:
        """Ask the brokers if there is a reason to."""
        now = self._now()
        due = self._limits.retry if self._suspect else self._limits.idle
        if now - max(self._answered, self._asked) >= due or (self._suspect and not self._unavailable):
            self.ask()

    def ask(self) -> None:
        """Ask the brokers for the topics, and note whether they answer."""
        try:
            self.require_topics()
        except StoreUnavailable as error:
            self._suspect, self._unavailable = True, str(error)
        self._asked = self._now()

    def require_topics(self) -> None:
        """Raise StoreUnavailable if the brokers do not answer, or a topic does not exist; StoreBroken if they refuse this user."""
        try:
            found = self._client.list_topics(timeout=self._limits.ask).topics
        except KafkaException as raised:
            error = raised.args[0]
            if not self.polled:
                serve_errors(self._client)
            text = self._texts.of(error, cause=self._cause)
            if error.code() in BROKEN:
                raise StoreBroken(text) from None
            raise StoreUnavailable(text) from None
        missing = sorted(topic for topic in self._topics if topic not in found or found[topic].error is not None)
        if missing:
            raise StoreUnavailable(f"no topic {', '.join(missing)}: create it, or correct store.topics")
        self.answered()
