from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pytest

from supervisor.cli import render


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2030-01-01T00:00:00.000000Z", "now"),
        ("2029-12-31T23:59:50.000000Z", "10s ago"),
        ("2030-01-01T01:00:00.000000Z", "in 1h"),
        (None, ""),
    ],
)
def test_a_time_is_shown_relative_to_now(stamp: str | None, expected: str) -> None:
    assert render.due(stamp, datetime(2030, 1, 1, tzinfo=UTC)) == expected


def test_a_time_that_has_passed_by_another_clock_is_not_shown_as_a_time_to_come() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert render.ago("2029-12-31T23:59:50.000000Z", now) == "10s ago"
    assert render.ago("2030-01-01T01:00:00.000000Z", now) == "1h ahead of this clock"


def test_text_of_jobs_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert render.escaped("a\x1b[2Jb\rc\u202e") == "a\\x1b[2Jb\\rc\\u202e"
    render.print_json({"payload": "\x9b31m\u202e"})
    assert capsys.readouterr().out == '{"payload":"\\u009b31m\\u202e"}\n'
    assert render.clipped("x" * 100) == "x" * 59 + "…"


def _columns(lines: Iterable[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_a_table_in_a_pipe_is_neither_coloured_nor_cut(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_table(("id", "state", "empty", "text"), [[1, "failed", None, "y" * 150]])
    assert _columns(capsys.readouterr().out.splitlines()) == [["id", "state", "text"], ["1", "failed", "y" * 150]]


class Terminal:
    """A standard output that is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", terminal)
    render.print_table(("state",), [["failed"]])
    assert ("\x1b[31m" in terminal.text) is not no_color


def test_a_long_table_is_printed_as_its_rows_come(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[int] = []

    def rows() -> Iterator[list[object]]:
        for number in range(1000):
            printed.append(capsys.readouterr().out.count("\n"))
            yield [number, "failed", None, f"mail\n{number}"]

    assert render.print_table(("id", "state", "empty", "text"), rows())
    assert sum(printed) + capsys.readouterr().out.count("\n") == 1001
    assert max(printed) <= render.MAX_DRAWN + 2, "no more rows are held than it takes to align the columns"
    assert not render.print_table(("id",), iter([]))
