"""A worker that SIGKILL does not end, since it waits in the kernel: its job is settled, another worker has its place, and it is
reported until it exits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.workers.interface import Timeouts
from supervisor.workers.system import linux, orphans, stuck
from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for
from tests.system.freezer import freezer
from tests.system.real_workers import World, lease, play

QUICK = Timeouts(kill=1.0)
HANDLERS = """
    import os, pathlib, time
    from supervisor import handler

    @handler(timeout="500ms", max_retries=0)
    def hang(job):
        pathlib.Path("part").write_text(str(os.getpid()))
        pathlib.Path("part").rename("pid")
        time.sleep(3600)

    @handler
    def noop(job): pass
"""


def test_the_job_of_a_worker_that_is_stuck_in_the_kernel_times_out_and_a_stop_exits_with_1(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    with freezer() as here:
        run = command.run()
        hanging, behind = command.enqueue("hang"), command.enqueue("noop")
        pid_file = command.folder / "pid"
        wait_for(pid_file.exists)
        here.freeze(pid := int(pid_file.read_text()))
        command.until(behind, "succeeded")
        error = command.until(hanging, "failed")["errors"][-1]
        assert error["cause"] == "timeout" and error["pid"] == pid
        assert "killed; its process is stuck in the kernel: state D" in error["message"]
        line = run.logged("was not ended by SIGKILL")
        assert f" WARNING worker 1 (pid {pid}) was not ended by SIGKILL: it is stuck in the kernel (state D" in line

        def shown() -> None:
            (supervisor,) = command.status()["supervisors"]
            assert {worker["pid"]: worker["state"] for worker in supervisor["workers"]}[pid].startswith(
                "stuck in the kernel: state D"
            )

        wait_for(shown)
        run.signal(signal.SIGTERM)
        assert run.wait(30) == 1
        assert "exit code 1; left behind: 1 processes that do not exit" in run.log
        assert proctree.is_alive(pid)


def test_the_report_about_a_stuck_worker_ends_when_it_exits(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    with freezer() as here:
        run = command.run()
        hanging, pid_file = command.enqueue("hang"), command.folder / "pid"
        wait_for(pid_file.exists)
        here.freeze(pid := int(pid_file.read_text()))
        command.until(hanging, "failed")
        here.thaw()
        run.logged(f"(pid {pid}) was stuck in the kernel, and has exited")
        wait_for(lambda: pid not in [worker["pid"] for worker in command.status()["supervisors"][0]["workers"]])
        assert run.log.count(f"(pid {pid}) killed: job={hanging}") == 1
        run.signal(signal.SIGTERM)
        assert run.wait() == 0


def test_the_end_of_a_stuck_worker_is_reported_once_in_advance_and_once_when_it_exits(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        with freezer() as cold:
            cold.freeze(await here.begin(process, "hang"))
            process.kill()
            report = await here.end(process)
            assert report.stuck is not None and report.stuck.startswith("state D")
            assert len(await here.run(await here.worker(2), lease(2, "noop"))) == 1
            cold.thaw()
            await here.until(lambda: here.ended[process].signal == "SIGKILL")
        assert here.warnings == []

    play(tmp_path, scene, timeouts=QUICK)


def test_the_end_is_reported_in_advance_where_there_is_no_freezer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        await here.begin(process, "hang")
        with monkeypatch.context() as patched:
            patched.setattr(linux, "send_signal", lambda pidfd, number: True)
            patched.setattr(linux, "kill_group", lambda pid: None)
            patched.setattr(stuck, "will_do_no_more", lambda pid: True)
            process.kill()
            report = await here.end(process)
        assert report.stuck is not None and report.stuck.startswith("state S")
        await here.until(lambda: here.ended[process].signal == "SIGKILL")  # by the end of its parent-death pipe

    play(tmp_path, scene, timeouts=QUICK)


def test_a_worker_that_exits_when_its_time_is_up_is_not_reported_as_stuck(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        with freezer() as cold:
            cold.freeze(pid := await here.begin(process, "hang"))
            process.kill()
            await asyncio.sleep(0)
            cold.thaw()
            wait_for(lambda: not proctree.is_alive(pid))
            time.sleep(QUICK.kill)  # so that the loop finds both, the exit and the end of the time, in its next turn
            process._outlived_kill()  # and that, even before it
            report = await here.end(process)
            assert (report.stuck, report.signal) == (None, "SIGKILL")
        assert here.warnings == []

    play(tmp_path, scene, timeouts=QUICK)


def test_a_stop_does_not_wait_for_a_worker_that_is_known_to_be_stuck(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        with freezer() as cold:
            cold.freeze(pid := await here.begin(process, "hang"))
            process.kill()
            await here.end(process)
            await here.backend.stop()
            assert proctree.is_alive(pid)
            cold.thaw()
            await here.until(lambda: here.ended[process].stuck is None)

    play(tmp_path, scene, timeouts=QUICK)


def test_a_worker_whose_end_is_not_certain_is_not_reported_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        with freezer() as cold:
            cold.freeze(await here.begin(process, "hang"))
            monkeypatch.setattr(stuck, "will_do_no_more", lambda pid: len(asked.append(pid) or asked) > 3)
            process.kill()
            await here.until(lambda: len(asked) == 3)
            assert process not in here.ended
            assert ["can't be killed (state D" in line for line in here.warnings] == [True]
            assert (await here.end(process)).stuck is not None
            cold.thaw()
            await here.until(lambda: here.ended[process].stuck is None)

    asked: list[int] = []
    play(tmp_path, scene, timeouts=QUICK)


def test_a_forkserver_that_is_stuck_in_the_kernel_is_replaced_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        with freezer() as cold:
            (forkserver,) = here.forkservers
            cold.freeze(forkserver)
            assert "3s" in (await here.end(here.fork(2))).how
            ((pid, how),) = here.forkserver_exits
            assert pid == forkserver
            assert how.startswith("gave no answer within 3s and was killed; it is stuck in the kernel (state D")
            assert len(await here.run(await here.worker(3), lease(1, "noop"))) == 1
            process.kill()
            await here.end(process)
            cold.freeze(here.forkservers[1])
            await here.backend.stop()

    play(tmp_path, scene, timeouts=Timeouts(kill=1.0, forkserver_answer=3.0, forkserver_stop=1.0))


def test_only_a_process_with_a_pending_sigkill_is_known_to_do_no_more() -> None:
    assert not stuck.will_do_no_more(os.getpid())
    assert not stuck.will_do_no_more(2**22 + 1)
    with subprocess.Popen(["sleep", "60"]) as program:
        try:
            program.send_signal(signal.SIGSTOP)
            os.waitpid(program.pid, os.WUNTRACED)
            assert stuck.where(program.pid).startswith("state T")
        finally:
            program.kill()
    assert stuck.where(2**22 + 1) == "state unknown"


def test_a_frozen_program_of_a_lost_owner_is_killed_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "END_SECONDS", 3600.0)
    mark = "import sys, time; from supervisor.workers.system import marks; marks.set_mark('lost', 4711); print(); sys.stdout.flush(); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", mark], stdout=subprocess.PIPE) as program, freezer() as here:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            here.freeze(program.pid)
            orphans.end_programs_of("lost")
            assert stuck.will_do_no_more(program.pid) and proctree.is_alive(program.pid)
        finally:
            here.thaw()
            program.kill()
        assert program.wait() == -signal.SIGKILL
