"""The templates, and the forms of values in them: everything that comes from the store is escaped, cut, and printable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from jinja2 import ChainableUndefined, Environment, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

import supervisor
from supervisor.http.pages.static_files import address_of
from supervisor.text.printable import STEERING
from supervisor.text.units import counted, format_duration

MAX_NAME = 60  # characters of a name on a page
MAX_LINE = 300  # of a message
MAX_TEXT = 16_384  # of a text with lines of its own

_CONTROLS = [code for code in range(32) if chr(code) not in "\t\n"]
_IN_TEXT = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in STEERING}
_IN_NAME = {**_IN_TEXT, 9: "\\t", 10: "\\n"}
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


class Text(NamedTuple):
    """The beginning of a text; `characters` is the length of the whole."""

    shown: str
    characters: int

    @property
    def is_cut(self) -> bool:
        return len(self.shown) < self.characters


def text(value: str, most: int = MAX_TEXT) -> Text:
    return Text(value[:most], len(value))


def json_text(value: Any) -> str:
    """Return JSON for people: with an indent."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def environment(read_only: Callable[[], bool]) -> Environment:
    """Return the templates. A value that another program has left out of the store is shown as nothing."""
    made = Environment(
        loader=PackageLoader("supervisor.http.pages"), autoescape=True, undefined=ChainableUndefined, auto_reload=False,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals.update(static=address_of, version=supervisor.__version__, read_only=read_only)
    made.filters.update(
        name=name, line=line, lines=lines, moment=moment, since=since, duration=duration, number=number, counted=counted,
    )  # fmt: skip
    return made


def name(value: Any, most: int = MAX_NAME) -> Markup:
    """Return a name with its own direction of writing, on one line. The whole is in its title if it was cut."""
    whole = str(value).translate(_IN_NAME)
    if len(whole) <= most:
        return Markup("<bdi>{}</bdi>").format(whole)
    return Markup('<bdi title="{}">{}…</bdi>').format(whole[:MAX_LINE], whole[: most - 1])


def line(value: Any, most: int = MAX_LINE) -> str:
    whole = str(value)[: most + 1].translate(_IN_NAME)
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def lines(value: Any) -> str:
    """Return a text whose lines are kept."""
    return str(value).translate(_IN_TEXT)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(max(0.0, seconds))


@pass_context
def moment(context: Context, value: str | None) -> Markup:
    """Return a time relative to `now` of the page, in its largest unit, with the exact time as its title."""
    at = parsed(value)
    if at is None:
        return Markup("–")
    seconds = (context["now"] - at).total_seconds()
    unit, size = next(((unit, size) for unit, size in _UNITS if abs(seconds) >= size), ("s", 1))
    n = int(abs(seconds) // size)
    shown = "now" if not n else f"{n}{unit} ago" if seconds > 0 else f"in {n}{unit}"
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S.%f} UTC">{}</time>').format(value, at, shown)


@pass_context
def since(context: Context, value: str | None) -> Markup:
    """Return how long ago a time was at `now` of the page, exactly, with the time as its title."""
    at = parsed(value)
    if at is None:
        return Markup("–")
    passed = duration((context["now"] - at).total_seconds())
    return Markup('<time datetime="{}" title="since {:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(value, at, passed)


def parsed(value: str | None) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
