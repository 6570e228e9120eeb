"""TERM and INT to a serving supervisor: it drains, or ends at once at the second signal, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.runtime.signals import SAME_SECONDS
from supervisor.workers.system import linux
from tests.system.command import Command, Running, wait_for

JOBS = {
    "jobs.py": """
        import ctypes, os, signal, subprocess, sys, time
        from pathlib import Path
        from supervisor import handler

        def mark(job):
            with open("begun", "a") as file:
                file.write(f"{job.id}\\n")

        @handler
        def gated(job):
            mark(job)
            while not os.path.exists("gate"):
                time.sleep(0.01)
            return "finished"

        @handler
        def hang(job):
            mark(job)
            time.sleep(3600)

        @handler
        def deaf(job):
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    pass
            program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
            subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
            mark(job)
            ctypes.PyDLL(None).sleep(3600)

        @handler
        def ignored(job):
            return subprocess.run(["grep", "-E", "^(SigIgn|SigBlk)", "/proc/self/status"], capture_output=True, text=True).stdout

        @handler
        def noop(job):
            pass
    """
}


def begun(command: Command) -> list[int]:
    file = command.folder / "begun"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_begun(command: Command, count: int) -> None:
    def all_begun() -> None:
        assert len(begun(command)) >= count

    wait_for(all_begun)


def serve(command: Command, config: str, *handlers: str) -> Running:
    """Start a supervisor, and wait until its workers run a job of each of these handlers."""
    command.write(config=config, plugins=JOBS)
    for handler in handlers:
        command.enqueue(handler)
    run = command.run()
    wait_begun(command, len(handlers))
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_jobs_are_finished_and_waiting_jobs_stay_as_they_are(command: Command, number: signal.Signals) -> None:
    command.write(config="workers: {count: 3}\n", plugins=JOBS)
    command.enqueue_many([{"handler": "gated"}] * 1003)
    run = command.run()
    wait_begun(command, 3)
    run.signal(number)
    run.logged("supervisor stopping")
    assert len(command.processes()) >= 4, "the workers run until their jobs end"
    (command.folder / "gate").touch()
    assert run.wait() == 0
    jobs = {job["id"]: job for job in command.jobs()}
    finished = {id for id, job in jobs.items() if job["state"] == "succeeded"}
    assert finished == set(begun(command)), "only what had begun was run, and all of that"
    assert len(finished) == 3
    assert {jobs[id]["result"] for id in finished} == {"finished"}
    assert {(job["state"], job["retries"], len(job["errors"])) for id, job in jobs.items() if id not in finished} == {
        ("ready", 0, 0)
    }
    assert command.status()["supervisors"] == []
    assert command.left_behind() == {}


def test_a_job_that_outlasts_the_grace_is_released_and_no_retry_is_counted(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\nretry: {max_retries: 0}\nshutdown: {grace: 500ms}\n", "deaf", "hang")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert {(job["state"], job["retries"], len(job["errors"])) for job in command.jobs()} == {("ready", 0, 0)}
    assert command.left_behind() == {}


def test_a_job_that_every_deploy_interrupts_keeps_all_its_retries(command: Command) -> None:
    command.write(config="workers: {count: 1}\nretry: {max_retries: 1}\nshutdown: {grace: 100ms}\n", plugins=JOBS)
    id = command.enqueue("gated")
    for interrupted in range(1, 4):
        run = command.run()
        wait_begun(command, interrupted)
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
    (command.folder / "gate").touch()
    command.run()
    job = command.until(id, "succeeded")
    assert (job["attempt"], job["retries"], job["errors"]) == (1, 0, [])
    assert begun(command) == [id] * 4


@pytest.mark.parametrize("first, second", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_forces_the_end(command: Command, first: signal.Signals, second: signal.Signals) -> None:
    run = serve(command, "workers: {count: 2}\nretry: {max_retries: 0}\nshutdown: {grace: 1h}\n", "deaf", "hang")
    run.signal(first)
    run.logged(
        "received: running jobs have shutdown.grace to end; a second TERM or INT kills and releases them at once"
    )
    if first == second:
        time.sleep(SAME_SECONDS)
    run.signal(second)
    run.logged(f"{second.name} received: running jobs are killed and released")
    assert run.wait() == 3
    assert {(job["state"], job["retries"], len(job["errors"])) for job in command.jobs()} == {("ready", 0, 0)}
    assert command.left_behind() == {}


def test_a_signal_that_is_sent_to_the_process_and_to_its_group_counts_once(command: Command) -> None:
    command.write(config="workers: {count: 1}\nshutdown: {grace: 1h}\n", plugins=JOBS)
    id = command.enqueue("gated")
    run = command.run(under=["timeout", "1h"])
    wait_begun(command, 1)
    run.signal(signal.SIGTERM)  # to `timeout`, which sends it twice
    run.logged("supervisor stopping")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert (command.job(id)["state"], command.job(id)["attempt"]) == ("succeeded", 1)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU])
def test_signals_by_which_others_end_a_program_lead_to_a_drain(command: Command, number: signal.Signals) -> None:
    run = command.run()
    run.logged("supervisor started")
    run.signal(number)
    run.logged(f"supervisor stopping: {number.name}")
    assert run.wait() == 0


def test_every_other_signal_that_can_be_caught_is_logged_and_ignored(command: Command) -> None:
    run = command.run()
    run.logged("supervisor started")
    numbers = [signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGSTKFLT]
    for number in (*numbers, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        run.signal(signal.Signals(number) if number in numbers else number)  # type: ignore[arg-type]
        run.logged(f"{linux.name_of_signal(number)} received: ignored: a supervisor has no use for it")
    for number in (signal.SIGWINCH, signal.SIGURG, signal.SIGCHLD, signal.SIGCONT, signal.SIGPIPE, signal.SIGXFSZ):
        run.signal(number)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


ALARMS = {
    "a.py": """
        import signal
        from supervisor import Sink, hookimpl

        class Nowhere(Sink):
            def publish(self, dead_letters):
                return [each.id for each in dead_letters]

        @hookimpl
        def supervisor_sinks():
            return {"nowhere": Nowhere}

        def late(number, frame):
            raise TimeoutError("the import takes too long")

        signal.signal(signal.SIGALRM, late)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 3600)
    """,
    "b.py": """
        import pathlib, signal
        from supervisor import handler, hookimpl

        def timers():
            return [signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]

        of_import = timers()

        @hookimpl
        def supervisor_started(info):
            pathlib.Path("part").write_text(repr(timers()))
            pathlib.Path("part").rename("of_supervisor")

        @handler
        def look(job):
            return [of_import, timers()]
    """,
}
NO_TIMER = [(0.0, 0.0)] * 3


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_timers_that_an_import_has_set_end_nothing_and_disturb_no_later_import(command: Command, start: str) -> None:
    command.write(
        config=f"workers: {{count: 1, start: {start}}}\ndlq: {{sinks: [{{type: nowhere}}]}}\n", plugins=ALARMS
    )
    run = command.run()
    job = command.until(command.enqueue("look"), "succeeded")
    assert job["result"] == [[list(timer) for timer in NO_TIMER]] * 2
    of_supervisor = command.folder / "of_supervisor"
    wait_for(of_supervisor.exists)
    assert of_supervisor.read_text() == repr(NO_TIMER)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_an_alarm_that_the_starter_has_set_leads_to_a_drain(command: Command) -> None:
    program = "import os, signal, sys; signal.alarm(3600); os.execvp(sys.argv[1], sys.argv[1:])"
    run = command.run(under=[sys.executable, "-c", program])
    run.logged("supervisor started")
    run.signal(signal.SIGALRM)
    run.logged("supervisor stopping: SIGALRM")
    assert run.wait() == 0


def test_a_job_that_ends_while_others_are_waited_for_is_settled_once(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\nshutdown: {grace: 3s}\n", "gated", "hang")
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert sorted(job["state"] for job in command.jobs()) == ["ready", "succeeded"]


def test_no_worker_is_started_during_a_drain(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\nshutdown: {grace: 1h}\n", "gated", "gated")
    started = run.log.count(") started")
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    # The job of a worker that crashes during the drain is retried; the worker is not replaced.
    killed = run.log.split("worker 1 (pid ")[1].split(")")[0]
    os.kill(int(killed), signal.SIGKILL)
    run.logged("worker 1 (pid " + killed + ") crashed")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert run.log.count(") started") == started
    assert sorted((job["state"], job["retries"]) for job in command.jobs()) == [("scheduled", 1), ("succeeded", 0)]


def test_a_signal_to_the_whole_process_group_leads_to_a_drain(command: Command) -> None:
    run = serve(command, "workers: {count: 2}\n", "gated", "gated")
    for pid in command.processes():
        os.kill(pid, signal.SIGTERM)
    os.killpg(run.pid, signal.SIGHUP)  # a HUP to the supervisor alone means a reload
    run.logged("supervisor stopping")
    (command.folder / "gate").touch()
    assert run.wait() == 0
    assert {(job["state"], job["retries"]) for job in command.jobs()} == {("succeeded", 0)}


def test_signals_during_the_end_do_not_change_the_exit_code(command: Command) -> None:
    command.write(config="workers: {count: 2}\n", plugins=JOBS)
    for _ in range(5):
        run = command.run()
        run.logged("supervisor started")
        codes = {0, 3}
        while run.code is None:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGTTOU):
                run.signal(number)
            time.sleep(0.002)
        assert run.code in codes, run.log
        assert "Traceback" not in run.log
        assert command.left_behind() == {}


class Terminal:
    """A supervisor in the foreground of a terminal of its own, as a person starts it."""

    def __init__(self, command: Command) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(command.folder)
                os.execve(command.arguments("run")[0], command.arguments("run"), command.env)
            finally:
                os._exit(127)

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def wait(self) -> int:
        """Return the exit code. Its output is read meanwhile, or a full terminal would hold it up."""
        os.set_blocking(self.master, False)
        status: list[int] = []

        def ended() -> bool:
            try:
                os.read(self.master, 1 << 16)
            except OSError:
                pass
            pid, how = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                status.append(how)
            return bool(pid)

        try:
            wait_for(ended)
        except AssertionError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        finally:
            os.close(self.master)
        return os.waitstatus_to_exitcode(status[0])


def test_ctrl_c_reaches_the_supervisor_alone(command: Command) -> None:
    command.write(config="workers: {count: 2}\n", plugins=JOBS)
    for _ in range(2):
        command.enqueue("gated")
    terminal = Terminal(command)
    wait_begun(command, 2)
    terminal.press_ctrl_c()

    def draining() -> None:
        assert [row["state"] for row in command.status()["supervisors"]] == ["draining"]

    wait_for(draining)
    (command.folder / "gate").touch()
    assert terminal.wait() == 0
    assert {(job["state"], job["retries"]) for job in command.jobs()} == {("succeeded", 0)}


def test_ctrl_c_pressed_twice_forces_the_end(command: Command) -> None:
    command.write(config="workers: {count: 1}\nshutdown: {grace: 1h}\n", plugins=JOBS)
    command.enqueue("deaf")
    terminal = Terminal(command)
    wait_begun(command, 1)
    terminal.press_ctrl_c()

    def draining() -> None:
        assert [row["state"] for row in command.status()["supervisors"]] == ["draining"]

    wait_for(draining)
    time.sleep(SAME_SECONDS)
    terminal.press_ctrl_c()
    assert terminal.wait() == 3
    assert [(job["state"], job["retries"]) for job in command.jobs()] == [("ready", 0)]


def test_programs_that_a_handler_starts_ignore_and_block_no_signal(command: Command) -> None:
    command.write(plugins=JOBS)
    id = command.enqueue("ignored")
    command.run()
    result = command.until(id, "succeeded")["result"]
    sets: dict[str, Any] = {
        name: int(bits, 16) for name, _, bits in (line.partition(":") for line in result.split("\n") if line)
    }
    assert sets == {"SigBlk": 0, "SigIgn": 0}


def test_locks_and_notifiers_are_removed_at_a_normal_end(command: Command, tmp_path: Path) -> None:
    command.write(plugins=JOBS)
    run = command.run()
    run.logged("supervisor started")
    assert list(tmp_path.glob("jobs.db.notify/*")) != []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert list(tmp_path.glob("jobs.db.notify/*")) == []


HANGS_IN_THE_IMPORT = """
    import os, time
    from supervisor import handler

    if os.path.exists("slow"):
        time.sleep(3600)

    @handler
    def pid(job):
        return os.getpid()
"""


def test_workers_that_no_forkserver_was_asked_for_are_not_waited_for(command: Command) -> None:
    config = "workers: {count: 1}\nplugins: {paths: [plugins], import_timeout: 1h}\nshutdown: {grace: 1h}\n"
    command.write(config=config, plugins={"jobs.py": HANGS_IN_THE_IMPORT})
    run = command.run()
    worker = command.until(command.enqueue("pid"), "succeeded")["result"]
    (command.folder / "slow").touch()
    os.kill(run.forkserver(), signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    run.logged("crashed: no job")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert command.left_behind() == {}
