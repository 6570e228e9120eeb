"""supervisor enqueue"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click

from supervisor.cli.context import UserMistake, config_option, load_settings, parse_timeout, read_with
from supervisor.config import Settings
from supervisor.durations import parse_duration
from supervisor.jobs import NewJob
from supervisor.payloads import decode
from supervisor.plugin_checks import did_you_mean

MOST_PROBLEMS = 20


@click.command()
@config_option
@click.argument("handler", required=False)
@click.argument("payload", required=False, metavar="[JSON]")
@click.option(
    "--file", "file", metavar="F.jsonl", help="Enqueue a job for each line, all or nothing; - is standard input."
)
@click.option("--queue", help="Queue; otherwise the one that the config gives the handler.")
@click.option("--priority", type=int, help="Higher goes first.")
@click.option(
    "--delay",
    callback=read_with(lambda text: parse_duration(text, zero=True)),
    help="Not before so long from now, such as 10s.",
)
@click.option(
    "--at",
    callback=read_with(lambda text: parse_moment(text)),
    help="Not before this time, such as 2030-01-31T08:00:00Z.",
)
@click.option("--max-retries", type=click.IntRange(0, 1000), help="Retries of this job.")
@click.option(
    "--timeout", callback=read_with(parse_timeout), help="How long an attempt of this job may run; none = no limit."
)
def enqueue(config: Path | None, handler: str | None, payload: str | None, file: str | None, **options: Any) -> None:
    """Enqueue a job for HANDLER and print its id.

    JSON is the payload, null if left out; - reads it from standard input.
    """
    settings = load_settings(config)
    written = {name: value for name, value in options.items() if value is not None}
    if "delay" in written and "at" in written:
        raise click.UsageError("--delay and --at: expected one of them")
    if file is None:
        if handler is None:
            raise click.UsageError("expected the name of a handler, or --file")
        job = NewJob(handler, _payload(payload), **written)
        click.echo(_enqueue(settings, [job])[0])
        return
    if handler is not None or written:
        raise click.UsageError("--file: everything about a job stands in its line; expected no other argument")
    jobs = read_file(file)
    click.echo(len(_enqueue(settings, jobs)) if jobs else 0)


def read_file(file: str) -> list[NewJob]:
    """A job for each line that isn't empty; raises UserMistake that names every bad line."""
    try:
        if file == "-":
            return _read_lines(sys.stdin.buffer, "standard input")
        with Path(file).open("rb") as lines:
            return _read_lines(lines, file)
    except OSError as error:
        raise UserMistake(f"{file}: {error.strerror}") from None


def parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected a time such as 2030-01-31T08:00:00Z, got {text!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"expected a time with its zone, such as {moment.isoformat()}Z for UTC, got {text!r}")
    return moment


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    return decode(sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape"))


def _enqueue(settings: Settings, jobs: Sequence[NewJob]) -> list[int]:
    from supervisor.client import Client

    with Client(settings, create=True) as client:
        return client.enqueue_many(jobs)


def _read_lines(lines: BinaryIO | Iterable[bytes], name: str) -> list[NewJob]:
    jobs: list[NewJob] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            jobs.append(_job(decode(line, "line")))
        except (ValueError, TypeError) as error:
            problems.append(f"{name}:{number}: {error}")
    if problems:
        more = [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        raise UserMistake("\n".join(["nothing was enqueued", *problems[:MOST_PROBLEMS], *more]))
    return jobs


def _job(line: Any) -> NewJob:
    if not isinstance(line, dict):
        raise ValueError("expected a JSON object with handler and payload")
    fields = {str(key).replace("-", "_"): value for key, value in line.items()}
    for key in fields:
        if key not in _FIELDS:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, _FIELDS) or f'; expected {_LISTED}'}")
    if "handler" not in fields:
        raise ValueError("handler: missing; expected the name of a handler")
    if fields.get("delay") is not None and fields.get("at") is not None:
        raise ValueError("delay and at: expected one of them")
    return NewJob(**{key: _field(key, value) for key, value in fields.items() if value is not None})


def _field(key: str, value: Any) -> Any:
    try:
        return _FIELDS[key](value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _retries(value: Any) -> int:
    if not 0 <= _whole(value) <= 1000:
        raise ValueError(f"expected a whole number from 0 to 1000, got {value!r}")
    return int(value)


def _headers(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {value!r}")
    return value


_FIELDS: Mapping[str, Any] = {
    "handler": _text,
    "payload": lambda value: value,
    "queue": _text,
    "priority": _whole,
    "delay": lambda value: parse_duration(_text(value), zero=True),
    "at": lambda value: parse_moment(_text(value)),
    "max_retries": _retries,
    "timeout": lambda value: parse_timeout(_text(value)),
    "headers": _headers,
}
_LISTED = ", ".join(_FIELDS)
