"""supervisor enqueue"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from supervisor.cli.completion import complete_handler
from supervisor.cli.context import UserMistake, echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.known_handlers import NO_LINES, Lines, refuse_misfits, refuse_unknown_handlers
from supervisor.cli.options import config_option, read_with
from supervisor.cli.store_access import refuse_wrong_folder, use_store
from supervisor.client.named_jobs import NamedJobs
from supervisor.client.new_jobs import BatchBuilder, enqueue_row
from supervisor.config.misspelt import named_queues
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob, JobExists, NoSuchParent, StoreMissing
from supervisor.stores.extras import ExistingId
from supervisor.stores.opening import is_postgres
from supervisor.stores.records import EnqueueBatch, EnqueueRow
from supervisor.stores.search import header_of
from supervisor.text.names import did_you_mean
from supervisor.text.strict_json import NotJSON, decode
from supervisor.text.units import counted

MAX_PROBLEMS = 20  # bad lines named in the message


def _headers_of(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """Return the headers that the options NAME=VALUE give. A value that is no JSON is text."""
    headers: dict[str, Any] = {}
    for each in values:
        try:
            name, value = header_of(each)
        except ValueError as error:
            raise click.BadParameter(f"{error}, got {each!r}", ctx, param) from None
        if name in headers:
            raise click.BadParameter(f"expected each name once, got {name!r} twice", ctx, param)
        try:
            headers[name] = decode(value)
        except NotJSON:
            headers[name] = value
    return headers


def _backoff_of(text: str) -> Any:
    return decode(text, "backoff")


@click.command()
@config_option
@click.argument("handler", required=False, shell_complete=complete_handler)
@click.argument("payload", required=False, metavar="[JSON]")
@click.option(
    "--file", "file", metavar="F.jsonl", help="Enqueue one job per line, all or nothing; - is standard input."
)
@click.option("--queue", metavar="NAME", help="Queue; by default the one that the config has for the handler.")
@click.option("--priority", metavar="N", type=int, help="Jobs with a higher number run first; 0 by default.")
@click.option("--delay", metavar="TIME", help="Earliest start from now, such as 10s.")
@click.option("--at", metavar="TIME", help="Earliest start, such as 2030-01-31T08:00:00Z.")
@click.option("--max-retries", metavar="N", type=int, help="Number of retries of this job.")
@click.option("--timeout", metavar="TIME", help="Timeout of one attempt of this job, such as 90s, or none.")
@click.option(
    "--backoff",
    metavar="JSON",
    callback=read_with(_backoff_of),
    help='Backoff of this job, such as \'{"base": "10s"}\'.',
)
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers_of,
    help="A further value for the handler, JSON or else text; may be repeated.",
)
@click.option("--unique", metavar="KEY", help="Enqueue nothing if a job with this unique key is there.")
@click.option("--unique-while", metavar="WHILE", help="waiting, unfinished (the default), or a time such as 10m.")
@click.option("--on-conflict", metavar="HOW", help="What to do then: skip (the default), replace or reject.")
@click.option("--key", metavar="KEY", help="Jobs with the same key run one at a time, in order.")
@click.option(
    "--on-failure", metavar="HOW", help="What a failed job does to its key: pass it on (the default), or hold."
)
@click.option("--group", metavar="NAME", help="The groups of a queue take turns.")
@click.option("--after", metavar="ID", type=int, multiple=True, help="Wait until this job has ended; may be repeated.")
@click.option(
    "--on-parent-failed", metavar="HOW", help="If a job that it waits for fails: cancel (the default), run or wait."
)
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A tag of the job; may be repeated.")
@click.option("--expires", metavar="TIME", help="Cancel the job if it has not started by then, such as 10m.")
@click.option("--force", is_flag=True, help="Enqueue even if no plugin has the handler, or it refuses the payload.")
def enqueue(handler: str | None, payload: str | None, file: str | None, force: bool, **options: Any) -> int:
    """Enqueue a job for HANDLER and print its id.

    JSON is the payload, null by default; - reads it from standard input. With --file, prints the number of jobs.
    """
    settings = load_settings()
    given = {name: value for name, value in options.items() if value not in (None, (), {})}
    if file is not None:
        if handler is not None or given:
            raise click.UsageError("--file: each line has all about its job; expected no handler and no other option")
        rows, lines = read_file(file, settings)
        ids = _enqueue(settings, rows, force, lines)
        click.echo(len(ids) - len(there := [id for id in ids if isinstance(id, ExistingId)]))
        if there:
            echo(_existing_of_lines(there), err=True)
    elif handler is None:
        raise click.UsageError("expected the name of a handler, or --file")
    else:
        job = {"handler": handler, "payload": payload_of(payload), **given}
        try:
            row = enqueue_row(settings, job)
        except InvalidJob as error:
            raise UserMistake(str(error)) from None
        (id,) = _enqueue(settings, EnqueueBatch([row]), force)
        click.echo(id)
        if isinstance(id, ExistingId):
            echo(f"job {id} has the unique key {options['unique']!r} already: {_outcome(id, row)}", err=True)
    return DONE


def _outcome(id: ExistingId, row: EnqueueRow) -> str:
    if id.replaced:
        return "it was replaced"
    if row.extras is not None and row.extras.on_conflict == "replace":
        return "it was not replaced, since it has been claimed or has ended, and no job was added"
    return "no job was added"


def _existing_of_lines(there: list[ExistingId]) -> str:
    text = f"{counted(len(there), 'line', 'have')} a unique key that a job has already: no job was added for them"
    replacing = sum(id.replaced for id in there)
    return f"{text}; {replacing:,} of them replaced that job" if replacing else text


def read_file(file: str, settings: Settings) -> tuple[EnqueueBatch, Lines]:
    """Return a row for each line that isn't empty, and the lines of the rows. Raises UserMistake that names the bad lines."""
    try:
        if file == "-":
            return _read_lines(sys.stdin.buffer, "standard input", settings)
        with Path(file).open("rb") as lines:
            return _read_lines(lines, file, settings)
    except OSError as error:
        raise UserMistake(f"{file}: {error.strerror}") from None


