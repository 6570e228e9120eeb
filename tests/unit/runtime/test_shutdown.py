"""The waits of the shutdown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.events import Bus
from supervisor.runtime.forkservers import Forkservers
from supervisor.runtime.shutdown import ExitCode, Settled, Shutdown, ShutdownLimits
from supervisor.runtime.signals import StopRequest
from supervisor.runtime.tasks import start_task

UNUSED: Any = SimpleNamespace()


class EndlessPruning:
    begun = 0

    async def prune(self) -> None:
        self.begun += 1
        await asyncio.get_running_loop().create_future()


def make_shutdown(stop: StopRequest, **limits: float) -> Shutdown:
    return Shutdown(UNUSED, stop, Bus(), 30.0, ShutdownLimits(**limits))


def test_a_supervisor_that_is_signalled_to_end_does_not_prune() -> None:
    async def act() -> None:
        stop, engine = StopRequest(), EndlessPruning()
        shutdown = make_shutdown(stop, flush=3600.0)
        stop.request("drained")
        pruning = asyncio.ensure_future(shutdown.prune(engine))  # type: ignore[arg-type]
        while not engine.begun:
            await asyncio.sleep(0)
        stop.on_signal("SIGTERM", 0.0)
        await pruning
        await shutdown.prune(engine)  # type: ignore[arg-type]
        assert engine.begun == 1

    asyncio.run(asyncio.wait_for(act(), 30))


def test_a_second_signal_cuts_short_the_waits_of_the_shutdown() -> None:
    async def act() -> None:
        stop = StopRequest()
        never = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(make_shutdown(stop, forced=0.01).wait_for(never, 3600.0))
        await asyncio.sleep(0)
        stop.forced.set()
        assert await waiting is False
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(act(), 30))


def test_a_second_signal_cuts_short_the_wait_for_the_workers_of_an_old_forkserver() -> None:
    async def act() -> None:
        stop = StopRequest()
        stop.forced.set()
        forkservers = Forkservers("us", UNUSED, asyncio.get_running_loop())
        never = asyncio.get_running_loop().create_future()
        forkservers.retire(UNUSED, lambda backend: never)
        assert not await make_shutdown(stop, forced=0.01).wait_for(forkservers.retired())
        await forkservers.stop()
        assert never.cancelled()

    asyncio.run(asyncio.wait_for(act(), 30))


async def fail() -> None:
    raise ZeroDivisionError


def test_a_fault_in_a_task_ends_the_supervisor_with_a_failure() -> None:
    async def act() -> None:
        stop = StopRequest()
        asyncio.get_running_loop().set_exception_handler(stop.handle_fault)
        await asyncio.wait([start_task(fail())])
        await asyncio.sleep(0)
        assert stop.forced.is_set()
        assert make_shutdown(stop).exit_code(Settled.ALL, {}) == ExitCode.FATAL

    asyncio.run(act())


def test_a_fault_of_a_connection_does_not_end_the_supervisor() -> None:
    class Broken(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def act() -> None:
        stop, loop = StopRequest(), asyncio.get_running_loop()
        loop.set_exception_handler(stop.handle_fault)
        server = await loop.create_server(Broken, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        assert await reader.read() == b""
        assert not stop.requested.is_set()
        writer.close()
        server.close()

    asyncio.run(act())
