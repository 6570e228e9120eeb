"""supervisor copy"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from supervisor.cli.context import answer_of, config_option, echo, load_settings
from supervisor.config.settings import Settings, absolute
from supervisor.errors import StoreError
from supervisor.jobs import JobState
from supervisor.stores.opening import open_store, settings_of
from supervisor.stores.transfer import Transferable, TransferReport, transfer_jobs, transferable_counts, undo_transfer


@click.command()
@config_option
@click.option("--from", "source", metavar="URL", required=True, help="The store that the jobs are in.")
@click.option("--to", "target", metavar="URL", help="The store they go to; otherwise that of the config.")
@click.option("--reopen", is_flag=True, help="Undo a copy that was cut short: open the first store again.")
@click.option(
    "--force", is_flag=True, help="With --reopen: even if the other store has the jobs or can't be looked into."
)
def copy(config: Path | None, source: str, target: str | None, reopen: bool, force: bool) -> None:
    """Go over to another store: move waiting, scheduled and failed jobs into an empty one, all or nothing.

    They keep their ids, attempts and dead letters. No supervisor may run on the first store; afterwards it is shut: it keeps
    its rows, and whoever enqueues there or starts a supervisor is told where the jobs are. If this was cut short, call it again,
    or undo it with --reopen.
    """
    if force and not reopen:
        raise click.UsageError("--force goes with --reopen")
    settings = load_settings(config)
    with closing(_opened(settings, source, create=False)) as first:
        if reopen:
            _reopen(settings, first, target, force)
            return
        with closing(_opened(settings, target, create=True)) as second:
            _report(answer_of(lambda: transfer_jobs(first, second)), first.url, second.url)


def _reopen(settings: Settings, first: Transferable, target: str | None, force: bool) -> None:
    transfer_record = answer_of(first.transfer_record)
    if transfer_record is None:
        raise StoreError(f"{first.url}: it is not shut")
    doubt = ""
    try:
        with closing(_opened(settings, target, create=False)) as second:
            answer_of(lambda: undo_transfer(first, second, transfer_record))
    except StoreError as error:
        doubt = str(error)
        if not force:
            raise StoreError(
                f"{doubt}; so {first.url} stays shut. Once nobody will run jobs in {transfer_record.target} any more, --force opens it all the same"
            ) from None
        answer_of(lambda: first.reopen(transfer_record))
    jobs = _counted(answer_of(lambda: transferable_counts(first))) or "no"
    echo(f"{first.url} is open again, with the {jobs} jobs that it had when it was shut")
    if doubt:
        echo(f"opened by force, although: {doubt}")
        echo(
            f"what was done in {transfer_record.target} meanwhile is done again here, and what still waits there must not be run there"
        )


def _opened(settings: Settings, url: str | None, *, create: bool) -> Transferable:
    """A URL that stands in the config means what it means there, with its options."""
    of_config = url is None or url == settings.store.url
    store_settings = settings.store if of_config or url is None else settings_of(url)
    base = settings.base if of_config else absolute(Path())
    store = answer_of(lambda: open_store(store_settings, create=create, base=base))
    if isinstance(store, Transferable):
        return store
    store.close()
    raise StoreError(f"{store_settings.shown}: jobs of such a store can't be moved")


def _report(moved: TransferReport, source: str, target: str) -> None:
    what = _counted(moved.jobs) or "no"
    queues = f" and {moved.paused} paused queues" if moved.paused else ""
    if moved.before:
        echo(f"{source}: its {what} jobs{queues} were moved to {target} before")
        return
    echo(f"moved {what} jobs{queues} from {source} to {target}")
    if moved.left:
        echo(f"left {_counted(moved.left)} jobs where they were")
    echo(f"{source} is shut: set store to the other one in every config that names it")


def _counted(jobs: Mapping[JobState, int]) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in jobs.items() if n)
