"""supervisor call"""

from __future__ import annotations

import click

from supervisor.cli.completion import complete_handler
from supervisor.cli.context import load_settings
from supervisor.cli.enqueue import payload_of
from supervisor.cli.options import config_option
from supervisor.config.file_permissions import load_trusted


@click.command()
@config_option
@click.argument("handler", shell_complete=complete_handler)
@click.argument("payload", required=False, metavar="[JSON]")
def call(handler: str, payload: str | None) -> int | None:
    """Run HANDLER once, here and now, without a store, and print its result.

    JSON is the payload, null by default; - reads it from standard input. The log and the output of the handler go to standard
    error, the result as JSON to standard output. There is no timeout, and breakpoint() works.
    """
    from supervisor.cli.call_here import call_here  # a shell that completes must not wait for these imports

    return call_here(load_settings(load_trusted), handler, payload_of(payload))
