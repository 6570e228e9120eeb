"""Tables for people and JSON for programs. Rich is imported only when something is drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import orjson

from supervisor.text.printable import json_line
from supervisor.text.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PIPE_WIDTH = 240  # a table into a file or program is not cut to the width of some terminal

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
    """One object on one line. What is no Unicode in a text, such as a file's name, is escaped as it is for people."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        text = orjson.dumps(_unicode(value))
    click.echo(json_line(text))


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unicode(item) for item in value]
    return value


def console() -> Console:
    """Colours only on a terminal, and never under NO_COLOR."""
    from rich.console import Console

    tty = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if tty else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Numbers to the right, known states in their colour; columns without any value are left out."""
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    used = [index for index in range(len(columns)) if any(row[index].plain for row in cells)]
    table = Table(
        box=None,
        pad_edge=False,
        title=title and safe(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    kinds = [list(row) for row in rows] if isinstance(rows, list) else []
    for index in used:
        numeric = bool(kinds) and all(isinstance(row[index], int) or row[index] is None for row in kinds)
        table.add_column(columns[index], justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(row[index] for index in used))
    console().print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """One field a line; those without a value are left out."""
    shown = {name: _cell(value) for name, value in fields.items() if value not in (None, "", {}, [])}
    width = max(map(len, shown), default=0)
    out = console()
    for name, text in shown.items():
        out.print(f"{safe(name):<{width}}  ", text, sep="", soft_wrap=True)


def heading(text: str) -> None:
    console().print(safe(text), style="bold", soft_wrap=True)


def block(text: str, *, err: bool = False) -> None:
    """Text of several lines, such as a traceback, indented as it is."""
    click.echo("\n".join(f"    {safe(line)}" for line in text.rstrip().splitlines()), err=err)


def safe(text: str) -> str:
    """Text of a job can't move the cursor or recolour the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def clipped(text: str, most: int = 60) -> str:
    line = safe(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def ago(stamp: str | None, now: datetime | None = None) -> str:
    """An ISO 8601 time as a person tells it: `3m 20s ago`, `in 12s`."""
    if not stamp:
        return ""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(stamp)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"


def brief_json(value: Any, most: int = 60) -> str:
    return clipped(orjson.dumps(value).decode(), most)


def _cell(value: Any) -> Text:
    from rich.text import Text

    text = "" if value is None or value is False else "yes" if value is True else str(value)
    return Text(safe(text), style=STYLES.get(text, ""))
