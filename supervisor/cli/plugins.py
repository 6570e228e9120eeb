"""supervisor plugins"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from supervisor.cli.context import load_settings, masked
from supervisor.cli.options import config_option, json_option
from supervisor.cli.plugin_scan import location, scan, with_sinks
from supervisor.cli.render import print_block, print_fields, print_heading, print_json
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport


@click.command()
@config_option
@json_option
def plugins(config: Path | None, as_json: bool) -> None:
    """Show the handlers, hooks and sinks of each plugin, and its errors."""
    settings = load_settings(config)
    reports = [_without_secrets(report) for report in with_sinks(settings, scan(settings))]
    if as_json:
        for report in reports:
            print_json(asdict(report))
        return
    if not reports:
        click.echo(f"no plugins in {', '.join(settings.plugins.paths)}: drop a Python file with a @handler there")
    for report in reports:
        _print_report(report)


def _without_secrets(report: SourceReport) -> SourceReport:
    """Mask the texts that a plugin may have written itself."""
    return replace(
        report,
        error=report.error and masked(report.error),
        traceback=masked(report.traceback),
        warnings=tuple(map(masked, report.warnings)),
    )


def _print_report(report: SourceReport) -> None:
    print_heading(report.source)
    print_fields(
        {
            **{f"  handler {info.name}": _options(info) for info in report.handlers},
            "  hooks": ", ".join(report.hooks),
            "  sinks": ", ".join(report.sinks),
            "  error": f"{location(report)}: {report.error}" if report.error else None,
            "  warnings": "; ".join(report.warnings),
        }
    )
    if report.error is None and not report.handlers and not report.hooks:
        click.echo("  no handlers and no hooks")
    if report.traceback:
        print_block(report.traceback)


def _options(info: HandlerInfo) -> str:
    options = [f"{name} {value}" for name, value in info.options.items()]
    return f"line {info.line}" + (f": {', '.join(options)}" if options else "")
