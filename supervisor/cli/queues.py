"""supervisor queues list, pause, resume"""

from __future__ import annotations

import click

from supervisor.cli.context import load_settings
from supervisor.cli.options import SuggestingGroup, config_option, json_option, name_of, read_with
from supervisor.cli.render import print_json
from supervisor.cli.status import print_queues
from supervisor.cli.store_access import use_store
from supervisor.stores.protocol import Store

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
def pause(queue: str) -> None:
    """Stop claiming jobs from a queue. Running jobs go on."""
    was_paused = _set_paused(queue, True)
    click.echo(f"{queue}: was paused already" if was_paused else f"{queue}: paused")


@queues.command()
@config_option
@queue_argument
def resume(queue: str) -> None:
    """Claim jobs from a paused queue again."""
    was_paused = _set_paused(queue, False)
    click.echo(f"{queue}: resumed" if was_paused else f"{queue}: was not paused")


def _set_paused(queue: str, paused: bool) -> bool:
    """Pause or resume the queue, and return whether it was paused before."""

    def change(store: Store) -> bool:
        was_paused = queue in store.paused()
        store.pause(queue, paused)
        return was_paused

    return use_store(load_settings(), change)
