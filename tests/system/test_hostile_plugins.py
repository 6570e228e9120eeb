"""Plugins whose import does harm: the others serve, and the supervisor still exits."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.command import Command, wait_for

GOOD = """
    from supervisor import handler

    @handler
    def good(job):
        return "served"
"""

LINGERING = {
    "a thread that never ends": "import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()",
    "an exit hook that never ends": "import atexit, time; atexit.register(time.sleep, 3600)",
}


def serves(command: Command) -> None:
    id = command.enqueue("good")
    assert command.until(id, "succeeded")["result"] == "served"


@pytest.mark.parametrize("line", LINGERING.values(), ids=LINGERING.keys())
def test_threads_and_hooks_of_an_import_keep_no_forkserver_running(command: Command, line: str) -> None:
    command.write(plugins={"good.py": GOOD, "lingering.py": line})
    run = command.run()
    serves(command)
    run.kill()

    def gone() -> None:
        assert command.processes() == {}

    wait_for(gone)


@pytest.mark.parametrize("line", LINGERING.values(), ids=LINGERING.keys())
def test_threads_and_hooks_of_a_plugin_in_the_supervisor_do_not_delay_its_exit(command: Command, line: str) -> None:
    hook = "\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_started(info): pass\n"
    command.write(plugins={"good.py": GOOD, "lingering.py": line + hook})
    run = command.run()
    serves(command)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


FORKING = {
    "forks": "import os; os.fork()",
    "forks, and only the copy goes on": "import os\nif os.fork(): os._exit(0)",
    "daemonises": "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)",
}


@pytest.mark.parametrize("line", FORKING.values(), ids=FORKING.keys())
def test_a_copy_that_an_import_made_is_no_second_forkserver(command: Command, line: str) -> None:
    command.write(config="workers: {count: 4}\n", plugins={"good.py": GOOD, "copy.py": line})
    run = command.run()
    for _ in range(8):
        serves(command)
    forkserver = run.forkserver()
    rest = set(command.processes()) - {run.pid, forkserver}
    assert len(rest) == 4
    assert run.log.count("forkserver started") == 1


def test_a_copy_that_an_import_made_is_no_second_supervisor(command: Command) -> None:
    hook = "\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_started(info): pass\n"
    command.write(plugins={"good.py": GOOD, "copy.py": "import os; os.fork()" + hook})
    run = command.run()
    serves(command)
    assert len(command.processes()) == 4
    assert run.log.count("supervisor started") == 1


STREAMS = {
    "closed": "import sys; sys.stdout.close(); sys.stderr.close()",
    "none": "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "raising": "import sys\nclass Raising:\n    def __getattr__(self, name): raise OSError(name)\nsys.stdout = sys.stderr = Raising()",
}


@pytest.mark.parametrize("line", STREAMS.values(), ids=STREAMS.keys())
def test_standard_streams_that_an_import_broke_are_whole_in_workers(command: Command, line: str) -> None:
    command.write(plugins={"good.py": GOOD, "streams.py": line})
    run = command.run()
    serves(command)
    assert "its workers keep running" not in run.log


UNSENDABLE = {
    "a float of its own kind": """
        from supervisor import handler
        class Seconds(float): pass
        @handler(timeout=Seconds(30), backoff={"base": Seconds(1)})
        def odd(job): pass
    """,
    "an exception whose name is no text": r"""
        from supervisor import handler
        @handler(never_retry=type("\udc80", (Exception,), {}))
        def odd(job): pass
    """,
    "a thread whose name is no text": r"""
        import threading, time
        threading.Thread(target=time.sleep, args=(3600,), name="\udc80", daemon=True).start()
    """,
}


@pytest.mark.parametrize("text", UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_whatever_a_plugin_declares_can_be_reported(command: Command, text: str) -> None:
    command.write(plugins={"good.py": GOOD, "odd.py": text})
    command.run()
    serves(command)


@pytest.mark.parametrize("text", ["", "raise OSError('\\udc80')", "import time; time.sleep(3600)"])
def test_a_file_whose_name_is_no_text_is_a_plugin_too(command: Command, text: str) -> None:
    command.write(config="plugins: {paths: [plugins], import_timeout: 3s}\n", plugins={"good.py": GOOD})
    (command.folder / "plugins" / os.fsdecode(b"\xff.py")).write_text(text)
    command.run()
    serves(command)
    assert command.call("plugins").code in (0, 2)
    assert command.call("check").code == (2 if text else 0)


def test_output_of_an_import_disturbs_no_check(command: Command) -> None:
    command.write(plugins={"good.py": GOOD, "loud.py": "print('x' * 3_000_000)"})
    for name in ("check", "plugins"):
        ended = command.call(name)
        assert (ended.code, ended.err) == (0, "")


def test_a_working_directory_that_a_plugin_changed_in_the_supervisor_changes_no_path(command: Command) -> None:
    moving = """
        import os
        from supervisor import handler, hookimpl
        os.chdir("/")
        os.umask(0o777)
        @hookimpl
        def supervisor_started(info): pass
        @handler(max_retries=0)
        def bad(job): raise ValueError
    """
    command.write(
        config="dlq: {sinks: [{type: file, path: dead.jsonl}]}\n", plugins={"good.py": GOOD, "moving.py": moving}
    )
    run = command.run()
    serves(command)
    id = command.enqueue("bad")
    wait_for(lambda: command.job(id)["dead_letter"] == "delivered")
    assert (command.folder / "dead.jsonl").read_text().count("\n") == 1
    run.signal(signal.SIGHUP)
    run.logged("config reloaded")
    serves(command)
