"""One handler run by hand: `supervisor call`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.command import Command, Ended, wait_for

PLUGIN = """
import logging, os, sys, time
from datetime import date
from supervisor import Client, Job, Reject, Retry, handler, hookimpl

opened = []

@hookimpl
def supervisor_worker_started(worker):
    opened.append("connection")

@hookimpl
def supervisor_worker_stopping(worker):
    print("closed")

@hookimpl(wrapper=True)
def supervisor_run(job):
    print("before", job.handler)
    result = yield
    print("after", job.handler)
    return result

@handler
def typed(path: str, day: date, width: int = 200, *, job: Job):
    return {"path": path, "day": day, "width": width, "id": job.id, "opened": opened}

@handler
def plain(job):
    return job.payload

@handler
def noisy(job):
    print("printed")
    os.system("echo from a program")
    logging.getLogger(__name__).info("logged %d", 7)
    logging.debug("too low")
    return 1

@handler
def fails(job):
    raise ValueError("order 17\\ndoes not exist")

@handler(never_retry=KeyError)
def fails_for_good(job):
    return {}["key"]

@handler
def later(job):
    raise Retry("busy", after="30s")

@handler
def rejects(job):
    raise Reject("no such customer")

@handler
def no_json(job):
    return object()

@handler
def exits(job):
    sys.exit(3)

@handler
def forks(job):
    if os.fork() == 0:
        raise SystemExit(5)
    return os.waitstatus_to_exitcode(os.wait()[1])

@handler
def hangs(job):
    print("hangs", flush=True)
    try:
        time.sleep(3600)
    finally:
        print("cleaned up")

@handler
def debugged(job):
    answer = 41
    breakpoint()
    return answer + 1

@handler
def left_debugger(job):
    import pdb
    exec("raise SystemExit(1)", vars(pdb))

@handler
def enqueues(job):
    with Client(create=True) as jobs:
        return jobs.enqueue("plain")
