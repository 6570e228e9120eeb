"""supervisor copy"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from supervisor.cli.context import echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.options import config_option
from supervisor.cli.store_access import once_available
from supervisor.config.settings import Settings, absolute
from supervisor.errors import StoreError, Unsupported
from supervisor.jobs import JobState
from supervisor.stores.opening import open_store, settings_of
from supervisor.stores.transfer import Transferable, TransferReport, transfer_jobs, transferable_counts, undo_transfer
from supervisor.text.units import counted


@click.command()
@config_option
@click.option("--from", "source", metavar="URL", required=True, help="The source: the store that has the jobs.")
@click.option("--to", "target", metavar="URL", help="The target: an empty store; by default that of the config.")
@click.option("--reopen", is_flag=True, help="Undo an interrupted copy: open the source again.")
@click.option("--force", is_flag=True, help="With --reopen: even if the target has the jobs or can't be examined.")
def copy(source: str, target: str | None, reopen: bool, force: bool) -> int:
    """Transfer unfinished and failed jobs to an empty store, all or nothing.

    Jobs keep their ids, attempts, keys and dead letters. Ended jobs are transferred too if others of their workflow need them. No supervisor may run on the source. Afterwards the source is closed: it
    keeps its rows, and a client or a supervisor that uses it fails with a message that names the target. To finish an
    interrupted copy, run the same command again; to undo it, add --reopen.
    """
    if force and not reopen:
        raise click.UsageError("--force goes with --reopen")
    settings = load_settings()
    with closing(_open(settings, source, create=False)) as first:
        if reopen:
            _reopen(settings, first, target, force)
            return DONE
        with closing(_open(settings, target, create=True)) as second:
            _report(once_available(lambda: transfer_jobs(first, second)), first.url, second.url)
    return DONE


def _reopen(settings: Settings, source: Transferable, target: str | None, force: bool) -> None:
    record = once_available(source.transfer_record)
    if record is None:
        raise StoreError(f"{source.url}: it is not closed")
    doubt = ""
    try:
        with closing(_open(settings, target, create=False)) as other:
            once_available(lambda: undo_transfer(source, other, record))
    except StoreError as error:
        doubt = str(error)
        if not force:
            raise StoreError(
                f"{doubt}; so {source.url} stays closed. If nobody will run the jobs in {record.target}, add --force to open "
                "it in any case"
            ) from None
        once_available(lambda: source.reopen(record))
    jobs = _jobs(once_available(lambda: transferable_counts(source)))
    echo(f"{source.url} is open again, with the {jobs} that it had when it was closed")
    if doubt:
        echo(f"opened by force, although: {doubt}")
        echo(
            f"jobs that have run in {record.target} since then run again here, and jobs that still wait there must not run there"
        )


def _open(settings: Settings, url: str | None, *, create: bool) -> Transferable:
    """Open the store of the URL. The URL of the config's store, or None, means that store with its options."""
    if url is None or url == settings.store.url:
        store_settings, base = settings.store, settings.base
    else:
        store_settings, base = settings_of(url), absolute(Path())
    store = once_available(lambda: open_store(store_settings, create=create, base=base))
    if isinstance(store, Transferable):
        return store
    store.close()
    raise Unsupported(
        "give or take all of its jobs", f"copy is only for SQLite and PostgreSQL, and this is {store_settings.shown}"
    )


def _report(report: TransferReport, source: str, target: str) -> None:
    jobs = _jobs(report.jobs)
    queues = f" and {counted(report.paused, 'paused queue')}" if report.paused else ""
    if report.before:
        echo(f"transferred before: {jobs}{queues} from {source} to {target}")
        return
    echo(f"transferred {jobs}{queues} from {source} to {target}")
    if report.left:
        echo(f"left {_jobs(report.left)} in {source}")
    echo(f"{source} is closed: write 'store: {target}' in every config that names it")


def _jobs(counts: Mapping[JobState, int]) -> str:
    shown = ", ".join(f"{n:,} {state.value}" for state, n in counts.items() if n)
    return f"{shown or 'no'} job{'' if sum(counts.values()) == 1 else 's'}"
