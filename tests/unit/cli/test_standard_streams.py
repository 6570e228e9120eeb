"""Standard streams that are closed, full, or read by nobody: text is lost, but no effect of a command and no exit code."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from supervisor.cli import standard_streams as streams
from supervisor.cli.app import run_command_line
from supervisor.cli.standard_streams import OutputLost, Stream
from tests.unit.cli.conftest import FakeSupervisor

FULL = "Error: standard output: No space left on device\n"


class Answer(NamedTuple):
    code: int
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def descriptors() -> Iterator[Callable[[str], int]]:
    """Open a descriptor where every write fails."""
    opened: list[int] = []

    def failing(how: str) -> int:
        if how == "full":
            fd = os.open("/dev/full", os.O_WRONLY)
        else:
            reading, fd = os.pipe()
            os.close(reading)
        opened.append(fd)
        return fd

    yield failing
    for fd in opened:
        os.close(fd)


@pytest.fixture
def call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    descriptors: Callable[[str], int],
) -> Call:
    """Run a command with such a standard output."""
    (tmp_path / "supervisor.yaml").write_text("store: sqlite:///jobs.db\n")
    (tmp_path / "plugins").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["enqueue", "mail"]) == 0

    def call(how: str, *arguments: str) -> Answer:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Stream(descriptors(how), None, max_dropped=10))
            code = run_command_line(arguments)
            sys.stdout.flush()  # as Python does at its exit
        return Answer(code, capfd.readouterr().err)

    return call


@pytest.mark.parametrize("how", [["mail", "-"], ["--file", "-"]], ids=" ".join)
def test_an_unreadable_standard_input_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with os.fdopen(os.open("written", os.O_WRONLY | os.O_CREAT)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run_command_line(["enqueue", *how]) == 2
    assert capfd.readouterr().err.endswith(": Bad file descriptor\n")


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "--json"], ["jobs", "list"], ["jobs", "show", "1"], ["queues", "list"], ["--help"]],
    ids=" ".join,
)
def test_a_command_that_only_prints_fails_if_its_output_is_lost(call: Call, arguments: list[str]) -> None:
    assert call("full", *arguments) == (1, FULL)
    assert call("reader gone", *arguments) == (0, ""), "the reader has seen enough"


def test_a_change_is_made_and_has_not_failed_although_it_cannot_be_printed(call: Call) -> None:
    """A script that repeats what has failed would make it twice."""
    assert call("full", "enqueue", "mail") == (0, FULL)
    assert call("full", "queues", "pause", "default") == call("full", "queues", "resume", "default") == (0, FULL)
    assert call("reader gone", "enqueue", "mail") == (0, "")
    assert run_command_line(["jobs", "show", "3"]) == 0
    assert call("full", "jobs", "cancel", "1") == call("full", "jobs", "retry", "1") == (0, FULL)


@pytest.mark.parametrize("how", ["full", "reader gone"])
def test_a_mistake_keeps_its_exit_code_if_output_before_it_is_lost(call: Call, how: str) -> None:
    answer = call(how, "jobs", "cancel", "1", "99")
    assert answer.code == 2
    assert "Error: job 99" in answer.err


@pytest.mark.parametrize("how", ["full", "reader gone"])
def test_the_exit_code_of_check_does_not_depend_on_its_output(call: Call, scanned: None, how: str) -> None:
    assert call(how, "check").code == 0
    Path("plugins/bad.py").write_text("import nonsense_that_is_nowhere\n")
    assert call(how, "check").code == 2


@pytest.mark.parametrize("how", ["full", "reader gone"])
def test_the_exit_code_of_a_drain_does_not_depend_on_its_output(
    call: Call, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LeftBehind(FakeSupervisor):
        code = 4
        made = []  # noqa: RUF012

    monkeypatch.setattr("supervisor.runtime.supervisor.Supervisor", LeftBehind)
    monkeypatch.setattr("supervisor.telemetry.configure", lambda *_: None)
    assert call(how, "run", "--drain").code == 4
    LeftBehind.code = 0
    assert call(how, "run", "--drain").code == 0


def test_a_command_that_prints_without_end_ends_soon_after_its_reader(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def print_without_end(*_: Any, **__: Any) -> None:
        for number in itertools.count():
            click.echo(number)

    monkeypatch.setattr("supervisor.cli.jobs.print_page", print_without_end)
    assert call("reader gone", "jobs", "list") == (0, "")
    assert call("full", "jobs", "list") == (1, FULL)


def test_a_mistake_keeps_its_exit_code_if_its_message_is_lost(
    call: Call, monkeypatch: pytest.MonkeyPatch, descriptors: Callable[[str], int]
) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(descriptors("full"), None))
    for _ in range(3):
        assert call("reader gone", "jobs", "show", "99").code == 2
        assert call("reader gone", "status", "--nonsense").code == 2
    sys.stderr.flush()


def test_the_last_dropped_write_raises_once(descriptors: Callable[[str], int]) -> None:
    stream = Stream(descriptors("full"), None, max_dropped=2)
    print("lost", file=stream)
    with pytest.raises(OutputLost, match="No space left"):
        print("lost", file=stream)
    print("lost", file=stream)


def test_a_reader_that_made_the_pipe_non_blocking_gets_everything() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 300_000
    got: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as file:
            got.append(file.read())

    stream = Stream(writing, None)
    reader = threading.Thread(target=read)
    reader.start()
    print(text, end="", file=stream, flush=True)
    os.close(writing)
    reader.join()
    assert got == [text.encode()]


def test_text_that_the_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as plain:
        print("é\udc80", file=Stream(plain.fileno(), plain), flush=True)
    assert (tmp_path / "out").read_text() == "\\xe9\\udc80\n"


@pytest.mark.parametrize("closed", [(0, 1, 2), (2,), ()])
def test_closed_standard_streams_are_filled_and_open_ones_left(
    monkeypatch: pytest.MonkeyPatch, closed: tuple[int, ...]
) -> None:
    free = [*closed, 9]
    inheritable: list[int] = []
    closed_again: list[int] = []
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_: free.pop(0))
        patch.setattr(os, "set_inheritable", lambda fd, _: inheritable.append(fd))
        patch.setattr(os, "close", closed_again.append)
        streams.install_streams()
    assert inheritable == list(closed)
    assert closed_again == [9]


def test_streams_that_were_closed_at_the_start_are_files_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    streams.install_streams()
    assert [sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno()] == [0, 1, 2]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    assert os.fstat(1)
