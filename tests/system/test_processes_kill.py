"""No process outlives what it belongs to: killed trees, a killed supervisor, a killed forkserver, orphans; and the stack of a hung job."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.workers.interface import Timeouts
from supervisor.workers.parent.stack_text import OWN_CODE, UNANSWERED
from supervisor.workers.parent.worker_process import Phase
from supervisor.workers.system import process_tree as proctree
from tests.system import real_workers
from tests.system.real_workers import World, gone, lease

DEAF = '''
def be_deaf():
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass

def start(job, program, **options):
    process = subprocess.Popen(program, **options)
    with open(job.payload["program"], "w") as file:
        file.write(str(process.pid))
    return process

SLEEPER = ["sh", "-c", 'trap "" TERM INT HUP; while :; do sleep 1; done']

@handler
def deaf_with_program(job):
    """Ignores every signal, holds the GIL in C, with a program that ignores them too."""
    be_deaf()
    start(job, SLEEPER)
    mark(job)
    ctypes.PyDLL(None).sleep(3600)

@handler
def loop(job):
    mark(job)
    while True: pass

@handler
def sleep_deaf(job):
    be_deaf()
    mark(job)
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

@handler
def sleep_masked(job):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    mark(job)
    time.sleep(3600)

@handler
def recurse(job):
    mark(job)
    def deeper(n):
        return 0 if n == 0 else 1 + deeper(n - 1)
    while True:
        deeper(500)

@handler
def regex(job):
    mark(job)
    re.match(r"(a+)+$", "a" * 64 + "b")

@handler
def gil(job):
    mark(job)
    while True: ctypes.PyDLL(None).sleep(3600)

@handler
def gil_deaf(job):
    be_deaf()
    mark(job)
    while True: ctypes.PyDLL(None).sleep(3600)

@handler
def gil_masked(job):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    mark(job)
    ctypes.PyDLL(None).sleep(3600)

@handler
def setsid(job):
    start(job, SLEEPER, start_new_session=True)
    mark(job)
    time.sleep(3600)

@handler
def leave_setsid(job):
    start(job, SLEEPER, start_new_session=True)

@handler
def daemon(job):
    """A program in a session of its own whose parent has exited: the forkserver is its parent now."""
    subprocess.run(
        ["sh", "-c", f"(setsid sh -c 'echo $$ > {job.payload['program']}; exec sleep 3600' &)"], check=True)
    mark(job)
    time.sleep(3600)
'''


def play(folder: Path, scene: Callable[[World], Awaitable[None]], handlers: str = DEAF, **options: Any) -> None:
    real_workers.play(folder, scene, handlers, **options)


def read_pid(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else 0


# --- killed trees


@pytest.mark.parametrize("snapshot", ["whole", "without the time for any"])
@pytest.mark.parametrize("job", ["deaf_with_program", "setsid", "daemon"])
def test_a_kill_ends_the_programs_of_the_job_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, snapshot: str
) -> None:
    if snapshot != "whole":
        monkeypatch.setattr(proctree, "SNAPSHOT_SECONDS", -1.0)

    async def scene(here: World) -> None:
        process, other = await here.worker(1), await here.worker(2)
        await here.begin(other, "hang", 7)
        pid = await here.begin(process, job, program=str(tmp_path / "program"))
        program = await here.until(lambda: read_pid(tmp_path / "program"))
        assert not gone(program)
        process.kill()
        assert (await here.end(process)).signal == "SIGKILL"
        await here.until(lambda: gone(pid) and gone(program))
        assert other not in here.ended

    play(tmp_path, scene)


def test_a_program_that_an_ended_worker_left_is_found_wherever_it_went(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.run(process, lease(1, "leave_setsid", {"program": str(tmp_path / "program")}))
        program = read_pid(tmp_path / "program")
        assert not gone(program)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)  # not by the supervisor, which takes a snapshot before
        await here.end(process)
        await here.until(lambda: gone(program))

    play(tmp_path, scene)


def test_a_daemon_runs_as_long_as_its_worker_and_zombies_are_reaped(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process, other = await here.worker(1), await here.worker(2)
        await here.begin(process, "daemon", program=str(tmp_path / "program"))
        program = await here.until(lambda: read_pid(tmp_path / "program"))
        await here.run(other, *[lease(n, "litter") for n in range(2, 52)])
        (forkserver,) = here.forkservers
        await here.until(
            lambda: sorted(proctree.children(forkserver)) == sorted([process.pid or 0, other.pid or 0, program])
        )
        assert not gone(program)
        process.kill()
        await here.until(lambda: gone(program))

    play(
        tmp_path, scene, DEAF + "\n@handler\ndef litter(job): subprocess.run(['sh', '-c', '(exit 0 &)'], check=True)\n"
    )


# --- stacks


@pytest.mark.parametrize(
    ("job", "line"),
    [
        ("loop", "while True: pass"),
        ("sleep_deaf", "time.sleep(3600)"),
        ("sleep_masked", "time.sleep(3600)"),
        ("regex", "re.match("),
        ("gil", "ctypes.PyDLL(None).sleep(3600)"),
        ("gil_masked", "ctypes.PyDLL(None).sleep(3600)"),
    ],
)
def test_the_stack_of_a_hung_job_is_reported_and_the_worker_is_killed_at_once(
    tmp_path: Path, job: str, line: str
) -> None:

    async def scene(here: World) -> None:
        process = await here.worker()
        await here.begin(process, job)
        if job == "sleep_deaf":  # the handler of the signal is there again after the next heartbeats
            before = here.heartbeats
            await here.until(lambda: here.heartbeats > before + 2)
        asked = time.monotonic()
        process.kill(with_stack=True)
        report = await here.end(process)
        assert time.monotonic() - asked < 5.0
        assert report.signal == "SIGKILL"
        source = (tmp_path / "plugins" / "jobs.py").read_text().splitlines()
        stack = report.stack or ""
        numbers = [int(part.split(" in ")[0]) for part in stack.split('jobs.py", line ')[1:]]
        assert numbers, f"no stack: {stack!r}"
        assert line in "".join(source[number - 1] for number in numbers) or job == "loop"
        assert f" in {job}" in stack
        assert str(OWN_CODE) not in stack

    play(tmp_path, scene, timeouts=Timeouts(stack=10.0))  # it is killed as soon as its stack has come, not after a wait


def test_a_missing_stack_of_a_job_that_ignores_all_signals_is_explained(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.begin(process, "gil_deaf")
        process.kill(with_stack=True)
        assert (await here.end(process)).stack == UNANSWERED

    play(tmp_path, scene)


def test_busy_workers_that_are_stopped_and_continued_again_and_again_run_on(tmp_path: Path) -> None:
    """Whatever reads the frames of a thread that runs may end the process by SIGSEGV."""

    async def scene(here: World) -> None:
        processes = [await here.worker(number) for number in (1, 2, 3, 4)]
        pids = [await here.begin(process, "recurse", process.number) for process in processes]
        for _ in range(15):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    os.kill(pid, number)
                await asyncio.sleep(0.4)  # longer than it took a worker to notice that it had been stopped
        assert here.ended == {}
        for process in processes:
            process.kill()
            await here.end(process)

    play(tmp_path, scene)


def test_a_call_that_the_request_for_its_stack_interrupts_is_no_success(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.begin(process, "hold_gil")
        process.kill(with_stack=True)
        assert (await here.end(process)).signal == "SIGKILL"
        assert here.replies == []

    play(tmp_path, scene)


# --- the supervisor is killed

DRIVER = """
import asyncio, sys
from pathlib import Path
from tests.system.real_workers import world

