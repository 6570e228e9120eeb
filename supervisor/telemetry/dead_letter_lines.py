"""Log what happens to dead letters and sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.events import DeadLettersPublished, DeadLettersStale, SinkCutOff, SinkMissing


class DeadLetterLines:
    """`writers` has the writer of each event."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self.writers: Mapping[type[Any], Callable[[Any], None]] = {
            DeadLettersPublished: self._published,
            DeadLettersStale: self._stale,
            SinkMissing: self._sink_warning,
            SinkCutOff: self._sink_warning,
        }

    def _published(self, event: DeadLettersPublished) -> None:
        for id in event.ids:
            self._log(
                logging.INFO, "job=%d dead letter accepted by sink %s", id, event.sink, job=id, sink=event.sink
            )  # fmt: skip

    def _stale(self, event: DeadLettersStale) -> None:
        line = "job=%d dead letter for sink %s: stale %s, nothing changed"
        for id in event.ids:
            self._log(logging.WARNING, line, id, event.sink, event.what, job=id, sink=event.sink)

    def _sink_warning(self, event: SinkMissing | SinkCutOff) -> None:
        self._log(logging.WARNING, "%s", event.text, sink=event.sink)
