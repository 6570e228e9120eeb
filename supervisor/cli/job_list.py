"""One page of jobs, for people or as JSON, and the command for the next page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import click

from supervisor.cli.context import UserMistake, echo
from supervisor.cli.job_filter import GivenFilter
from supervisor.cli.job_output import print_rows
from supervisor.cli.render import print_json
from supervisor.cli.store_access import once_available
from supervisor.stores.pages import in_pages
from supervisor.stores.protocol import Store
from supervisor.stores.search import CURSOR, UNLIMITED, FoundJobs, JobFilter
from supervisor.text.units import microseconds_of_iso

Jobs = Iterator[dict[str, Any]]

before_option = click.option("--before", metavar="ID", help="Only those behind this one, in the order of the list.")


def print_page(
    store: Store, command: Sequence[str], given: GivenFilter, before: str | None, limit: int, *,
    as_json: bool, empty: str, read: Callable[[Store, Jobs], Jobs] = lambda store, jobs: jobs,
) -> None:  # fmt: skip
    """Print the jobs, and on standard error the command for the next page if there is one. `empty` is printed in place of an empty
    table; `read` may add to the jobs that are printed as JSON."""
    after = None if before is None else once_available(lambda: _cursor(store, given.where, before))
    parts, following = _found(store, given.where, after, limit)
    if as_json:
        for job in read(store, in_pages([id for part in parts for id in part.ids], store.get_many)):
            print_json(job)
    elif not print_rows(chain.from_iterable(part.jobs for part in parts)):
        click.echo(empty)
    if following is not None:
        more = ["--limit", str(limit), *(["--json"] if as_json else []), "--before", following]
        echo(f"next page: {given.command_line(command, more)}", err=True)


def _found(store: Store, where: JobFilter, before: str | None, limit: int) -> tuple[list[FoundJobs], str | None]:
    """Return the parts of one page, and the cursor behind it. A search for text may take several calls."""
    parts: list[FoundJobs] = []
    while limit > 0:
        found = once_available(partial(store.find_jobs, where, before=before, limit=limit, limits=UNLIMITED))
        parts.append(found)
        before, limit = found.next, limit - len(found.ids)
        if before is None:
            break
    return parts, before


def _cursor(store: Store, where: JobFilter, before: str) -> str:
    """Return the cursor behind a job, of which `before` is the id, or is the cursor itself. Raises UserMistake."""
    if CURSOR.fullmatch(before) is None or ("." in before and not where.by_finish):
        raise UserMistake(f"--before: expected the id of a job, got {before!r}")
    if not where.by_finish or "." in before:
        return before
    job = store.get(int(before))
    if job is None or job["state"] != where.state or job["finished_at"] is None:
        state = where.state.value if where.state else ""
        raise UserMistake(
            f"--before: expected a job that is {state}; job {before} is {job['state'] if job else 'deleted'}"
        )
    return f"{microseconds_of_iso(job['finished_at'])}.{before}"
