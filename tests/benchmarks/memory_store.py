"""A plugin with one memory store for this process, which the supervisor and the Client both open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor import Job, handler, hookimpl
from supervisor.config.settings import StoreSettings
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.opening import Opener
from tests.benchmarks import tasks

TYPE = "shared_memory"
STORE = MemoryStore()


@handler
def noop(job: Job) -> None:
    tasks.noop(job.payload)


@hookimpl
def supervisor_stores() -> Mapping[str, Opener]:
    return {TYPE: open_shared}


def open_shared(settings: StoreSettings, *, create: bool, base: Path) -> MemoryStore:
    return STORE.sibling()
