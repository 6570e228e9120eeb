"""Run the real `supervisor` command in a folder and in processes of its own, which all end with the test.

command.write(plugins={"mail.py": '''
    from supervisor import handler
    @handler
    def mail(job): ...
'''})
id = command.enqueue("mail", {"to": "me"})
sup = command.run()
wait_for(lambda: command.job(id)["state"] == "succeeded")
sup.signal(SIGTERM)
assert sup.wait() == 0
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from supervisor.cli.app import run_command_line

ROOT = Path(__file__).parents[2]
MARK = "SUPERVISOR_TEST_MARK"
CONFIG = "workers: {count: 2}\n"
TIMEOUT = 15.0
MOMENT = 0.3  # seconds
RUNS_NO_JOB = "workers: {count: 1, queues: [of-no-job]}\nplugins: []\nstore: sqlite:///"

Fact = TypeVar("Fact")


def wait_for(fact: Callable[[], Fact], timeout: float = TIMEOUT, every: float = 0.02) -> Fact:
    """Call `fact` until it neither raises AssertionError nor returns False, and return its value.

    After the timeout its last AssertionError is raised.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            value = fact()
            assert value is not False, "still False"
            return value
        except AssertionError as error:
            if time.monotonic() > deadline:
                error.add_note(f"waited {timeout:g}s")
                raise
        time.sleep(every)


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


class Answer(NamedTuple):
    """The output of a command, which may be repeated `until` then, while the files of the store are as `written`."""

    text: str
    written: tuple[int, ...]
    until: float


