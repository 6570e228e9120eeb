"""Send log records of plugins to the supervisor, so that its log has each as one record, with its level and its job."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from itertools import count
from os import write  # before the plugins, which may replace it
from typing import Any

from supervisor.events import HookFailed
from supervisor.jobs import LOGGER, Job
from supervisor.plugins.failures import formatted
from supervisor.plugins.importer import readable
from supervisor.text.output import has_room, wait_for_room
from supervisor.workers import log_records
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.stdio import Stream, note_written
from supervisor.workers.interface import WorkerProgress, WorkerRecord

OURS = "supervisor"


class RecordHandler(logging.Handler):
    """A handler of the root logger. A plugin that configures the root logger replaces it, as it would any handler.

    `job` is the running one. Records below `level`, that of the supervisor's log, are not even formatted.
    """

    def __init__(self, level: str, fd: int, token: str) -> None:
        super().__init__(level.upper())
        self.job: Job | None = None
        self.on_record: Callable[[Job], None] | None = None
        """Called with the job of each record, if it is set."""
        self._keys = count()
        self.connect(fd, token)

    def connect(self, fd: int, token: str) -> None:
        """Write to this descriptor from now on; the lines begin with `token`."""
        self._fd = fd
        self._token = token.encode()

    def install(self) -> None:
        """Add this handler to the root logger. Call it before the plugins are imported, which may configure logging."""
        logging.root.addHandler(self)
        logging.root.setLevel(self.level)
        self._let_basic_config_replace_it()

    def _let_basic_config_replace_it(self) -> None:
        """`basicConfig` does nothing if the root logger has a handler, which must not be true for this one. If a plugin sets nothing
        but the level, there is no handler to replace this one."""
        original = logging.basicConfig

        @wraps(original)
        def basic_config(**options: Any) -> None:
            root = logging.root
            if root.handlers != [self]:
                original(**options)
            elif options.keys() <= {"level", "force"}:
                if options.get("level") is not None:
                    root.setLevel(options["level"])
            else:
                root.removeHandler(self)
                try:
                    original(**options)
                except BaseException:
                    root.handlers = root.handlers or [self]
                    raise

        logging.basicConfig = basic_config

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not _is_shown(record):
                name, level_name = readable(record.name), str(record.levelname)
                self._send(record.levelno, level_name, name, _message(record), _traceback(record))
        except Exception:
            self.handleError(record)

    def report(self, level: int, message: str, traceback: str = "") -> None:
        """Send a record of the worker itself, whatever plugins have configured."""
        if level >= self.level:
            self._send(level, logging.getLevelName(level), OURS, message, traceback)

    def report_exception(self, message: str, error: BaseException) -> None:
        self.report(logging.ERROR, message, formatted(error))

    def report_hook(self, failed: HookFailed) -> None:
        self.report(logging.ERROR, failed.text, failed.traceback)

    def log_for(self, job: Job, level: int, message: str) -> None:
        """Send a record of the job itself, whatever plugins have configured."""
        if level >= self.level:
            self._send(level, logging.getLevelName(level), LOGGER, readable(message), "", job)

    def _send(self, level: int, level_name: str, logger: str, message: str, trace: str, of: Job | None = None) -> None:
        job = of or self.job or CURRENT.get()
        about = (job.id, job.handler, job.attempt) if job is not None else ()
        record = WorkerRecord(level, level_name, logger, message, trace, *about)
        self.send(record)
        if self.on_record is not None and job is not None:
            self.on_record(job)
        note_written()

    def send(self, record: WorkerRecord | WorkerProgress) -> None:
        key = f"{os.getpid()}.{next(self._keys)}"  # processes that the job forks write to the same pipe
        for line in log_records.lines_of(record, self._token, key):
            self._write(line)

    def has_room(self) -> bool:
        """Return whether the next line can be written without a wait."""
        return has_room(self._fd)

    def _write(self, line: bytes) -> None:
        while True:
            try:
                write(self._fd, line)  # at most PIPE_BUF bytes: all or none of them
                return
            except BlockingIOError:  # a program of the job has made the pipe non-blocking
                wait_for_room(self._fd)
            except OSError:  # the supervisor has exited, or a job has closed the descriptor
                return


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether a handler of a plugin writes the record to a standard stream, which the supervisor logs too."""
    logger: Any = logging.root.manager.loggerDict.get(record.name, logging.root)
    while isinstance(logger, logging.Logger):
        for handler in logger.handlers:
            stream = getattr(handler, "stream", None)
            if record.levelno >= handler.level and (isinstance(stream, Stream) or _is_initial(stream)):
                return True
        logger = logger.parent if logger.propagate else None
    return False


def _is_initial(stream: Any) -> bool:
    return stream is not None and stream in (sys.__stdout__, sys.__stderr__)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # its arguments do not fit, or their code raised it
        return f"unreadable log record of {record.pathname}:{record.lineno}: {type(error).__name__}: {error}"


def _traceback(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[1] is not None:
        parts.append(formatted(record.exc_info[1]))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(record.stack_info)
    return readable("".join(parts))
