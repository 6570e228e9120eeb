"""Refuse new jobs for handlers that no plugin has: most of their names are misspelt."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping

from supervisor.cli.context import UserMistake
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, NoForkserver, SystemRefused
from supervisor.plugins.discovery import discover, files_of_plugins
from supervisor.text.names import did_you_mean_or_all


def refuse_unknown_handlers(settings: Settings, handlers: Collection[str], places: Mapping[str, str]) -> None:
    """Raise UserMistake if no plugin has one of the handlers. Without plugins, or if one of them does not load, that is not known.
    `places` are the lines of a file that name them first.

    The plugins are imported only for a name that stands nowhere in their files, so that the usual command takes no longer.
    """
    doubtful = _without_mention({*handlers} - {*settings.handlers}, settings)
    known = _handlers_of_plugins(settings) if doubtful else []
    problems = [
        f"{places[name] + ': ' if name in places else ''}handler {name!r}: no plugin has it{did_you_mean_or_all(name, known)}"
        for name in handlers
        if name in doubtful and known and name not in known
    ]
    if problems:
        raise UserMistake("\n".join([*problems, "nothing was enqueued; --force enqueues such jobs all the same"]))


def _without_mention(names: set[str], settings: Settings) -> set[str]:
    for file in files_of_plugins(settings.plugins.paths, settings.base):
        if names:
            try:
                text = file.read_text("utf-8", "replace")
            except OSError:
                continue
            names = {name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)}
    return names


def _handlers_of_plugins(settings: Settings) -> list[str]:
    """Return the handlers that the plugins have, or nothing if some plugin can't be loaded: it may have any."""
    sources = discover(settings.plugins.paths, settings.base)
    if not sources or any(source.problem and not _is_installed(source.module) for source in sources):
        return []
    from supervisor.cli.plugin_scan import scan

    try:
        reports = scan(settings)
    except (ConfigError, NoForkserver, SystemRefused):
        return []
    if any(report.error is not None for report in reports):
        return []
    return sorted(info.name for report in reports for info in report.handlers)


def _is_installed(module: str | None) -> bool:
    return module is not None and importlib.util.find_spec(module.partition(".")[0]) is not None
