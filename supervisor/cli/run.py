"""supervisor run"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.context import config_option, load_settings, private_files, read_with
from supervisor.config.file_permissions import load_trusted, open_to_others
from supervisor.config.settings import Settings
from supervisor.events import ConfigReloaded
from supervisor.text.redaction import Mask
from supervisor.text.units import parse_duration

if TYPE_CHECKING:
    from supervisor.runtime.supervisor import Supervisor


@click.command()
@config_option
@click.option("--drain", is_flag=True, help="End once the served queues have nothing left, and report.")
@click.option(
    "--horizon",
    callback=read_with(parse_duration),
    help="With --drain: leave what is due later than this after the start.",
)
def run(config: Path | None, drain: bool, horizon: float | None) -> int:
    """Serve jobs until told to stop."""
    if horizon is not None and not drain:
        raise click.UsageError("--horizon goes with --drain")
    settings = load_settings(config, load_trusted)
    return _drain(settings, horizon) if drain else _serve(settings)


def _serve(settings: Settings) -> int:
    from supervisor import telemetry as logs
    from supervisor.runtime.supervisor import Supervisor

    logs.configure(settings.log.level, settings.log.format, mask=Mask(settings.secrets))
    supervisor = Supervisor(settings, reload=_reload(settings), subscribers=[logs.LogSubscriber()])
    _follow_log_settings(supervisor)
    _warn(settings)
    try:
        return supervisor.run()
    finally:
        logs.stop()


def _drain(settings: Settings, horizon: float | None) -> int:
    from supervisor import telemetry as logs
    from supervisor.cli.drain_report import DrainReport, progress
    from supervisor.runtime.supervisor import Supervisor

    report = DrainReport()
    shown = sys.stderr.isatty() and settings.log.format == "text"
    with progress(report, shown) as log_fd:
        logs.configure(settings.log.level, settings.log.format, log_fd, Mask(settings.secrets))
        supervisor = Supervisor(
            settings,
            reload=_reload(settings),
            drain=True,
            horizon=horizon,
            subscribers=[logs.LogSubscriber(), report],
        )
        _follow_log_settings(supervisor)
        _warn(settings)
        try:
            code = supervisor.run()
        finally:
            logs.stop()
    kept = supervisor.settings.retention.failed
    report.print(failed_are_kept=kept is None or kept > report.seconds)
    return code


def _follow_log_settings(supervisor: Supervisor) -> None:
    """Configure the log anew after each reload."""
    from supervisor import telemetry as logs

    def configure(_: ConfigReloaded) -> None:
        new = supervisor.settings
        logs.configure(new.log.level, new.log.format, mask=Mask(new.secrets))

    supervisor.bus.subscribe(configure, ConfigReloaded)


def _warn(settings: Settings) -> None:
    for warning in open_to_others(private_files(settings)):
        logging.getLogger("supervisor").warning("%s", warning)


def _reload(settings: Settings) -> Callable[[], Settings]:
    """The same file again, wherever the search would lead now."""
    return lambda: load_trusted(settings.path)
