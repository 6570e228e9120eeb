"""A plugin with the memory store of this process: the supervisor and a Client in its process open the same one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor import Job, handler, hookimpl
from supervisor.config import StoreSettings
from supervisor.stores import Opener
from supervisor.stores.memory import MemoryStore
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
