"""Reports of what plugins raise: short, printable, and without the frames of importing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import traceback

from supervisor.errors import PluginMistake
from supervisor.plugins.discovery import Source
from supervisor.plugins.importer import readable
from supervisor.plugins.reports import SourceReport
from supervisor.text.printable import printable, shortened

MAX_TEXT = 64 * 1024
"""Characters of an error, and of a traceback."""


def failure_report(source: Source, error: BaseException) -> SourceReport:
    """Return the report of a source that could not be loaded."""
    if isinstance(error, PluginMistake):
        return SourceReport(source.name, error=_bounded(str(error)), line=error.line)
    try:
        line, trace = _line_in(_file_of(source), error), _bounded(formatted(error))
        return SourceReport(source.name, error=_bounded(described(error)), line=line, traceback=trace)
    except Exception as second:  # an exception's own attributes may be anything
        message = f"{type(error).__name__}: <no message: making it raised {type(second).__name__}>"
        return SourceReport(source.name, error=printable(message))


def described(error: BaseException) -> str:
    """Return type and message in one line."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"it raised {type(error).__name__}, but a plugin must not end the program"
    message = " ".join(str(traceback.TracebackException.from_exception(error, limit=0)).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def formatted(error: BaseException) -> str:
    """Return the traceback, without the frames of importing."""
    whole = traceback.TracebackException.from_exception(error)
    chain = [whole]  # may be longer than the interpreter recurses
    while chain:
        one = chain.pop()
        one.stack[:] = [frame for frame in one.stack if not _imports(frame.filename)]
        chain += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return readable("".join(whole.format()))


def _imports(file: str) -> bool:
    """Whether code of this file only imports plugins."""
    return os.path.dirname(file) == os.path.dirname(__file__) or file.startswith("<frozen importlib")


def _bounded(text: str) -> str:
    return shortened(printable(text), MAX_TEXT)


def _file_of(source: Source) -> str | None:
    if source.path is not None:
        return str(source.path)
    name = source.module or (source.entry.module if source.entry else None)
    with contextlib.suppress(BaseException):  # a parent package is imported by this, and may do anything
        spec = importlib.util.find_spec(name) if name else None
        return spec.origin if spec else None
    return None


def _line_in(file: str | None, error: BaseException) -> int | None:
    """The line of this file where the error came up."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno if type(error.lineno) is int else None
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
