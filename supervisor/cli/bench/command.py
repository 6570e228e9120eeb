"""supervisor bench"""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.context import echo, load_settings
from supervisor.cli.exit_codes import FATAL
from supervisor.cli.options import COUNT, config_option, json_option
from supervisor.cli.render import print_json


@click.command()
@config_option
@json_option
@click.option(
    "--jobs", type=COUNT, default=100_000, show_default=True, help="Number of jobs to enqueue in bulk, and to drain."
)
def bench(config: Path | None, as_json: bool, jobs: int) -> int | None:
    """Measure this config on this machine: enqueue, drain, latency.

    The jobs do nothing. They are in a temporary store beside the configured one: in a folder on the same disk, or in a schema
    of the same database. The configured store is not touched. Plugins and sinks of the config are not loaded; all else is as
    configured.
    """
    from supervisor.cli.bench.interrupts import Interrupts
    from supervisor.cli.bench.measurements import Bench, isolated
    from supervisor.cli.bench.supervisor_process import SupervisorEnded
    from supervisor.cli.bench.temporary_store import temporary_store

    settings = load_settings(config)
    interrupts = Interrupts()
    with interrupts.handled(), temporary_store(settings) as store:
        bench = Bench(isolated(store.settings), store, jobs, interrupts)
        if not as_json:
            echo(bench.heading())
        try:
            figures = dict(bench.figures(report=None if as_json else echo))
        except SupervisorEnded as error:
            echo(f"Error: the benchmark failed: {error}", err=True)
            return FATAL
        if as_json:
            print_json({**bench.about(), **figures})
    return None
