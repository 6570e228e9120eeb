"""A supervisor that is signalled at any moment of its start ends, and leaves nothing.

SUPERVISOR_START_STEPS is how many moments are tried with each sequence of signals (25).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.system.command import Command, Running, wait_for

STEPS = int(os.environ.get("SUPERVISOR_START_STEPS", "25"))
STEP = 1.5 / STEPS
AT_ONCE = 5
SEQUENCES = {
    "TERM": [signal.SIGTERM],
    "TERM twice": [signal.SIGTERM] * 2,
    "INT, HUP, TERM four times": [signal.SIGINT, signal.SIGHUP, *[signal.SIGTERM] * 4],
}
SLOW = {
    "slow.py": """
        import subprocess, time
        from supervisor import handler, hookimpl

        time.sleep(0.2)

        @handler
        def noop(job):
            pass

        @hookimpl
        def supervisor_worker_started(worker):
            time.sleep(0.1)

        @hookimpl
        def supervisor_started(info):
            pass
    """
}


def interrupted_before_main(run: Running) -> bool:
    """Return whether Python was interrupted before it ran the module: then it prints a traceback without our files."""
    return "Traceback" in run.log and "/supervisor/" not in run.log


def starts(command: Command, offset: float) -> Iterator[list[tuple[Running, float]]]:
    """Start supervisors, a few at a time; yield each with the seconds after which it is to be signalled."""
    for first in range(0, STEPS, AT_ONCE):
        steps = range(first, min(first + AT_ONCE, STEPS))
        yield [(command.run(), STEP * step + offset) for step in steps]


def send(run: Running, numbers: Sequence[signal.Signals]) -> None:
    for number in numbers:
        run.signal(number)
        time.sleep(0.001)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_supervisor_signalled_at_its_start_ends_and_leaves_nothing(command: Command, name: str) -> None:
    """The moments of one sequence lie between those of the others."""
    numbers, offset = SEQUENCES[name], STEP * [*SEQUENCES].index(name) / len(SEQUENCES)
    command.write(config="workers: {count: 3}\n", plugins=SLOW)
    id = command.enqueue("noop", None, "--delay", "1h")
    killed = (-numbers[0], -signal.SIGTERM, -signal.SIGHUP)
    for runs in starts(command, offset):
        began = time.monotonic()
        for run, after in runs:
            time.sleep(max(0.0, began + after - time.monotonic()))
            send(run, numbers)
        for run, _ in runs:
            code = run.wait()
            if interrupted_before_main(run):
                assert code in (1, *killed) and signal.SIGINT in numbers, run.log
                continue
            if "supervisor stopping" in run.log:
                assert code in ((0,) if len(numbers) == 1 else (0, 3)), run.log
            else:  # it did not yet handle signals
                assert code in (*killed, 130), run.log
            assert "Traceback" not in run.log or code < 0
    assert command.job(id)["state"] == "scheduled"
    assert command.status()["supervisors"] == []
    assert command.left_behind() == {}


def test_an_import_that_hangs_does_not_hold_up_the_end(command: Command) -> None:
    command.write(
        config="plugins: {paths: [plugins], import_timeout: 1h}\n",
        plugins={"hangs.py": "import ctypes, pathlib\npathlib.Path('begun').touch()\nctypes.PyDLL(None).sleep(3600)\n"},
    )
    run = command.run()
    wait_for((command.folder / "begun").exists)
    run.signal(signal.SIGTERM)
    assert run.wait(4.0) == 0
    assert command.left_behind() == {}


HANGS_IN_OTHER_PROCESSES = """
import sys, time

if sys.orig_argv[1:3] != ["-m", "supervisor"]:
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(("run",), 1), (("run", "--drain"), 1), (("plugins",), 1), (("check",), 2)]
)
def test_a_command_reports_that_no_process_could_import_the_plugins_in_time(
    command: Command, arguments: tuple[str, ...], code: int
) -> None:
    (command.folder / "sitecustomize.py").write_text(HANGS_IN_OTHER_PROCESSES)
    command.env["PYTHONPATH"] = f"{command.folder}:{command.env['PYTHONPATH']}"
    command.write(config="plugins: {import_timeout: 1ms}\n", plugins={"empty.py": ""})
    ended = command.call(*arguments)
    assert ended.code == code
    assert (
        "Error: no forkserver could be started: the last one gave no answer within 0.001s and was killed\n" in ended.err
    )
    assert "Traceback" not in ended.err


