"""Make reports of exceptions that plugins raise: short, printable, and without the frames of the import machinery."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from supervisor.errors import PluginMistake
from supervisor.plugins.discovery import Source, why_not_found
from supervisor.plugins.importer import readable
from supervisor.plugins.reports import SourceReport
from supervisor.text.printable import printable, shortened

MAX_TEXT = 64 * 1024
"""The maximum of characters of an error, and of a traceback."""
MAX_PARTS = 1000  # of a group of exceptions


def failure_report(source: Source, error: BaseException) -> SourceReport:
    """Return the report of a source that could not be loaded."""
    if isinstance(error, PluginMistake):
        return SourceReport(source.name, error=_bounded(str(error)), line=error.line)
    try:
        line, trace = _line_in(_file_of(source), error), _bounded(formatted(error))
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        hint = why_not_found(name) if type(name) is str else None
        text = described(error) + (f": {hint}" if hint else "")
        return SourceReport(source.name, error=_bounded(text), line=line, traceback=trace)
    except Exception as second:  # code of the plugin's exception raised it
        message = f"{type(error).__name__}: <no message: its text could not be made: {type(second).__name__}>"
        return SourceReport(source.name, error=printable(message))


def described(error: BaseException) -> str:
    """Return the type and the message of `error` in one line."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"it raised {type(error).__name__}, but a plugin must not end the program"
    message = " ".join(str(traceback.TracebackException.from_exception(error, limit=0)).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def formatted(error: BaseException) -> str:
    """Return the traceback of `error`, without the frames of the import machinery."""
    whole = traceback.TracebackException.from_exception(error)
    chain = [whole]  # a loop, since a chain of causes may be too long for recursion
    while chain:
        one = chain.pop()
        one.stack[:] = [frame for frame in one.stack if not _imports(frame.filename)]
        chain += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return readable("".join(whole.format()))


def type_name(kind: type[BaseException]) -> str:
    """Return the name with its module, unless that is `builtins` or `__main__`."""
    module = kind.__module__
    return printable(kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}")


def parts_of(error: BaseException) -> list[BaseException]:
    """Return the exception, and those in it if it is a group: such as those that the tasks of an asyncio.TaskGroup have raised."""
    parts = [error]
    for each in parts:
        if isinstance(each, BaseExceptionGroup) and len(parts) < MAX_PARTS:
            parts.extend(each.exceptions)
    return parts


def from_handler(trace: TracebackType | None, hidden: Mapping[str, Any]) -> TracebackType | None:
    """Return the trace from its first frame that is neither of this package nor of the plugin with these globals; all of it if there is
    none."""
    entry = trace
    while entry is not None:
        found = entry.tb_frame.f_globals
        if found is not hidden and not _is_own(found.get("__name__", "")):
            return entry
        entry = entry.tb_next
    return trace


def _is_own(module: str) -> bool:
    return module.startswith("supervisor.") and not module.startswith("supervisor.plugins.importer.")


def _imports(file: str) -> bool:
    """Return whether `file` belongs to the import machinery."""
    return os.path.dirname(file) == os.path.dirname(__file__) or file.startswith("<frozen importlib")


def _bounded(text: str) -> str:
    return shortened(printable(text), MAX_TEXT)


def _file_of(source: Source) -> str | None:
    if source.path is not None:
        return str(source.path)
    name = source.module or (source.entry.module if source.entry else None)
    with contextlib.suppress(BaseException):  # find_spec imports the parent package, which may raise anything
        spec = importlib.util.find_spec(name) if name else None
        return spec.origin if spec else None
    return None


def _line_in(file: str | None, error: BaseException) -> int | None:
    """Return the last line of `file` in the traceback of `error`, or its line if it is a syntax error there."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno if type(error.lineno) is int else None
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
