"""supervisor queues list, pause, resume"""

from __future__ import annotations

import click

from supervisor.cli.context import echo, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.options import SuggestingGroup, config_option, json_option, name_of, read_with
from supervisor.cli.render import print_json
from supervisor.cli.status import print_queues
from supervisor.cli.store_access import use_store
from supervisor.config.misspelt import named_queues
from supervisor.config.settings import Settings
from supervisor.stores.protocol import Store
from supervisor.text.names import did_you_mean

queue_argument = click.argument("queue", callback=read_with(name_of))


@click.group(cls=SuggestingGroup)
@config_option
def queues() -> None:
    """Show queues, and pause or resume them."""


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
    known = {*with_jobs, *named_queues(settings)}
    if queue not in known and not was_paused:
        echo(f"Warning: no job and no key of the config has a queue {queue!r}{did_you_mean(queue, known)}", err=True)
    return DONE


@queues.command()
@config_option
@queue_argument
def resume(queue: str) -> int:
    """Claim jobs from a paused queue again."""
    was_paused, _ = _set_paused(load_settings(), queue, False)
    click.echo(f"{queue}: resumed" if was_paused else f"{queue}: was not paused")
    return DONE


def _set_paused(settings: Settings, queue: str, paused: bool) -> tuple[bool, list[str]]:
    """Pause or resume the queue, and return whether it was paused before, and the queues that the store knew."""

    def change(store: Store) -> tuple[bool, list[str]]:
        was_paused = queue in store.paused()
        known = [row["queue"] for row in store.stats()["queues"]]
        store.pause(queue, paused)
        return was_paused, known

    return use_store(settings, change)
