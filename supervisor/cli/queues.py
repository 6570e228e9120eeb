"""supervisor queues list, pause, resume"""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.app import SuggestingGroup
from supervisor.cli.context import config_option, json_option, load_settings, name_of, read_with, use_store
from supervisor.cli.render import print_json
from supervisor.cli.status import print_queues
from supervisor.stores.protocol import Store


@click.group(cls=SuggestingGroup)
def queues() -> None:
    """Look at queues, and pause or resume them."""


@queues.command("list")
@config_option
@json_option
def list_queues(config: Path | None, as_json: bool) -> None:
    """List queues and what waits in them."""
    found = use_store(load_settings(config), lambda store: store.stats()["queues"])
    if as_json:
        for queue in found:
            print_json(queue)
    else:
        print_queues(found)


@queues.command()
@config_option
@click.argument("queue", callback=read_with(name_of))
def pause(config: Path | None, queue: str) -> None:
    """Claim no more jobs from a queue; what runs goes on."""
    _set(config, queue, paused=True)


@queues.command()
@config_option
@click.argument("queue", callback=read_with(name_of))
def resume(config: Path | None, queue: str) -> None:
    """Claim jobs from a paused queue again."""
    _set(config, queue, paused=False)


def _set(config: Path | None, queue: str, *, paused: bool) -> None:
    def apply(store: Store) -> bool:
        already = (queue in store.paused()) == paused
        store.pause(queue, paused)
        store.notify()
        return already

    if use_store(load_settings(config), apply):
        click.echo(f"{queue}: was {'paused already' if paused else 'not paused'}")
    else:
        click.echo(f"{queue}: {'paused' if paused else 'resumed'}")
