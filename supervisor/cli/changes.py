"""Commands that change jobs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import click

from supervisor.cli.context import UserMistake, load_settings
from supervisor.cli.store_access import use_store
from supervisor.stores.protocol import Store

MAX_REFUSED = 20  # refused jobs named in the message

Result = tuple[list[int], dict[int, str]]
"""The ids of the changed jobs, and why each of the others was refused."""


def change_jobs(config: Path | None, done: str, change: Callable[[Store], Result], *, empty: str = "") -> None:
    """Change jobs in the store of the config, and print `done` and their ids, or `empty` if there were none.

    Raises UserMistake if any job was refused; the others are changed all the same.
    """

    def change_and_notify(store: Store) -> Result:
        result = change(store)
        store.notify()
        return result

    changed, refused = use_store(load_settings(config), change_and_notify)
    if changed:
        click.echo(f"{done}: {' '.join(map(str, changed))}")
    elif empty and not refused:
        click.echo(empty)
    if refused:
        reasons = [f"job {id}: {reason}" for id, reason in islice(refused.items(), MAX_REFUSED)]
        more = len(refused) - len(reasons)
        raise UserMistake("; ".join(reasons) + (f"; and {more:,} more" if more else ""))