def _read_lines(lines: Iterable[bytes], name: str, settings: Settings) -> tuple[EnqueueBatch, Lines]:
    builder, names = BatchBuilder(settings), NamedJobs()
    problems: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            builder.add(names.read(_read_line(line), len(builder.batch)))
            numbers.append(number)
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")
    if problems:
        more = [f"... and {len(problems) - MAX_PROBLEMS:,} more"] if len(problems) > MAX_PROBLEMS else []
        raise UserMistake("\n".join(["nothing was enqueued", *problems[:MAX_PROBLEMS], *more]))
    return builder.batch, Lines(name, numbers)


def _read_line(line: bytes) -> dict[str, Any]:
    try:
        job = decode(line, "line")
    except NotJSON as error:
        raise InvalidJob(f"{error}; expected one object per line, not a list or an object of several lines") from None
    if not isinstance(job, dict):
        raise InvalidJob('expected an object such as {"handler": "mail", "payload": {"to": "me"}}')
    return {key.replace("-", "_"): value for key, value in job.items()}


def payload_of(text: str | None) -> Any:
    """Return the payload that an argument gives: JSON, - for standard input, or nothing. Raises NotJSON."""
    if text is None:
        return None
    return decode(_read_standard_input() if text == "-" else text.encode("utf-8", "surrogateescape"))


def _read_standard_input() -> bytes:
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UserMistake(f"standard input: {error.strerror}") from None


def _enqueue(settings: Settings, rows: EnqueueBatch, force: bool, lines: Lines = NO_LINES) -> list[int]:
    if not rows:
        return []
    refuse_wrong_folder(settings, "nothing was enqueued")
    if not force:
        refuse_unknown_handlers(settings, rows, lines)
        refuse_misfits(settings, rows, lines)
    try:
        ids = use_store(settings, lambda store: store.enqueue(rows), create=not is_postgres(settings.store))
    except StoreMissing as missing:  # it may have been dropped, or the URL may be that of another database
        raise UserMistake(f"{missing}: nothing was enqueued; supervisor run makes a new store there") from None
    except (NoSuchParent, JobExists) as error:
        raise UserMistake(f"{lines.prefix_of(_refused_row(settings, rows, error))}{error}") from None
    _warn_of_unnamed_queues(settings, rows)
    return ids


def _refused_row(settings: Settings, rows: EnqueueBatch, error: NoSuchParent | JobExists) -> int | None:
    """Return the index of the row that the store has refused, if it can be found."""
    extras = [(index, row.extras) for index, row in enumerate(rows) if row.extras is not None]
    if isinstance(error, JobExists):
        id, same = error.id, [index for index, its in extras if its.unique == error.key]
        is_there = id is not None and use_store(settings, lambda store: None not in store.counts_by_state([id]))
        return next(iter(same if is_there else same[1:]), None)
    after = [(index, [id for id in its.after if id > 0]) for index, its in extras if its.after]
    return use_store(
        settings,
        lambda store: next((index for index, ids in after if None in store.counts_by_state(ids)), None),
    )


def _warn_of_unnamed_queues(settings: Settings, rows: EnqueueBatch) -> None:
    """Warn of queues that the config does not name, if its supervisor serves only those that it names."""
    named = named_queues(settings)
    unnamed = sorted({row.queue for row in rows.kinds} - named) if settings.workers.queues else []
    for queue in unnamed[:MAX_PROBLEMS]:
        hint = did_you_mean(queue, named)
        echo(
            f"Warning: no key of the config has a queue {queue!r}{hint}; its jobs wait until a supervisor serves it",
            err=True,
        )
