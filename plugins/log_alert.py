"""Dead-letter sink `log-alert`: one ERROR line per letter, for whoever watches the log.

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
    """Keep a `file` sink beside it: a line is an alert, not a record."""

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        for dead_letter in dead_letters:
            last = dead_letter["errors"][-1] if dead_letter["errors"] else {}
            fields = {"job": dead_letter["id"], "handler": dead_letter["handler"], "cause": last.get("cause")}
            said = ": ".join(part for part in (last.get("type"), last.get("message")) if part)
            line = "dead letter job=%d handler=%s cause=%s: %s"
            logger.error(line, *fields.values(), said or "no message", extra={"fields": fields})
        return [dead_letter["id"] for dead_letter in dead_letters]

    def close(self) -> None:
        """Nothing is held open."""


@hookimpl
def supervisor_sinks() -> Mapping[str, type[Sink]]:
    return {"log-alert": LogAlert}