def test_a_worker_that_exits_at_its_start_does_not_hold_up_the_end(command: Command) -> None:
    command.write(
        config="workers: {count: 4}\n",
        plugins={
            "dies.py": """
                import os
                from supervisor import handler, hookimpl

                @handler
                def noop(job): pass

                @hookimpl
                def supervisor_worker_started(worker):
                    os._exit(1)
            """
        },
    )
    id = command.enqueue("noop")
    run = command.run()
    run.logged("crashed")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    job = command.job(id)
    assert (job["state"], job["retries"]) == ("ready", 0), "no job is claimed while no worker can run it"


def test_a_second_supervisor_starts_while_the_first_writes(command: Command) -> None:
    command.write(config="workers: {count: 2}\n", plugins=SLOW)
    command.enqueue_many([{"handler": "noop"}] * 5000)
    runs = [command.run("--drain") for _ in range(3)]
    for run in runs:
        assert run.wait(60) == 0
    assert {job["state"] for job in command.jobs()} == {"succeeded"}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_jobs_run_although_the_current_folder_is_gone(command: Command, start: str) -> None:
    """This happens when a deployment removes the old release."""
    command.write(
        config=f"workers: {{count: 1, start: {start}}}\nstore: sqlite:///jobs.db\n",
        plugins={"noop.py": "from supervisor import handler\n@handler\ndef noop(job): ..."},
    )
    run = command.run(under=["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"])
    for _ in range(2):
        command.until(command.enqueue("noop"), "succeeded")
    assert "Traceback" not in run.log


def test_a_sink_whose_constructor_hangs_is_named_and_a_signal_ends_the_start(command: Command) -> None:
    plugin = """
        import time
        from supervisor import hookimpl
        class Pager:
            def __init__(self):
                open("begun", "w").close()
                time.sleep(99)
        @hookimpl
        def supervisor_sinks():
            return {"pager": Pager}
        """
    config = "dlq: {{sinks: [{{type: pager}}]}}\nplugins: {{paths: [plugins], import_timeout: {}}}\n"
    command.write(config=config.format("1s"), plugins={"pager.py": plugin})
    run = command.run()
    assert run.wait() == 2
    hangs = f"dlq.sinks[0]: sink 'pager' of type 'pager' ({command.folder}/plugins/pager.py:5)"
    assert f"{hangs}: its constructor has not returned within 1s (plugins.import_timeout)" in run.log
    command.write(config=config.format("60s"))
    (command.folder / "begun").unlink()
    run = command.run()
    wait_for((command.folder / "begun").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_check_and_run_name_every_mistake_of_the_sinks_also_beside_one_that_hangs(command: Command) -> None:
    plugin = """
        import time
        from supervisor import hookimpl
        class Hangs:
            def __init__(self):
                time.sleep(99)
        def raises():
            raise RuntimeError("no route")
        @hookimpl
        def supervisor_sinks():
            return {"hangs": Hangs, "raises": raises}
        """
    sinks = "{type: raises}, {type: hangs, name: slow}, {type: nosuch}, {type: file}"
    command.write(
        config=f"dlq: {{sinks: [{sinks}]}}\nplugins: {{paths: [plugins], import_timeout: 1s}}\n",
        plugins={"p.py": plugin},
    )
    expected = [
        "dlq.sinks[0]: sink 'raises' can't be built: RuntimeError: no route",
        f"dlq.sinks[1]: sink 'slow' of type 'hangs' ({command.folder}/plugins/p.py:5): its constructor has not returned",
        "dlq.sinks[2].type: no plugin has a sink 'nosuch'",
        "dlq.sinks[3]: sink 'file': missing a required argument: 'path'",
    ]
    for ended in (command.call("check"), command.call("run")):
        assert ended.code == 2
        assert [each for each in expected if each not in ended.err] == [], ended.err
