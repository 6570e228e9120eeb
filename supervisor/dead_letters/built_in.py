"""The sinks that come with the package, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.dead_letters.file_sink import FileSink
from supervisor.hooks import Sink, hookimpl


class BuiltInSinks:
    @hookimpl
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        return {"file": FileSink}
