"""Run the jobs of a handler with a lower priority of their process (`nice`) and with limits of resources (`rlimits`).

Handlers without these options are not touched: the others get a function that sets the limits around the call.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from supervisor.config.settings import HandlerSettings, RlimitSettings
from supervisor.handlers import Handler
from supervisor.workers.child.identity import Identity, IdentityChanged

_PAGE = resource.getpagesize()
_KINDS = {"cpu": resource.RLIMIT_CPU, "memory": resource.RLIMIT_DATA, "files": resource.RLIMIT_NOFILE}


class PriorityLowered(IdentityChanged):
    """The worker may not raise its priority again: it must run no other job."""


class Lowered(Identity):
    """The identity of a worker that can't run another job."""

    def check(self, *, thorough: bool) -> None:
        raise PriorityLowered


def with_resources(
    handlers: Mapping[str, Handler], configured: Mapping[str, Mapping[str, Any]], lowered: Callable[[], None]
) -> dict[str, Handler]:
    """Return the handlers, with those limited that have the options, of which `configured` overrides those of the decorator.

    `lowered` is called after a job whose priority can't be raised again.
    """
    found = dict(handlers)
    for name, handler in handlers.items():
        own = {key: value for key in ("nice", "rlimits") if (value := getattr(handler, key)) is not None}
        if own or name in configured:
            settings = HandlerSettings(**configured.get(name, {})).over(HandlerSettings(**own))
            found[name] = replace(handler, function=_limited(handler.function, settings, lowered))
    return found


def _limited(
    function: Callable[..., Any], settings: HandlerSettings, lowered: Callable[[], None]
) -> Callable[..., Any]:
    nice, rlimits = settings.nice or 0, settings.rlimits or RlimitSettings()

    def run(job: Any) -> Any:
        priority, before = os.getpriority(os.PRIO_PROCESS, 0), [*map(resource.getrlimit, _KINDS.values())]
        try:
            if nice > priority:
                os.setpriority(os.PRIO_PROCESS, 0, nice)
            for kind, wanted in _soft_limits(rlimits).items():
                _set_soft(kind, wanted)
            return function(job)
        finally:
            for kind, (soft, _hard) in zip(_KINDS.values(), before, strict=True):
                with suppress(ValueError, OSError):
                    _set_soft(kind, soft)
            if os.getpriority(os.PRIO_PROCESS, 0) != priority:
                try:
                    os.setpriority(os.PRIO_PROCESS, 0, priority)
                except PermissionError:
                    lowered()

    return run


def _soft_limits(rlimits: RlimitSettings) -> dict[int, int]:
    """Return the limits by kind. Those of CPU time and memory are for the process, which has used some before the job."""
    limits: dict[int, int] = {}
    if rlimits.cpu is not None:
        limits[resource.RLIMIT_CPU] = ceil(time.process_time() + rlimits.cpu)
    if rlimits.memory is not None:
        limits[resource.RLIMIT_DATA] = _data_bytes() + rlimits.memory
    if rlimits.files is not None:
        limits[resource.RLIMIT_NOFILE] = rlimits.files
    return limits


def _data_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[5]) * _PAGE


def _set_soft(kind: int, wanted: int) -> None:
    """Set the soft limit, or the hard one if that is lower."""
    _soft, hard = resource.getrlimit(kind)
    infinite = resource.RLIM_INFINITY
    above = hard != infinite and (wanted == infinite or wanted > hard)
    resource.setrlimit(kind, (hard if above else wanted, hard))
