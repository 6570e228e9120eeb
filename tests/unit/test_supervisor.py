"""The supervisor's own tasks: a fault in one of them must not leave it standing still."""

from __future__ import annotations

import asyncio

from supervisor.config import Settings
from supervisor.engine.signals import StopRequest
from supervisor.engine.supervisor import ExitCode, Supervisor


async def fail() -> None:
    raise ZeroDivisionError


def test_a_fault_in_a_task_ends_the_supervisor_with_a_failure() -> None:
    async def scene() -> None:
        supervisor = Supervisor(Settings())
        supervisor._loop = asyncio.get_running_loop()
        supervisor._stop = StopRequest()
        supervisor._loop.set_exception_handler(supervisor._on_exception)
        task = supervisor._keep(fail())
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert supervisor._stop.forced.is_set()
        assert supervisor._exit_code(True, {}) == ExitCode.FATAL

    asyncio.run(scene())
