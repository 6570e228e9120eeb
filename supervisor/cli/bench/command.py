"""supervisor bench"""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.context import COUNT, config_option, echo, json_option, load_settings
from supervisor.cli.render import print_json

FATAL = 1


@click.command()
@config_option
@json_option
@click.option(
    "--jobs", type=COUNT, default=100_000, show_default=True, help="How many are enqueued in bulk, and drained."
)
def bench(config: Path | None, as_json: bool, jobs: int) -> int | None:
    """Measure this config on this machine: enqueue, drain, latency.

    The jobs do nothing, in a store of their own beside the configured one, which is not touched: a folder on the same disk,
    or a schema of the same database. Workers, limits and the rest are as configured; the plugins and sinks of the config are
    left out.
    """
    from supervisor.cli.bench.interrupts import Interrupts
    from supervisor.cli.bench.measurements import Bench, harmless
    from supervisor.cli.bench.own_store import own_store
    from supervisor.cli.bench.supervisor_process import SupervisorEnded

    settings = load_settings(config)
    interrupts = Interrupts()
    with interrupts.heard(), own_store(settings) as own:
        bench = Bench(harmless(own.settings), own, jobs, interrupts)
        if not as_json:
            echo(bench.heading())
        try:
            rows = dict(bench.rows(echo=None if as_json else echo))
        except SupervisorEnded as error:
            echo(f"Error: the benchmark failed: {error}", err=True)
            return FATAL
        if as_json:
            print_json({**bench.about(), **rows})
    return None
