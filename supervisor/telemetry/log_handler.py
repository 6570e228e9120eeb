"""Lines go to standard error through a bounded queue and one thread, so nobody who logs ever waits for its reader.

When the reader is slow the queue overflows; when it is gone or its disk is full, writes fail. Either way lines are dropped
and counted, and the next line that gets through is preceded by one that says how many.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from supervisor.telemetry.log_formatters import FORMATS
from supervisor.text.output import write_some
from supervisor.text.redaction import NO_SECRETS, Mask

MAX_BYTES = 4_000_000
STDERR = 2


class LogOutput(logging.Handler):
    """Writes to file descriptor `fd`. `dropped` counts the lines that were lost, whatever the reason."""

    def __init__(self, fd: int = STDERR, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._fd = fd
        self._max_bytes = max_bytes
        # SimpleQueue.put may be interrupted by itself (a signal handler, a destructor); a lock of ours may not.
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        # Each number has one writing side (the logging callers, who hold the handler's lock; the thread), so none is locked.
        self._bytes_put = self._bytes_taken = 0
        self._overflowed = self._failed = self._said = 0
        self._torn = self._stopped = False
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

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
        """Wait, up to `timeout` seconds, until what was logged before is written or lost."""
        if not self._stopped:
            reached = threading.Event()
            self._queue.put(reached)
            reached.wait(timeout)

    def stop(self, timeout: float = 1.0) -> None:
        """Write what is queued and end the thread; give up after `timeout` seconds if nobody reads."""
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
        if dropped == self._said:
            return
        note = logging.makeLogRecord(
            {
                "name": __name__,
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "%d log lines dropped: standard error was not read, or could not be written",
                "args": (dropped - self._said,),
            }
        )
        if self._write(self._line(note)):
            self._said = dropped

    def _write(self, line: bytes) -> bool:
        rest = memoryview(b"\n" + line if self._torn else line)
        try:
            while rest:
                rest = rest[write_some(self._fd, rest) :]
                self._torn = bool(rest)
        except OSError:
            return False
        return True


def configure(level: str, format: str, fd: int = STDERR, mask: Mask = NO_SECRETS) -> LogOutput:
    """Send everything logged in this process to `fd`; called again, change `level`, `format` ("text" or "json") and `mask`."""
    root = logging.getLogger()
    output = _output()
    if output is None:
        output = LogOutput(fd)
        root.addHandler(output)
    output.setFormatter(FORMATS[format](mask))
    root.setLevel(level.upper())
    return output


def flush(timeout: float = 1.0) -> None:
    if (output := _output()) is not None:
        output.flush(timeout)


def stop(timeout: float = 1.0) -> None:
    """The last call: what is logged after it goes nowhere."""
    if (output := _output()) is not None:
        logging.getLogger().removeHandler(output)
        output.stop(timeout)
        output.close()


def _output() -> LogOutput | None:
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, LogOutput)), None)