async def main(folder, *jobs):
    async with world(folder, Path(folder, "handlers").read_text()) as here:
        for number, name in enumerate(jobs, 1):
            child = await here.worker(number)
            await here.begin(child, name, number, program=str(folder / f"program-{number}"))
            print(child.pid, flush=True)
        print(here.forkservers[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""


def start_driver(folder: Path, *jobs: str) -> subprocess.Popen[str]:
    (folder / "handlers").write_text(DEAF)
    command = [sys.executable, "-c", DRIVER, str(folder), *jobs]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def wait_until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_no_process_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    jobs = ("deaf_with_program", "setsid", "daemon", "sleep_masked")
    with start_driver(tmp_path, *jobs) as driver:
        assert driver.stdout is not None
        pids = [int(driver.stdout.readline()) for _ in range(len(jobs) + 1)]
        programs = [read_pid(tmp_path / f"program-{n}") for n in (1, 2, 3)]
        assert all(programs)
        assert not any(gone(pid) for pid in pids + programs)
        driver.kill()
    wait_until(lambda: all(gone(pid) for pid in pids + programs))


def test_no_worker_is_left_when_its_forkserver_is_killed_and_then_the_supervisor(tmp_path: Path) -> None:
    """No forkserver knows it by then: the kernel kills it, as the supervisor's end of its parent-death pipe closes."""
    with start_driver(tmp_path, "deaf_with_program", "sleep_masked") as driver:
        assert driver.stdout is not None
        pids = [int(driver.stdout.readline()) for _ in range(3)]
        program = read_pid(tmp_path / "program-1")
        os.kill(pids[-1], signal.SIGKILL)
        assert not any(gone(pid) for pid in (*pids[:2], program))
        driver.kill()
    wait_until(lambda: all(gone(pid) for pid in (*pids, program)))


def test_a_process_whose_supervisor_exited_before_it_armed_parent_death_is_killed_too() -> None:
    program = "import os, time; from supervisor.workers.system import linux; r, w = os.pipe(); os.close(w); linux.arm_parent_death(r); time.sleep(60)"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, process_group=0, timeout=30).returncode == -signal.SIGKILL


@pytest.mark.parametrize("line", ["time.sleep(3600)", "ctypes.PyDLL(None).sleep(3600)"])
def test_a_forkserver_that_hangs_in_an_import_is_killed_with_the_supervisor(tmp_path: Path, line: str) -> None:
    pid_file = tmp_path / "forkserver"
    plugin = f"\nfrom pathlib import Path\nPath({str(pid_file)!r}).write_text(str(os.getpid()))\n{line}\n"
    (tmp_path / "handlers").write_text(plugin)
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as driver:
        wait_until(lambda: read_pid(pid_file))
        forkserver = read_pid(pid_file)
        assert not gone(forkserver)
        driver.kill()
    wait_until(lambda: gone(forkserver))


# --- the forkserver is killed


def test_running_jobs_outlive_the_forkserver_and_the_next_one_forks(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        go = tmp_path / "go"
        await here.begin(process, "wait", go=str(go))
        os.kill(here.forkservers[0], signal.SIGKILL)
        await here.until(lambda: len(here.forkservers) == 2)
        assert [how for _pid, how in here.forkserver_exits] == ["killed by SIGKILL"]
        go.touch()
        await here.until(lambda: here.replies)
        assert [(reply.job_id, reply.kind) for reply in here.replies] == [(1, "ok")]
        assert [reply.job_id for reply in await here.run(process, lease(2, "noop"))] == [2]
        assert [reply.job_id for reply in await here.run(await here.worker(2), lease(3, "noop"))] == [3]
        # An adopted worker is reaped by the supervisor itself, with its status.
        process.retire()
        report = await here.end(process)
        assert (report.exit_code, report.signal) == (0, None)
        assert report.peak_memory

    play(
        tmp_path,
        scene,
        "@handler\ndef wait(job):\n    mark(job)\n    while not os.path.exists(job.payload['go']): time.sleep(0.001)\n",
    )


def test_the_programs_of_an_adopted_worker_end_with_it(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        await here.begin(process, "daemon", program=str(tmp_path / "program"))
        program = await here.until(lambda: read_pid(tmp_path / "program"))
        os.kill(here.forkservers[0], signal.SIGKILL)
        await here.until(lambda: len(here.forkservers) == 2)
        assert not gone(program)
        process.kill()
        await here.end(process)
        await here.until(lambda: gone(program))

    play(tmp_path, scene)


def test_a_program_that_an_import_has_started_runs_as_long_as_the_workers_of_its_forkserver(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process, other = await here.worker(1), await here.worker(2)
        await here.begin(other, "daemon", program=str(tmp_path / "program"))
        program = await here.until(lambda: read_pid(tmp_path / "program"))
        (helper,) = map(int, (tmp_path / "helpers").read_text().split())
        os.kill(here.forkservers[0], signal.SIGKILL)
        await here.until(lambda: len(here.forkservers) == 2)
        other.kill()
        await here.until(lambda: gone(program))
        assert not gone(helper)
        process.kill()
        await here.until(lambda: gone(helper))
        newest = int((tmp_path / "helpers").read_text().split()[-1])
        assert not gone(newest)

    helper = f"""
import subprocess
with open({str(tmp_path / "helpers")!r}, "a") as file:
    print(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid, file=file)
"""
    play(tmp_path, scene, other={"helper.py": helper})


def test_orders_under_way_when_the_forkserver_exits_are_answered(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        os.kill(here.forkservers[0], signal.SIGSTOP)
        children = [here.fork(n) for n in range(5)]
        os.kill(here.forkservers[0], signal.SIGKILL)
        await here.until(lambda: all(process in here.ended for process in children))
        late = await here.worker(9)
        assert late in here.ready

    play(tmp_path, scene)


def test_a_worker_that_was_not_reaped_ends_when_its_forkserver_exits_too(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        assert process.pid is not None
        os.kill(here.forkservers[0], signal.SIGSTOP)
        os.kill(process.pid, signal.SIGSEGV)
        await here.until(lambda: process.phase is Phase.EXITED)
        os.kill(here.forkservers[0], signal.SIGKILL)
        assert (await here.end(process)).signal == "SIGSEGV"

    play(tmp_path, scene)


def test_jobs_sent_to_a_worker_that_has_exited_and_is_not_reaped_have_not_started(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        os.kill(here.forkservers[0], signal.SIGSTOP)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await here.until(lambda: process.phase is Phase.EXITED)
        frame = here.send(process, lease(1, "noop"), lease(2, "noop"))
        assert process.reclaim() == {frame: 2}
        os.kill(here.forkservers[0], signal.SIGCONT)
        await here.end(process)
        assert here.replies == []

    play(tmp_path, scene)


def test_a_worker_reaped_by_other_code_has_an_unknown_status(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        os.kill(here.forkservers[0], signal.SIGKILL)
        await here.until(lambda: len(here.forkservers) == 2)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        report = await here.end(process)
        assert (report.exit_code, report.signal) == (None, None)

    play(tmp_path, scene)


# --- imports


def test_a_plugin_that_hangs_exits_or_crashes_is_blamed_and_the_others_serve(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        errors = {Path(report.source).name: report.error for report in here.reports}
        assert errors["jobs.py"] is None
        assert errors["a_hangs.py"] == "its import took longer than 5s"
        assert errors["b_exits.py"] == "its import ended the process: exited with status 3"
        assert errors["c_crashes.py"] == "its import ended the process: killed by SIGSEGV"
        assert "SystemExit" in (errors["d_leaves.py"] or "")
        assert errors["e_talks.py"] is None
        assert [reply.kind for reply in await here.run(await here.worker(), lease(1, "noop"))] == ["ok"]

    play(
        tmp_path,
        scene,
        import_timeout=5.0,
        other={
            "a_hangs.py": "import ctypes\nctypes.PyDLL(None).sleep(3600)\n",
            "b_exits.py": "import os\nos._exit(3)\n",
            "c_crashes.py": "import ctypes\nctypes.string_at(0)\n",
            "d_leaves.py": "import sys\nsys.exit(0)\n",
            "e_talks.py": "import signal\nprint('x' * 10_000_000)\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\n",
        },
    )


def test_an_import_that_closes_the_standard_streams_breaks_no_channel(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, *[lease(n, "echo", str(n)) for n in range(1, 20)])
        assert [reply.result for reply in replies] == [str(n) for n in range(1, 20)]

    play(tmp_path, scene, other={"closes.py": "import os\nos.closerange(0, 3)\n"})


def test_threads_that_an_import_starts_are_named_in_a_warning(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        warnings = {Path(report.source).name: report.warnings for report in here.reports}
        assert any("busybody" in warning for warning in warnings["threads.py"])
        assert warnings["jobs.py"] == ()
        assert len(await here.run(await here.worker(), lease(1, "noop"))) == 1

    play(
        tmp_path,
        scene,
        other={
            "threads.py": "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(3600,), daemon=True, name='busybody').start()\n"
        },
    )


def test_a_spawned_worker_imports_the_plugins_itself_with_the_same_guarantees(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        (reply,) = await here.run(process, lease(1, "who"))
        assert reply.result == f"[{process.pid},{process.pid},1]"
        pid = await here.begin(process, "deaf_with_program", 2, program=str(tmp_path / "program"))
        assert pid == process.pid
        program = read_pid(tmp_path / "program")
        process.kill(with_stack=True)
        report = await here.end(process)
        assert report.signal == "SIGKILL"
        await here.until(lambda: gone(program))

    play(
        tmp_path,
        scene,
        DEAF + "\nimported_in = os.getpid()\n@handler\ndef who(job):\n"
        "    import threading\n    return [imported_in, os.getpgrp(), threading.active_count()]\n",
        start="spawn",
    )


def test_signals_to_whole_groups_disturb_no_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        go = tmp_path / "go"
        pid = await here.begin(process, "wait", go=str(go))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            os.killpg(pid, number)
            os.kill(here.forkservers[0], number)
        go.touch()
        await here.until(lambda: here.replies)
        assert here.replies[0].kind == "ok"
        assert len(await here.run(await here.worker(2), lease(2, "noop"))) == 1

    play(
        tmp_path,
        scene,
        "@handler\ndef wait(job):\n    mark(job)\n    while not os.path.exists(job.payload['go']): time.sleep(0.001)\n",
    )
