"""supervisor jobs wait"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import click

from supervisor.cli.context import current_context, echo, load_settings
from supervisor.cli.exit_codes import MISTAKE, NOT_ENDED, NOT_SUCCEEDED
from supervisor.cli.job_output import MAX_REFUSED
from supervisor.cli.options import config_option, job_ids, json_option, read_with
from supervisor.cli.render import print_json
from supervisor.cli.store_access import opened_store
from supervisor.client.ended_jobs import Ended, Wait, ended_jobs
from supervisor.errors import StoreUnavailable
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store
from supervisor.stores.waiting import with_reasons
from supervisor.text.units import parse_duration


@click.command()
@config_option
@job_ids
@click.option(
    "--timeout",
    metavar="TIME",
    callback=read_with(partial(parse_duration, zero=True)),
    help="Stop waiting after this time, such as 30s.",
)
@json_option
def wait(ids: Sequence[int], timeout: float | None, as_json: bool) -> int | None:
    """Wait until jobs have ended, and print a line for each that ends.

    The exit code is 0 if all succeeded, 1 if some failed or were cancelled, 4 if some had not ended in time, and 2 if some do not
    exist.
    """
    context, settings = current_context(), load_settings()
    if timeout is not None:
        context.store_timeout = min(context.store_timeout, timeout)
    awaited = Wait(ids, timeout, context.store_timeout, time.monotonic())
    codes: set[int | None] = {None}
    with opened_store(settings) as store:
        try:
            for ended in ended_jobs(lambda question: question(store), awaited):
                codes.add(_print(ended, as_json))
        except TimeoutError as error:
            if isinstance(error.__cause__, StoreUnavailable):
                raise error.__cause__ from None
            _print_reasons(store, awaited, error)
            codes.add(NOT_ENDED)
    return next(code for code in (MISTAKE, NOT_ENDED, NOT_SUCCEEDED, None) if code in codes)


def _print(ended: Ended, as_json: bool) -> int | None:
    """Print the job, and return the exit code for it."""
    if ended.job is None:
        echo(f"Error: {ended.outcome if ended.existed else f'no job {ended.id}'}", err=True)
        return MISTAKE
    succeeded = ended.job["state"] == JobState.SUCCEEDED
    if as_json:
        print_json({**ended.job, "waiting_because": None})
    else:
        echo(f"job {ended.id} ({ended.job['handler']}) succeeded" if succeeded else str(ended.outcome))
    return None if succeeded else NOT_SUCCEEDED


def _print_reasons(store: Store, awaited: Wait, error: TimeoutError) -> None:
    """Print which jobs have not ended, and for the first of them why they do not run."""
    echo(f"Error: {error}", err=True)
    _, jobs = store.get_many(list(awaited.ids)[:MAX_REFUSED])
    for job in with_reasons(store, jobs):
        if job["waiting_because"]:
            echo(f"job {job['id']} ({job['handler']}) is {job['state']}: {job['waiting_because']}", err=True)
