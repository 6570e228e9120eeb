"""The program that runs the supervisor of a test, and the store of the clients in its workers.

The settings are those of the test with a store, a log and dead letters of their own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from supervisor import telemetry
from supervisor.client.replacement import Replacement, replace_stores
from supervisor.config.loading import load
from supervisor.config.settings import Settings, StoreSettings
from supervisor.events import SupervisorStarted
from supervisor.runtime.supervisor import Supervisor
from supervisor.stores.sqlite.store import SqliteStore
from supervisor.text.redaction import Mask
from supervisor.workers.system import linux

STARTED = b"started\n"


def use_store(path: str) -> None:
    """Let all clients of this process use this SQLite store: called by a plugin of each worker."""
    replace_stores(Replacement(lambda: SqliteStore(Path(path))))


def main(order: dict[str, Any], parent_death: int) -> int:
    linux.arm_parent_death(parent_death)
    settings = _settings(order)
    telemetry.configure(settings.log.level, "text", mask=Mask(settings.secrets))
    supervisor = Supervisor(settings, subscribers=[telemetry.LogSubscriber()])
    supervisor.bus.subscribe(lambda _: _report(), SupervisorStarted)
    try:
        return supervisor.run()
    finally:
        telemetry.stop()


def _settings(order: dict[str, Any]) -> Settings:
    settings = load(Path(order["config"]) if order["config"] else None)
    return settings.replace(
        store=StoreSettings(url=f"sqlite:///{order['store']}", options={"synchronous": "normal"}),
        plugins=settings.plugins.replace(paths=tuple(order["plugins"])),
        workers=settings.workers.replace(count=order["count"], queues=None),
        dlq=settings.dlq.replace(sinks=()),
        retention=settings.retention.replace(succeeded=None, cancelled=None, failed=None),
        unknown_handler=settings.unknown_handler.replace(grace=0.1),
    )


def _report() -> None:
    sys.stdout.buffer.write(STARTED)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), int(sys.argv[2])))
