"""Write log lines to standard error through a bounded queue and one thread, so that no code that logs waits for their reader.

If the reader is slow, the queue overflows; if the reader has exited or the disk is full, writes fail. In both cases lines are
dropped and counted, and the next line that is written follows one with their number.

Fields for programs are passed as `extra={"fields": {...}}`; `where` begins the message in text only.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import orjson

from supervisor.jobs import Lease
from supervisor.plugins.importer import readable
from supervisor.text.output import wait_for_room
from supervisor.text.printable import JSON_ESCAPES, STEERING, printable
from supervisor.text.redaction import NO_SECRETS, Mask
from supervisor.text.units import counted
from supervisor.threads import start_thread

LOGGER = "supervisor"
_OFFSET = '"kafka.offset":'
MAX_QUEUED_BYTES = 4_000_000
STDERR = 2

# The name or the message of a job must not forge a line, nor steer the terminal that shows it.
_TEXT_ESCAPES = {
    **{code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*range(32), *STEERING)},
    **{surrogate: f"\\u{surrogate:04x}" for surrogate in range(0xD800, 0xE000)},
    ord("\t"): "\t",
    ord("\n"): "\n    ",
    ord("\r"): "\\r",
}


class _Format(logging.Formatter):
    def __init__(self, mask: Mask = NO_SECRETS) -> None:
        super().__init__()
        self._replacements = mask.replacements

    def _mask(self, text: str) -> str:
        for pattern, replacement in self._replacements:
            text = pattern.sub(replacement, text)
        return text

    def _traceback(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return self.formatException(record.exc_info)
        return str(_fields(record).get("traceback", ""))


class TextFormat(_Format):
    """`2026-11-28T08:00:00.000Z INFO message`; further lines of a record are indented by four spaces."""

    def format(self, record: logging.LogRecord) -> str:
        name = _logger(record)
        source = "" if f"{name}.".startswith(f"{LOGGER}.") else f"{name}: "
        text = f"{source}{getattr(record, 'where', '')}{record.getMessage()}"
        if trace := self._traceback(record):
            text += "\n" + trace.rstrip("\n")
        return (
            f"{_time(record)} {record.levelname.translate(_TEXT_ESCAPES)} {self._mask(text).translate(_TEXT_ESCAPES)}"
        )


class JsonFormat(_Format):
    """One object per line: `at`, `level`, `logger`, `message`, the fields, and `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **_fields(record),
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": _logger(record),
            "message": record.getMessage(),
        }
        if trace := self._traceback(record):
            line["traceback"] = trace
        masked = {key: self._mask(value) if isinstance(value, str) else value for key, value in line.items()}
        return _json(masked).decode().translate(JSON_ESCAPES)


FORMATS: Mapping[str, type[_Format]] = {"text": TextFormat, "json": JsonFormat}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _logger(record: logging.LogRecord) -> str:
    """Return the name of the logger; that of a plugin's module is without the long name of its folder."""
    return record.name if record.name == LOGGER else readable(record.name)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _json(line: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str)
    except TypeError:  # a lone surrogate somewhere: only then is each text searched for it
        return orjson.dumps(
            {key: printable(value if isinstance(value, str) else repr(value)) for key, value in line.items()}
        )


class LogOutput(logging.Handler):
    """Writes to file descriptor `fd`. `dropped` counts the lines that were lost, whatever the reason."""

    def __init__(self, fd: int = STDERR, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        super().__init__()
        self._fd = fd
        self._max_bytes = max_bytes
        # A signal handler or a destructor may log while a line is put: SimpleQueue.put allows that, a lock would not.
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        # Each counter is written on one side only (by the callers, who hold the handler's lock, or by the thread): no lock.
        self._bytes_put = self._bytes_taken = 0
        self._overflowed = self._failed = self._reported = 0
        self._torn = self._stopped = False
        self._thread = start_thread(self._write_lines, "log")

    @property
    def dropped(self) -> int:
        return self._overflowed + self._failed

    def emit(self, record: logging.LogRecord) -> None:
        line = self._line(record)
        if self._bytes_put - self._bytes_taken + len(line) > self._max_bytes:
            self._overflowed += 1
            return
        self._bytes_put += len(line)
        self._queue.put(line)

    def flush(self, timeout: float = 1.0) -> None:
        """Wait, up to `timeout` seconds, until all lines logged before are written or lost."""
        if not self._stopped:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait(timeout)

    def stop(self, timeout: float = 1.0) -> None:
        """Write the queued lines and end the thread; stop waiting for it after `timeout` seconds."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join(timeout)

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:
            text = f"{record.levelname} unreadable log record of {record.pathname}:{record.lineno}: {error!r}"
        return text.encode("utf-8", "backslashreplace") + b"\n"

    def _write_lines(self) -> None:
        # In the background of a terminal with `stty tostop`, each write would send TTOU to the supervisor, which stops a worker.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            self._report_dropped()
            self._failed += not self._write(item)
            self._bytes_taken += len(item)
        self._report_dropped()

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if dropped == self._reported:
            return
        lines = counted(dropped - self._reported, "log line")
        message = "%s dropped: standard error was not read, or could not be written"
        report = logging.LogRecord(LOGGER, logging.WARNING, __file__, 0, message, (lines,), None)
        if self._write(self._line(report)):
            self._reported = dropped

    def _write(self, line: bytes) -> bool:
        rest = memoryview(b"\n" + line if self._torn else line)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                    self._torn = bool(rest)
                except BlockingIOError:
                    wait_for_room(self._fd)
        except OSError:
            return False
        return True


def configure(level: str, format: str, fd: int = STDERR, mask: Mask = NO_SECRETS) -> LogOutput:
    """Send all log records of this process to `fd`; called again, change `level`, `format` ("text" or "json") and `mask`."""
    root = logging.getLogger()
    output = _output()
    if output is None:
        output = LogOutput(fd)
        root.addHandler(output)
    output.setFormatter(FORMATS[format](mask))
    root.setLevel(level.upper())
    return output


def stop(timeout: float = 1.0) -> None:
    """Write the queued lines and remove the output: records that are logged later go nowhere."""
    if (output := _output()) is not None:
        logging.getLogger().removeHandler(output)
        output.stop(timeout)
        output.close()


def _output() -> LogOutput | None:
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, LogOutput)), None)


def named(lease: Lease) -> str:
    """Return the id and the handler of a job as lines name it; with a Kafka store also its record, which people look for."""
    place = record_place(lease)
    return f"job={lease.id} handler={lease.handler}{f' record={place}' if place else ''}"


def job_fields(lease: Lease) -> dict[str, Any]:
    """Return the fields of a line about the job in a log of JSON."""
    fields = {"job": lease.id, "handler": lease.handler, "queue": lease.queue, "attempt": lease.attempt}
    return {**fields, "record": place} if (place := record_place(lease)) else fields


def record_place(lease: Lease) -> str | None:
    """Return the place of the record, as in `orders/3@1207`, or None for a job that is none."""
    if lease.headers is None or _OFFSET not in lease.headers:
        return None
    headers = orjson.loads(lease.headers)
    return f"{lease.queue}/{headers.get('kafka.partition')}@{headers.get('kafka.offset')}"
