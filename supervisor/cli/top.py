"""supervisor top"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import UserMistake, current_context, load_settings
from supervisor.cli.exit_codes import DONE
from supervisor.cli.options import config_option, interval_of, read_with
from supervisor.cli.store_access import opener_of
from supervisor.errors import Unsupported
from supervisor.stores.store_thread import StoreThread

if TYPE_CHECKING:
    from supervisor.cli.live.app import Top

EXTRA = "top: expected the packages of its extra; install them with: pip install 'job-supervisor[top]'"


@click.command()
@config_option
@click.option(
    "--interval", metavar="SECONDS", default="2", show_default=True, callback=read_with(interval_of),
    help="Look at the store again after so many seconds.",
)  # fmt: skip
def top(interval: float) -> int:
    """Show queues, workers, problems and jobs in this terminal, live, with keys to change them: ? explains them."""
    settings = load_settings()
    if not all(stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        raise UserMistake("top: expected a terminal for input, output and errors; use: supervisor status --watch")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise UserMistake("top: expected a terminal that places its cursor (TERM); use: supervisor status --watch")
    application = application_class()
    store = StoreThread(opener_of(settings))
    app = application(store, settings.store.shown, settings.dlq.names, interval, current_context().shown)
    try:
        app.run(mouse=False)
    finally:
        store.close()
    if isinstance(app.failure, Unsupported):
        raise UserMistake(f"top: {app.failure}; or use: supervisor status --watch")
    if app.failure is not None:
        raise app.failure
    return DONE


def application_class() -> type[Top]:
    try:
        from supervisor.cli.live.app import Top
    except ImportError as error:
        raise UserMistake(f"{EXTRA} ({error})") from None
    return Top
