"""Dead-letter sink `log-alert`: one ERROR line per dead letter, for people who watch the log.

dlq:
  sinks:
    - {type: log-alert}
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from supervisor import Sink, hookimpl

logger = logging.getLogger("supervisor.dead_letters")


class LogAlert:
    """Logs an alert, which is no record: keep a `file` sink beside it."""

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        for dead_letter in dead_letters:
            last = dead_letter["errors"][-1] if dead_letter["errors"] else {}
            fields = {"job": dead_letter["id"], "handler": dead_letter["handler"], "cause": last.get("cause")}
            message = ": ".join(part for part in (last.get("type"), last.get("message")) if part)
            line = "dead letter job=%d handler=%s cause=%s: %s"
            logger.error(line, *fields.values(), message or "no message", extra={"fields": fields})
        return [dead_letter["id"] for dead_letter in dead_letters]

    def close(self) -> None:
        """Do nothing: the sink has opened nothing."""


@hookimpl
def supervisor_sinks() -> Mapping[str, type[Sink]]:
    return {"log-alert": LogAlert}
