"""Tables for people and JSON for programs. Rich is imported only when something is drawn with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click
import orjson

from supervisor.text.printable import json_line
from supervisor.text.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MAX_DRAWN = 200
"""The rows of a table that Rich draws: it takes a millisecond for each."""
PIPE_WIDTH = 240  # columns of a table that is not written to a terminal
MAX_CLIPPED = 60

STYLES = {
    "succeeded": "green",
    "delivered": "green",
    "running": "green",
    "busy": "green",
    "in_flight": "cyan",
    "ready": "cyan",
    "scheduled": "blue",
    "failed": "red",
    "pending": "yellow",
    "paused": "yellow",
    "draining": "yellow",
    "cancelled": "dim",
}


def print_json(value: Any) -> None:
    """Print an object on one line. Text that is not Unicode, such as the name of a file, is escaped."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        text = orjson.dumps(_unicode(value))
    click.echo(json_line(text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
    """Print rows without the columns that have no value, and return whether there are any. Numbers are aligned to the right, known
    states coloured. A long table is printed as its rows come: all its columns are shown, as wide as the first rows need them."""
    rows = iter(rows)
    first = list(islice(rows, MAX_DRAWN + 1))
    if len(first) > MAX_DRAWN:
        _print_long_table(columns, first, rows)
    elif first:
        _draw_table(columns, first)
    return bool(first)


def _print_long_table(columns: Sequence[str], first: Sequence[Sequence[Any]], rest: Iterable[Sequence[Any]]) -> None:
    cells = [[_text(value) for value in row] for row in first]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    numeric = [all(value is None or isinstance(value, int) for value in column) for column in zip(*first, strict=True)]
    for row in chain([columns], cells, ([_text(value) for value in row] for row in rest)):
        aligned = zip(row, widths, numeric, strict=True)
        click.echo("  ".join([t.rjust(width) if right else t.ljust(width) for t, width, right in aligned]).rstrip())


def _draw_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = []
    for name, values in zip(columns, zip(*rows, strict=True), strict=False):
        cells = [_cell(value) for value in values]
        if any(cell.plain for cell in cells):
            numeric = all(value is None or isinstance(value, int) for value in values)
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
            shown.append(cells)
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    console().print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print each field that has a value on one line."""
    shown = {name: _cell(value) for name, value in fields.items() if value not in (None, "", {}, [])}
    width = max(map(len, shown), default=0)
    out = console()
    for name, text in shown.items():
        out.print(f"{escaped(name):<{width}}  ", text, sep="", soft_wrap=True)


def print_heading(text: str) -> None:
    console().print(escaped(text), style="bold", soft_wrap=True)


def print_block(text: str, *, err: bool = False) -> None:
    """Print text of several lines, such as a traceback, with its own indentation."""
    click.echo("\n".join(f"    {escaped(line)}" for line in text.rstrip().splitlines()), err=err)


def console() -> Console:
    """Return a console for standard output, with colours only on a terminal and never under NO_COLOR."""
    from rich.console import Console

    tty = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if tty else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def escaped(text: str) -> str:
    """Return the text without characters that control a terminal, such as those that place the cursor or set a colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def clipped(text: str, limit: int = MAX_CLIPPED) -> str:
    """Return the text on one line of limited length, escaped."""
    line = escaped(" ".join(text[: 2 * limit].split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def last_error(job: Mapping[str, Any]) -> str:
    """Return the type and the message of the last failure of a job, or nothing."""
    if not job.get("errors"):
        return ""
    error = job["errors"][-1]
    return ": ".join(str(part) for part in (error.get("type") or error["cause"], error.get("message")) if part)


def ago(stamp: str | None, now: datetime | None = None) -> str:
    """Return the ISO 8601 time of an event relative to now, such as `3m 20s ago`. It is ahead if a clock was set back, or differs."""
    return _relative(stamp, now, "{} ahead of this clock")


def due(stamp: str | None, now: datetime | None = None) -> str:
    """Return a due time relative to now, such as `3m 20s ago` or `in 12s`."""
    return _relative(stamp, now, "in {}")


def _relative(stamp: str | None, now: datetime | None, ahead: str) -> str:
    if not stamp:
        return ""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(stamp)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{format_duration(seconds)} ago" if seconds > 0 else ahead.format(format_duration(-seconds))


def _cell(value: Any) -> Text:
    from rich.text import Text

    text = _text(value)
    return Text(text, style=STYLES.get(text, ""))


def _text(value: Any) -> str:
    return "" if value is None else escaped(str(value))


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unicode(item) for item in value]
    return value