class Running:
    """A `supervisor run` in its own process group. `out` and `log` hold its output so far."""

    def __init__(self, arguments: list[str], folder: Path, env: Mapping[str, str], number: int) -> None:
        self._out, self._log = folder / f"run-{number}.out", folder / f"run-{number}.log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )
        self.pid = self.process.pid

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, minus the number of the signal that killed the process, or None while it runs."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor alone, as `kill` does."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the supervisor alone with SIGKILL, and wait for its end. It must not have exited by itself."""
        assert self.code is None, f"it has exited with {self.code}; its log:\n{self.log}"
        self.process.kill()
        assert self.process.wait(TIMEOUT) == -signal.SIGKILL

    def wait(self, timeout: float = TIMEOUT) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g}s; its log:\n{self.log}") from None

    def logged(self, text: str, timeout: float = TIMEOUT) -> str:
        """Wait for a line of the log that contains `text`, and return the first one."""

        def line() -> str:
            lines = [line for line in self.log.splitlines() if text in line]
            assert lines, f"{text!r} is not in the log:\n{self.log}"
            return lines[0]

        return wait_for(line, timeout)

    def forkserver(self) -> int:
        """The pid of the newest forkserver."""
        self.logged("forkserver started")
        lines = [line for line in self.log.splitlines() if "forkserver started" in line]
        return int(lines[-1].rpartition("pid ")[2].rstrip(")"))

    def end(self) -> None:
        """End the supervisor in any state: a stopped process is continued, and a second signal forces the end."""
        # TERM and INT, since one signal that is sent twice may arrive once.
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGINT):
            self.signal(number)
        self.wait()


class Command:
    """The command in `folder`, with its config in `supervisor.yaml` there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "supervisor.yaml"
        self.mark = secrets.token_hex(8)
        self.runs: list[Running] = []
        self._answers: dict[tuple[str, ...], Answer] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISOR_", "COV_"))}
        self.env = {**kept, MARK: self.mark, "PYTHONPATH": str(ROOT)}
        self.write(config=CONFIG)

    def write(self, config: str | None = None, plugins: Mapping[str, str] | None = None) -> None:
        """Write the config, and plugin files by their names in `plugins/`, without the common indentation.

        Each file is replaced in one step, so that a supervisor never reads an empty one.
        """
        files = {} if config is None else {self.config: config}
        files |= {self.folder / "plugins" / name: text for name, text in (plugins or {}).items()}
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_text(textwrap.dedent(text))
            part.replace(path)

    def run(self, *arguments: str, under: Sequence[str] = (), config: str | None = None) -> Running:
        """Start `supervisor run`; the end of the test ends it. `under` is a command that execs it, `config` names another config."""
        run = Running(
            [*under, *self.arguments("run", *arguments, config=config)], self.folder, self.env, len(self.runs) + 1
        )
        self.runs.append(run)
        return run

    def call(
        self, *arguments: str, input: str = "", timeout: float = 60.0, under: Sequence[str] = (), config: str | None = None
    ) -> Ended:  # fmt: skip
        """Run any command in a process to its end. `under` is a command that runs it."""
        ended = subprocess.run(
            [*under, *self.arguments(*arguments, config=config)], cwd=self.folder, env=self.env, input=input, capture_output=True, text=True,
            timeout=timeout, start_new_session=True,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def ask(self, *arguments: str) -> str:
        """Return what a command prints. It runs in this process, since tests ask again and again."""
        self._answers.clear()
        return self._printed(*arguments)

    def _printed(self, *arguments: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line(["-c", str(self.config), *arguments])
        assert code == 0, f"supervisor {' '.join(arguments)} ended with {code}: {err.getvalue()}"
        return out.getvalue()

    def _read(self, *arguments: str) -> str:
        """Do as `ask` for a command that only reads jobs, but repeat its last answer for a moment, as long as nothing is written."""
        written, known = self._written(), self._answers.get(arguments)
        if known is not None and known.written == written and time.monotonic() < known.until:
            return known.text
        text = self._printed(*arguments)
        if written is not None:
            self._answers[arguments] = Answer(text, written, time.monotonic() + MOMENT)
        return text

    def _written(self) -> tuple[int, ...] | None:
        """Return the state of the files of the store: a write changes it, unless it follows another within a tick of the kernel. None
        if the store is in other files."""
        try:
            if "store" in self.config.read_text():
                return None
            stats = [self.config.stat(), *((self.folder / name).stat() for name in ("jobs.db", "jobs.db-wal"))]
        except OSError:
            return None
        return tuple(value for it in stats for value in (it.st_ino, it.st_size, it.st_mtime_ns))

    def enqueue(self, handler: str, payload: Any = None, *options: str) -> int:
        """Enqueue a job with options of the command line, and return its id."""
        return int(self.ask("enqueue", "--force", handler, json.dumps(payload), *options))

    def enqueue_many(self, jobs: list[dict[str, Any]]) -> None:
        """Enqueue jobs, given as the lines of a --file."""
        file = self.folder / f"jobs-{secrets.token_hex(4)}.jsonl"
        file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        self.ask("enqueue", "--force", "--file", str(file))

    def job(self, id: int) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self._read("jobs", "show", str(id), "--json"))
        return job

    def jobs(self, *options: str) -> list[dict[str, Any]]:
        """Return jobs, newest first. Options are those of `jobs list`, such as "--state", "failed"."""
        most = () if "--limit" in options else ("--limit", "1000000")
        return [json.loads(line) for line in self._read("jobs", "list", "--json", *most, *options).splitlines()]

    def until(self, id: int, state: str, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Wait until the job is in this state, and return it."""

        def reached() -> dict[str, Any]:
            job = self.job(id)
            assert job["state"] == state, f"job {id} is {job['state']}, expected {state}: {job}"
            return job

        return wait_for(reached, timeout)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ask("status", "--json"))
        return status

    def processes(self) -> dict[int, str]:
        """Return all running processes that this command has started, directly or not: pid -> command line."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\x00"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\x00", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def left_behind(self, allowed: Collection[str] = ()) -> dict[str, Any]:
        """Return what a run that was not killed must not leave: processes, sockets and locks of owners, claims. Files with `allowed`
        names are left out."""
        left: dict[str, Any] = {"processes": self.processes(), "files": [], "claims": []}
        if self.runs and self.runs[-1].code is not None and self.runs[-1].code >= 0:
            names = {path.name for path in self.folder.glob("*.notify/*")}
            left["files"] = sorted(names.difference(allowed))
            if (self.folder / "jobs.db").exists():
                left["claims"] = self.jobs("--state", "in_flight")
        return {what: found for what, found in left.items() if found}

    def close(self, timeout: float = 5.0) -> None:
        """End all runs, and raise AssertionError if anything is left behind.

        A running supervisor looks for owners that are gone once a second, so the last run may have ended before it found one that
        was killed. One more start must remove the files of that owner.
        """

        def nothing_left(allowed: Collection[str] = ()) -> None:
            assert (left := self.left_behind(allowed)) == {}, f"left behind: {left}"

        try:
            for run in self.runs:
                if run.code is None:
                    run.end()
            files = self._files_of_killed_runs()
            wait_for(lambda: nothing_left(files), timeout)
            if "files" in self.left_behind():
                self._start_once_more()
            wait_for(nothing_left, timeout)
        finally:
            for run in self.runs:
                run.process.kill()
                run.process.wait()
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _files_of_killed_runs(self) -> list[str]:
        pids = [run.pid for run in self.runs if run.code is not None and run.code < 0]
        names = [path.name for path in self.folder.glob("*.notify/*")]
        return [name for name in names if any(f"-{pid}-" in name for pid in pids)]

    def _start_once_more(self) -> None:
        """Start a supervisor of each store that has files of owners, without plugins and jobs, and wait for its end."""
        for folder in {path.parent for path in self.folder.glob("*.notify/*")}:
            (self.folder / "once-more.yaml").write_text(RUNS_NO_JOB + folder.name.removesuffix(".notify"))
            ended = self.call("run", "--drain", config="once-more")
            assert ended.code == 0, f"the start after the last run ended with {ended.code}: {ended.err}"

    def arguments(self, *arguments: str, config: str | None = None) -> list[str]:
        return [
            sys.executable,
            "-m",
            "supervisor",
            *arguments,
            "-c",
            str(self.folder / f"{config}.yaml" if config else self.config),
        ]
