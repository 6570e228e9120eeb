"""The limits of the jobs of a queue, a handler or a group."""

from __future__ import annotations

from supervisor.config import types as kind
from supervisor.config.section import Section, setting


class JobLimitSettings(Section):
    """How many jobs of a queue, of a handler, or of each group, may run at once, and be claimed within a time, over all supervisors."""

    running: int | None = setting(kind.or_none(kind.whole(1, 1_000_000)), default=None)
    rate: kind.Rate | None = setting(kind.or_none(kind.rate), default=None)

    @property
    def text(self) -> str:
        running = "" if self.running is None else f"{self.running} at once"
        return ", ".join(filter(None, (running, "" if self.rate is None else str(self.rate))))
