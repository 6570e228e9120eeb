"""Handlers that do harm: exactly their own job is blamed, and the worker is replaced."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.command import Command, wait_for

HANDLERS = r"""
    import _thread, ctypes, faulthandler, os, resource, signal, sys, time
    from supervisor import handler, Retry

    @handler
    def good(job):
        return os.getpid()

    @handler(timeout="500ms", max_retries=0)
    def leave_group(job):
        os.setpgid(0, os.getpgid(os.getppid()))
        time.sleep(3600)

    @handler(timeout="500ms", max_retries=0)
    def stop_itself(job):
        os.kill(os.getpid(), signal.SIGSTOP)

    @handler(timeout="1s", max_retries=0)
    def hundred(job):
        for _ in range(100):
            if not os.fork():
                os.setsid()
                for number in range(1, 65):
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                time.sleep(3600)
        time.sleep(3600)

    @handler(timeout="3s", max_retries=0)
    def close_all(job):
        os.closerange(3, 4096)
        time.sleep(3600)

    @handler(timeout="3s", max_retries=0)
    def cover_all(job):
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3, 300):
            if fd != null:
                os.dup2(null, fd)

    @handler(max_retries=0)
    def hold_gil_later(job):
        _thread.start_new_thread(ctypes.PyDLL(None).sleep, (3600,))

    @handler(max_retries=0)
    def no_block(job):
        os.set_blocking(1, False)
        os.set_blocking(2, False)

    @handler(max_retries=0)
    def loud(job):
        os.write(1, b"x" * 3_000_000) == 3_000_000 or sys.exit("cut")
        print("y" * 3_000_000)
        print("z" * 3_000_000, file=sys.stderr)

    @handler(max_retries=0)
    def few_resources(job):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (1, 1))
        time.sleep(job.payload)

    class Class(Exception):
        @property
        def __class__(self): raise ZeroDivisionError

    class Text(str):
        def encode(self, *args): raise ZeroDivisionError

    class OddText(Exception):
        def __str__(self): return Text("text")

    class Raising(type):
        @property
        def __module__(cls): raise ZeroDivisionError

    class OfRaising(Exception, metaclass=Raising): pass

    class Everything(Exception):
        def __getattribute__(self, name): raise SystemExit

    class Later(Retry):
        after = property(lambda self: 1 / 0)
        def __init__(self): pass

    class NoName(Exception): pass
    NoName.__module__ = object()

    EVIL = [Class, OddText, OfRaising, Everything, Later, NoName]

    @handler(max_retries=0)
    def evil(job):
        raise EVIL[job.payload]()
"""
EVIL = 6


@pytest.fixture
def handlers(command: Command) -> Command:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    return command


def serves(command: Command) -> int:
    pid = command.until(command.enqueue("good"), "succeeded")["result"]
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize("name", ["leave_group", "stop_itself", "hundred"])
def test_a_timeout_ends_a_job_wherever_its_processes_went(handlers: Command, name: str) -> None:
    run = handlers.run()
    id = handlers.enqueue(name)
    assert handlers.until(id, "failed")["errors"][-1]["cause"] == "timeout"
    serves(handlers)
    wait_for(lambda: len(handlers.processes()) == 3)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


@pytest.mark.parametrize("with_forkserver", [True, False])
def test_a_job_that_has_left_its_group_is_killed_with_the_supervisor(handlers: Command, with_forkserver: bool) -> None:
    run = handlers.run()
    id = handlers.enqueue("leave_group", None, "--timeout", "none")
    handlers.until(id, "in_flight")
    wait_for(lambda: len(handlers.processes()) == 3)
    (worker,) = set(handlers.processes()) - {run.pid, run.forkserver()}
    wait_for(lambda: os.getpgid(worker) != worker)
    run.signal(signal.SIGSTOP)  # it starts no other forkserver
    if not with_forkserver:
        os.kill(run.forkserver(), signal.SIGKILL)
    run.kill()
    wait_for(lambda: handlers.processes() == {})


@pytest.mark.parametrize("name", ["close_all", "cover_all"])
def test_channels_that_a_job_broke_harm_that_job_alone(handlers: Command, name: str) -> None:
    handlers.run()
    id = handlers.enqueue(name)
    serves(handlers)
    assert handlers.until(id, "failed")["errors"][-1]["cause"] == "crash"


def test_a_thread_that_a_job_left_with_the_gil_blocks_no_other_job(handlers: Command) -> None:
    handlers.write(config="workers: {count: 1, heartbeat: 200ms, heartbeat_timeout: 1s}\n")
    handlers.run()
    handlers.enqueue("hold_gil_later")
    serves(handlers)


def test_output_that_a_job_left_non_blocking_is_blocking_for_the_next(handlers: Command) -> None:
    handlers.run()
    serves(handlers)
    handlers.until(handlers.enqueue("no_block"), "succeeded")
    id = handlers.enqueue("loud")
    job = handlers.until(id, "succeeded")
    assert job["errors"] == []


def test_a_job_without_any_resource_left_is_not_taken_for_hung(handlers: Command) -> None:
    handlers.write(config="workers: {count: 1, heartbeat: 200ms, heartbeat_timeout: 1s}\n")
    handlers.run()
    id = handlers.enqueue("few_resources", 3)
    assert handlers.until(id, "succeeded")["errors"] == []


def test_exceptions_whose_attributes_raise_are_reported(handlers: Command) -> None:
    run = handlers.run()
    ids = [handlers.enqueue("evil", number) for number in range(EVIL)]
    errors = [handlers.until(id, "failed")["errors"][-1] for id in ids]
    assert [error["cause"] for error in errors] == ["exception"] * EVIL
    assert all(error["type"] for error in errors)
    assert "crashed" not in run.log
