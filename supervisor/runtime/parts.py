"""The parts of one run of a supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.dead_letters.publisher import DeadLetterPublisher
from supervisor.engine.coordinator import Coordinator
from supervisor.plugins.manager import PluginManager
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.hook_runner import HookRunner
from supervisor.runtime.periodic_timer import PeriodicTimer
from supervisor.runtime.registration import Registration
from supervisor.workers.pool import Pool


@dataclass(frozen=True)
class Serving:
    """The parts that move jobs."""

    engine: Coordinator
    dead_letters: DeadLetterPublisher


@dataclass
class Parts:
    """Each is idle until the start has come to it; `serving` does not exist before the store is joined and the plugins are
    loaded."""

    pool: Pool
    plugins: PluginManager
    registration: Registration
    forkservers: Forkservers
    hooks: HookRunner
    timer: PeriodicTimer
    serving: Serving | None = None