"""


@pytest.fixture
def calls(command: Command) -> Command:
    command.write(plugins={"mine.py": PLUGIN})
    return command


def failure(ended: Ended) -> str:
    assert (ended.code, ended.out) == (1, "")
    return ended.err.splitlines()[-1]


def test_the_result_is_on_standard_output_and_all_else_on_standard_error(calls: Command) -> None:
    ended = calls.call("call", "noisy")
    assert (ended.code, ended.out) == (0, "1\n")
    lines = ended.err.splitlines()
    assert lines[:3] == ["before noisy", "printed", "from a program"]
    assert lines[3].endswith("Z INFO mine: logged 7")
    assert lines[4:] == ["after noisy", "closed"]


def test_a_payload_is_bound_to_the_parameters_and_the_hooks_of_a_worker_run(calls: Command) -> None:
    ended = calls.call("call", "typed", '{"path": "cat.png", "day": "2030-01-31"}')
    expected = {"path": "cat.png", "day": "2030-01-31", "width": 200, "id": 0, "opened": ["connection"]}
    assert (ended.code, json.loads(ended.out)) == (0, expected)


def test_a_payload_that_does_not_fit_is_named(calls: Command) -> None:
    last = failure(calls.call("call", "typed", '{"pat": "cat.png", "day": "2030-01-31"}'))
    assert last.startswith("Error: rejected: InvalidPayload: payload.path: missing; payload.pat: unexpected")
    assert last.endswith("(a job would fail for good)")


def test_a_payload_is_read_from_standard_input(calls: Command) -> None:
    assert calls.call("call", "plain", "-", input='["ü", null]').out == '["ü",null]\n'


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("fails", "failed: ValueError: order 17 does not exist (a job would be retried after its backoff, if it"),
        ("fails_for_good", "failed: KeyError: 'key' (a job would fail for good)"),
        ("later", "retry: supervisor.handlers.Retry: busy (a job would be retried after 30s, if it had a retry left)"),
        ("rejects", "rejected: supervisor.handlers.Reject: no such customer (a job would fail for good)"),
        ("no_json", "failed: BadResult: the handler succeeded, but its result can't be stored"),
        ("exits", "failed: SystemExit: 3 (a job would be retried"),
    ],
)
def test_a_failure_is_what_it_would_be_for_a_job(calls: Command, handler: str, message: str) -> None:
    assert failure(calls.call("call", handler)).startswith(f"Error: {message}")


def test_a_traceback_has_the_frames_of_the_plugin_only(calls: Command) -> None:
    err = calls.call("call", "fails").err
    files = {line.split('"')[1] for line in err.splitlines() if line.startswith("  File ")}
    assert files == {str(calls.folder / "plugins/mine.py")}


def test_a_result_steers_no_terminal_and_is_not_lost_without_an_error(calls: Command) -> None:
    assert calls.call("call", "plain", '"\\u009b2J"').out == '"\\u009b2J"\n'
    with open("/dev/full", "wb") as full:
        arguments = calls.arguments("call", "plain")
        ended = subprocess.run(arguments, env=calls.env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1 and "Error: standard output: No space left on device" in ended.stderr


def test_a_job_that_forks_has_one_result(calls: Command) -> None:
    assert calls.call("call", "forks").out == "5\n"


def test_a_handler_enqueues_into_the_store_of_the_config(calls: Command, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = calls.arguments("call", "enqueues")
    assert subprocess.check_output(arguments, cwd=elsewhere, env=calls.env, stderr=subprocess.DEVNULL) == b"1\n"
    assert calls.job(1)["handler"] == "plain"


def test_no_store_is_made(calls: Command) -> None:
    assert calls.call("call", "plain").code == 0
    assert not (calls.folder / "jobs.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plane"], "handler 'plane': no plugin has it, did you mean 'plain'?"),
        (["plain", "{a"], "payload: not JSON"),
        (["plain", "[1e999]"], "payload: not JSON"),
        (["plain", "[" * 101 + "]" * 101], "payload: nested deeper than 100"),
    ],
)
def test_a_mistake_of_the_user_is_named(calls: Command, arguments: list[str], message: str) -> None:
    ended = calls.call("call", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err and "Traceback" not in ended.err


def test_a_plugin_that_does_not_load_is_named(calls: Command) -> None:
    calls.write(plugins={"broken.py": "from supervisor import handler\n1 / 0\n@handler\ndef other(job): ..."})
    broken = f"{calls.folder / 'plugins/broken.py'}:2: ZeroDivisionError: division by zero"
    ended = calls.call("call", "other")
    assert ended.code == 2 and f"Error: {broken}" in ended.err
    ended = calls.call("call", "plain")
    assert ended.out == "null\n" and f"Warning: {broken}" in ended.err


def test_a_folder_without_handlers_is_named(command: Command) -> None:
    ended = command.call("call", "plain")
    assert ended.code == 2 and f"{command.folder / 'plugins'}: no handler there" in ended.err.replace(", ", ": ")


def test_ctrl_c_ends_the_handler_with_its_traceback(calls: Command) -> None:
    out = calls.folder / "called.err"
    with out.open("wb") as err:
        process = subprocess.Popen(calls.arguments("call", "hangs"), env=calls.env, stderr=err, stdout=subprocess.PIPE)
    wait_for(lambda: "hangs\n" in out.read_text())
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0] == b"" and process.returncode == 130
    text = out.read_text()
    assert "cleaned up" in text and text.splitlines()[-1] == "KeyboardInterrupt"
    assert "closed" in text and "supervisor/workers" not in text


def test_the_debugger_works_at_a_terminal(calls: Command) -> None:
    primary, terminal = pty.openpty()
    process = subprocess.Popen(
        calls.arguments("call", "debugged"), env=calls.env, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE
    )
    os.close(terminal)
    seen = b""
    while b"(Pdb) " not in seen:
        seen += os.read(primary, 1000)
    os.write(primary, b"answer = 99\n")
    while seen.count(b"(Pdb) ") < 2:
        seen += os.read(primary, 1000)
    os.write(primary, b"c\n")
    assert process.communicate(timeout=30)[0] == b"100\n" and process.returncode == 0
    os.close(primary)


@pytest.mark.parametrize("handler", ["debugged", "left_debugger"])
def test_leaving_the_debugger_is_no_failure(calls: Command, handler: str) -> None:
    """The second handler ends as with the debugger of Python 3.14, in whatever Python."""
    ended = calls.call("call", handler, input="q\n")
    assert (ended.code, ended.out) == (130, "")
    assert "Traceback" not in ended.err


def test_root_calls_nothing_that_other_users_may_write(calls: Command) -> None:
    (calls.folder / "plugins").chmod(0o777)
    ended = calls.call("call", "plain")
    assert ended.code == (2 if os.geteuid() == 0 else 0)


def test_an_async_handler_is_awaited_within_its_wrappers(command: Command) -> None:
    plugin = """
        import asyncio
        from supervisor import handler, hookimpl

        @handler
        async def nap(seconds: float):
            await asyncio.sleep(seconds)
            return "woke"

        @hookimpl(wrapper=True)
        def supervisor_run(job):
            return [(yield)]
    """
    command.write(plugins={"p.py": plugin})
    ended = command.call("call", "nap", '{"seconds": 0.01}')
    assert (ended.code, ended.out) == (0, '["woke"]\n'), ended.err


ASYNC = """
    import asyncio, time
    from supervisor import handler

    async def goes_on():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async def generator():
        try:
            yield
        finally:
            await goes_on()

    kept = []

    @handler
    async def leaves():
        kept.extend((asyncio.create_task(goes_on()), asyncio.create_task(asyncio.sleep(3600)), generator()))
        await anext(kept[-1])
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        return "left"

    @handler
    async def awaits():
        try:
            print("begun", flush=True)
            await asyncio.sleep(3600)
        finally:
            print("tidied up")

    @handler
    async def blocks():
        print("begun", flush=True)
        time.sleep(3600)

    @handler
    async def is_stubborn():
        print("begun", flush=True)
        await goes_on()
"""


def test_what_an_async_handler_leaves_behind_does_not_hold_up_the_command(command: Command) -> None:
    command.write(plugins={"p.py": ASYNC})
    ended = command.call("call", "leaves")
    assert (ended.code, ended.out) == (0, '"left"\n'), ended.err
    assert "goes on 1s after it was cancelled, and is left: task goes_on, async generators" in ended.err


@pytest.mark.parametrize(
    ("handler", "text"),
    [("awaits", "tidied up"), ("blocks", "time.sleep(3600)"), ("is_stubborn", "the handler itself")],
)
def test_ctrl_c_ends_an_async_handler(command: Command, handler: str, text: str) -> None:
    command.write(plugins={"p.py": ASYNC})
    out = command.folder / "called.err"
    with out.open("wb") as err:
        process = subprocess.Popen(
            command.arguments("call", handler), cwd=command.folder, env=command.env, stderr=err, stdout=subprocess.PIPE
        )
    wait_for(lambda: "begun\n" in out.read_text())
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")  # it waits
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == b"" and process.returncode == 130
    assert text in out.read_text() and "KeyboardInterrupt" in out.read_text()
    assert "supervisor/workers" not in out.read_text()
