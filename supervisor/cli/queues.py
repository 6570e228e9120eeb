"""supervisor queues list, pause, resume, empty, move"""

from __future__ import annotations

from collections.abc import Iterable

import click

from supervisor.cli.by_filter import change_matching
from supervisor.cli.context import echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.job_filter import Changes, dry_run_option, yes_option
from supervisor.cli.options import SuggestingGroup, config_option, json_option, name_of, read_with
from supervisor.cli.render import print_json
from supervisor.cli.status import print_queues
from supervisor.cli.store_access import use_store
from supervisor.config.misspelt import named_queues
from supervisor.config.settings import Settings
from supervisor.stores.by_filter import DELETE_WAITING, EMPTY, move_to
from supervisor.stores.protocol import Store
from supervisor.stores.search import JobFilter
from supervisor.text.names import did_you_mean

queue_argument = click.argument("queue", callback=read_with(name_of))


@click.group(cls=SuggestingGroup)
@config_option
def queues() -> None:
    """Show queues, pause or resume them, and empty them or move their jobs."""


@queues.command("list")
@config_option
@json_option
def list_queues(as_json: bool) -> None:
    """List queues and the number of their jobs."""
    found = use_store(load_settings(), lambda store: store.stats()["queues"])
    if as_json:
        for queue in found:
            print_json(queue)
    else:
        print_queues(found)


@queues.command()
@config_option
@queue_argument
def pause(queue: str) -> int:
    """Stop claiming jobs from a queue. Running jobs go on."""
    settings = load_settings()
    was_paused, with_jobs = _set_paused(settings, queue, True)
    click.echo(f"{queue}: was paused already" if was_paused else f"{queue}: paused")
    if not was_paused:
        _warn_of_unknown(settings, queue, with_jobs)
    return DONE


@queues.command()
@config_option
@queue_argument
def resume(queue: str) -> int:
    """Claim jobs from a paused queue again."""
    was_paused, _ = _set_paused(load_settings(), queue, False)
    click.echo(f"{queue}: resumed" if was_paused else f"{queue}: was not paused")
    return DONE


@queues.command()
@config_option
@queue_argument
@click.option("--delete", "deletes", is_flag=True, help="Delete the jobs instead, with all that is known of them.")
@dry_run_option
@yes_option
def empty(queue: str, deletes: bool, dry_run: bool, yes: bool) -> int:
    """Cancel the jobs that wait in a queue. Running jobs go on."""
    name, command, done = ("delete", DELETE_WAITING, "deleted") if deletes else ("cancel", EMPTY, "cancelled")
    return change_matching(name, JobFilter(queue=queue), Changes(None, dry_run, yes, False), done, command=command)


@queues.command()
@config_option
@queue_argument
@click.argument("to", metavar="TO", callback=read_with(name_of))
@dry_run_option
@yes_option
def move(queue: str, to: str, dry_run: bool, yes: bool) -> int:
    """Move the jobs that wait in a queue to the queue TO. Running jobs end where they are."""
    if queue == to:
        raise click.UsageError(f"expected another queue than {queue!r}")
    settings = load_settings()

    def look(store: Store) -> None:
        store.move([], to)  # refused by a store whose jobs have their queues for good
        _warn_of_unknown(settings, to, [row["queue"] for row in store.stats()["queues"]])

    changes = Changes(None, dry_run, yes, False)
    return change_matching(
        "move", JobFilter(queue=queue), changes, f"moved to {to}", command=move_to(to), to=f" to {to}", first=look
    )


def _warn_of_unknown(settings: Settings, queue: str, with_jobs: Iterable[str]) -> None:
    known = {*with_jobs, *named_queues(settings)}
    if queue not in known:
        echo(f"Warning: no job and no key of the config has a queue {queue!r}{did_you_mean(queue, known)}", err=True)


def _set_paused(settings: Settings, queue: str, paused: bool) -> tuple[bool, list[str]]:
    """Pause or resume the queue, and return whether it was paused before, and the queues that the store knew."""

    def change(store: Store) -> tuple[bool, list[str]]:
        was_paused = queue in store.paused()
        known = [row["queue"] for row in store.stats()["queues"]]
        store.pause(queue, paused)
        return was_paused, known

    return use_store(settings, change)
