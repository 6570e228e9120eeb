"""Jobs that do to the event loop of their worker what they should leave: the jobs beside them must not notice."""

from __future__ import annotations

import pytest

from tests.system.command import Command, wait_for

CONFIG = """
workers: {count: 1, async: {concurrency: 20, cancel_grace: 300ms}}
retry: {max_retries: 0}
log: {level: info}
"""
PLUGIN = """
    import asyncio, os, pathlib, time
    from supervisor import handler

    @handler
    async def neighbour():
        pathlib.Path(f"{os.getpid()}.pid").touch()
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    @handler
    async def stops():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "went on"

    @handler
    async def cancels_all():
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__.endswith(".run"):  # not the jobs beside it
                task.cancel()
        await asyncio.sleep(0.01)
        return "went on"

    @handler(timeout="300ms")
    async def leaves_a_thread():
        await asyncio.to_thread(time.sleep, 3600)
"""


@pytest.mark.parametrize("handler", ["stops", "cancels_all"])
def test_the_loop_goes_on(command: Command, handler: str) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    neighbour = command.enqueue("neighbour")
    run = command.run()
    wait_for(lambda: [*command.folder.glob("*.pid")])
    job = command.until(command.enqueue(handler), "succeeded", timeout=60)
    assert job["result"] == "went on"
    (command.folder / "go").touch()
    command.until(neighbour, "succeeded", timeout=60)
    assert len([*command.folder.glob("*.pid")]) == 1
    assert "the worker itself failed" not in run.log


def test_the_log_names_calls_in_threads_that_go_on_after_a_timeout(command: Command) -> None:
    command.write(config=CONFIG, plugins={"p.py": PLUGIN})
    command.enqueue("leaves_a_thread")
    run = command.run("--drain")
    run.wait(60)
    assert "job=1 handler=leaves_a_thread attempt=1: has failed, but calls that it has made in threads" in run.log
    assert "sleep; give them a time limit of their own" in run.log
