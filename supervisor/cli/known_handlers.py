"""Refuse new jobs for handlers that no plugin has, most of whose names are misspelt, and payloads that do not fit a handler."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.cli.context import UserMistake
from supervisor.config.settings import Settings
from supervisor.errors import ConfigError, NoForkserver, SystemRefused
from supervisor.plugins.discovery import discover, files_of_plugins
from supervisor.plugins.handlers_in_files import handlers_in, takes_any_payload
from supervisor.stores.records import EnqueueBatch
from supervisor.text.names import did_you_mean_or_all

MAX_PROBLEMS = 20  # bad payloads named in the message


class Lines(NamedTuple):
    """The lines of a file from which rows come, in order."""

    file: str
    numbers: Sequence[int]

    def prefix(self, index: int) -> str:
        """Return `file:line: ` for a row, and nothing if the rows come from no file."""
        return f"{self.file}:{self.numbers[index]}: " if self.numbers else ""

    def prefix_of(self, index: int | None) -> str:
        return "" if index is None else self.prefix(index)


NO_LINES = Lines("", ())


def refuse_unknown_handlers(settings: Settings, rows: EnqueueBatch, lines: Lines) -> None:
    """Raise UserMistake if no plugin has one of the handlers. Without plugins, or if one of them does not load, that is not known.

    The plugins are imported only for a name that stands nowhere in their files, so that the usual command takes no longer.
    """
    doubtful = _without_mention({row.handler for row in rows.kinds} - {*settings.handlers}, settings)
    known = _handlers_of_plugins(settings) if doubtful else []
    problems = [
        f"{lines.prefix(index)}handler {name!r}: no plugin has it{did_you_mean_or_all(name, known)}"
        for name, index in _first_rows(rows).items()
        if name in doubtful and known and name not in known
    ]
    if problems:
        raise UserMistake("\n".join([*problems, "nothing was enqueued; --force enqueues such jobs all the same"]))


def _first_rows(rows: EnqueueBatch) -> dict[str, int]:
    """Return the index of the first row of each handler, in their order."""
    first: dict[str, int] = {}
    for index, place in enumerate(rows.places):
        first.setdefault(rows.kinds[place].handler, index)
    return first


def refuse_misfits(settings: Settings, rows: EnqueueBatch, lines: Lines) -> None:
    """Raise UserMistake if a payload does not fit the parameters of its handler.

    The plugins are imported only for handlers whose functions have parameters: others take any payload.
    """
    files = files_of_plugins(settings.plugins.paths, settings.base)
    wanted = {row.handler for row in rows.kinds}
    typed = {name for file in files for name, function in handlers_in(file) if not takes_any_payload(function)}
    checked = [(index, row) for index, row in enumerate(rows) if row.handler in typed] if typed & wanted else []
    if not checked:
        return
    from supervisor.cli.plugin_scan import misfits

    try:
        found = misfits(settings, [(row.handler, row.payload) for _, row in checked])
    except (ConfigError, NoForkserver, SystemRefused):
        return
    problems = []
    for place, message in found[:MAX_PROBLEMS]:
        index, row = checked[place]
        problems.append(f"{lines.prefix(index)}handler {row.handler!r}: {message}")
    if len(found) > MAX_PROBLEMS:
        problems.append(f"... and {len(found) - MAX_PROBLEMS} more")
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
