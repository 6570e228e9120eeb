"""Exit functions (`atexit`) of plugins: each runs once, in the process in which it was registered, and for a limited time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.workers.system import interpreter
from tests.system.command import Command

PLUGIN = """
    import atexit, multiprocessing.util, os, tempfile, threading, time
    from supervisor import handler, hookimpl

    def note(what):
        with open("notes", "a") as file:
            file.write(f"{what} {os.getpid()}\\n")

    def register(what):
        note(f"register:{what}")
        atexit.register(note, f"run:{what}")

    register("import")
    of_import = tempfile.TemporaryDirectory(prefix="of-import-", dir=".")

    @hookimpl
    def supervisor_worker_started(worker):
        register("hook")

    @hookimpl
    def supervisor_worker_stopping(worker):
        note("stopping")

    @handler
    def leave(job):
        global of_job
        register("job")
        of_job = tempfile.TemporaryDirectory(prefix="of-job-", dir=".")
        tempfile.tempdir = "."
        multiprocessing.util.get_temp_dir()
        threading.Thread(target=lambda: [threading.main_thread().join(), note("thread")]).start()
        return sorted(name for name in os.listdir() if name.startswith(("of-", "pymp-")))
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_exit_functions_run_once_in_the_process_that_registered_them(command: Command, start: str) -> None:
    command.write(config=f"workers: {{count: 2, start: {start}}}\n", plugins={"p.py": PLUGIN})
    id = command.enqueue("leave")
    run = command.run()
    for number in (1, 2):  # one that has not started is killed at the end
        run.logged(f"worker {number} (pid")
    command.until(id, "succeeded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    notes = [tuple(line.split()) for line in (command.folder / "notes").read_text().splitlines()]
    registered = [(what[9:], pid) for what, pid in notes if what.startswith("register:")]
    assert sorted((what[4:], pid) for what, pid in notes if what.startswith("run:")) == sorted(registered)
    assert {what for what, _pid in registered} == {"import", "hook", "job"}
    pids = [pid for what, pid in registered if what == "job"]
    own = [what for what, pid in notes if pid == pids[0] and not what.startswith("register:")]
    assert own[:4] == ["stopping", "thread", "run:job", "run:hook"]
    # The folders of the import are those of the forkserver, and with `spawn` those of each worker.
    made = command.job(id)["result"]
    assert {name.partition("-")[0] for name in made} == {"of", "pymp"}
    assert [name for name in made if (command.folder / name).exists()] == []


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_log_records_that_a_handler_has_gathered_are_written_once_at_the_end(command: Command, start: str) -> None:
    plugin = """
        import logging, logging.handlers, os
        from supervisor import handler
        own = logging.getLogger("own")
        own.addHandler(logging.handlers.MemoryHandler(1000, target=logging.FileHandler("own.log")))
        own.warning("imported by %d", os.getpid())

        @handler
        def speak(job):
            own.warning("job %d", job.id)
    """
    command.write(config=f"workers: {{count: 1, start: {start}}}\n", plugins={"p.py": plugin})
    ids = [command.enqueue("speak"), command.enqueue("speak")]
    assert command.run("--drain").wait() == 0
    lines = (command.folder / "own.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("job")] == [f"job {id}" for id in ids]
    imported = [line for line in lines if line.startswith("imported")]
    assert imported and len(imported) == len({*imported})


@pytest.mark.parametrize("by", ["fork", "spawn"])
def test_programs_of_an_import_are_there_until_its_exit_functions_have_run(command: Command, by: str) -> None:
    plugin = """
        import atexit, subprocess
        from supervisor import handler
        program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        @atexit.register
        def ask():
            answer, _ = program.communicate(b"still here")
            with open("notes", "ab") as file:
                file.write(answer + b"\\n")

        @handler
        def noop(job): ...
    """
    command.write(config=f"workers: {{count: 1, start: {by}}}\n", plugins={"p.py": plugin})
    assert command.run("--drain").wait() == 0
    notes = (command.folder / "notes").read_text().splitlines()
    assert set(notes) == {"still here"}


@pytest.mark.parametrize(
    ("exits", "named"),
    [
        ("atexit.register(flush)", "plugin.py:3, flush"),
        ("threading.Thread(target=flush).start()", "plugin.py:2, flush (thread Thread-1 (flush))"),
        ("from concurrent.futures import ThreadPoolExecutor as Pool; Pool(1, 'mine').submit(flush)", "(thread mine_0)"),
        (
            "import signal; atexit.register(signal.sigwait, {signal.SIGUSR1}); threading.Thread(target=flush).start()",
            "plugin.py:2, flush (thread Thread-1 (flush))",
        ),
    ],
)
def test_an_exit_function_that_does_not_end_is_cut_off_and_named(tmp_path: Path, exits: str, named: str) -> None:
    program = tmp_path / "plugin.py"
    program.write_text(f"import atexit, threading, time\ndef flush():\n    time.sleep(3600)\n{exits}\n")
    end = (
        "from pathlib import Path; from supervisor.plugins.importer import import_file; import_file(Path('plugin.py').absolute()); "
        "from supervisor.workers.system.interpreter import end_within; end_within(0.1, 3)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", end],
        cwd=tmp_path, env={"PYTHONPATH": str(Path(interpreter.__file__).parents[3])}, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "have not ended 0.1s after all other work" in ended.stderr
    assert named in ended.stderr


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_is_cut_off_is_a_warning_with_the_file_and_function_and_no_job(command: Command, start: str) -> None:
    plugin = """
        import atexit, os, threading, time
        from supervisor import handler
        imported_by = os.getpid()

        @atexit.register
        def flush():
            if os.getpid() == imported_by:
                time.sleep(3600)

        def watch():
            time.sleep(3600)

        @handler
        def leave(job):
            threading.Thread(target=watch, name="watcher").start()
    """
    config = f"workers: {{count: 1, start: {start}}}\nlog: {{level: warning, format: json}}\n"
    command.write(config=config, plugins={"p.py": plugin})
    command.enqueue("leave")
    run = command.run("--drain")
    assert run.wait() == 0
    lines = [json.loads(line) for line in run.log.splitlines() if "are cut off" in line]
    assert [(line["level"], "job" in line, "worker" in line) for line in lines] == [
        ("warning", False, True),
        ("warning", False, False),
    ]
    file = command.folder / "plugins" / "p.py"
    assert f"{file}:11, watch (thread watcher)" in lines[0]["message"]
    assert f"{file}:9, flush" in lines[1]["message"]
