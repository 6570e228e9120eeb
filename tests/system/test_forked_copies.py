"""Copies of a worker that a plugin forks and that return from it: each ends as a program of its own, and does no work of the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.real_workers import World, lease, play

HANDLERS = """
@handler
def fork(job):
    pid = os.fork()
    if pid == 0:
        sys.stdout.write("from the copy")
        exec(job.payload)
        return
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        ("raise RuntimeError('in the copy')", 1, "RuntimeError: in the copy"),
        ("sys.exit(5)", 5, None),
        ("sys.exit('wrong')", 1, "wrong"),
        ("sys.exit()", 0, None),
        ("1", 0, None),
        ("sys.excepthook = None; raise ValueError", 1, None),
    ],
)
def test_a_copy_ends_with_the_status_of_its_error(tmp_path: Path, code: str, status: int, shown: str | None) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "fork", f'"{code}"'), lease(2, "noop"))
        assert [(reply.kind, reply.result) for reply in replies] == [("ok", str(status)), ("ok", None)]
        await here.until(lambda: "from the copy" in here.lines_of(1, "stdout"))
        if shown is not None:
            lines = await here.until(lambda: here.lines_of(1, "stderr"))
            assert lines[-1] == shown
            assert not any("child/main.py" in line for line in lines)

    play(tmp_path, scene, HANDLERS)


WRAPPER = """
import os
from supervisor import hookimpl

@hookimpl(wrapper=True)
def supervisor_run(job):
    pid = os.fork()
    result = yield
    if pid == 0:
        raise RuntimeError("in the copy")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_a_copy_that_a_wrapper_made_is_no_second_worker(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, *(lease(n, "noop") for n in range(1, 21)))
        assert [(reply.job_id, reply.result) for reply in replies] == [(n, "1") for n in range(1, 21)]

    play(tmp_path, scene, other={"wrapper.py": WRAPPER})


HOOK = """
import os, sys
from supervisor import handler, hookimpl

@hookimpl
def supervisor_worker_started(worker):
    global status
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@handler
def status_of_copy(job):
    return status
"""

IMPORT = """
import os, sys
from supervisor import handler

pid = os.fork()
if pid == 0:
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@handler
def status_of_copy(job):
    return status
"""


@pytest.mark.parametrize("plugin", [HOOK, IMPORT], ids=["hook", "import"])
def test_a_copy_that_a_plugin_made_is_no_second_worker_and_ends_with_its_own_status(
    tmp_path: Path, plugin: str
) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        (reply,) = await here.run(process, lease(1, "status_of_copy"))
        assert reply.result == "7"

    play(tmp_path, scene, other={"forks.py": plugin})
