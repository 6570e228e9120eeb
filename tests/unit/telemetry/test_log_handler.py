import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor import telemetry as logs
from supervisor.telemetry.log_handler import JsonFormat, LogOutput, TextFormat

PIPE = 65_536


class Reader:
    """The other end of standard error, read only after `start`."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe()
        self._read: list[bytes] = []
        self._thread = threading.Thread(target=self._read_all, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def lines(self) -> list[str]:
        """Return all lines up to the end of the pipe, which is closed for writing."""
        os.close(self.write_fd)
        if not self._thread.ident:
            self.start()
        self._thread.join(10)
        os.close(self.fd)
        return b"".join(self._read).decode().splitlines()

    def _read_all(self) -> None:
        while data := os.read(self.fd, PIPE):
            self._read.append(data)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def output(reader: Reader) -> Iterator[LogOutput]:
    output = LogOutput(reader.write_fd, max_bytes=20_000)
    output.setFormatter(TextFormat())
    yield output
    output.stop()


def record(message: str, *arguments: Any, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    made = {"name": "supervisor", "levelno": level, "levelname": logging.getLevelName(level), "created": 1e9}
    return logging.makeLogRecord({**made, "msg": message, "args": arguments, **more})


def test_lines_arrive_in_order(reader: Reader, output: LogOutput) -> None:
    for number in range(100):
        output.handle(record("line %d", number))
    output.stop()
    assert reader.lines() == [f"2001-09-09T01:46:40.000Z INFO line {number}" for number in range(100)]
    assert output.dropped == 0


def test_flush_waits_until_lines_logged_before_are_written(reader: Reader, output: LogOutput) -> None:
    output.handle(record("first"))
    output.flush(10)
    assert os.read(reader.fd, PIPE).endswith(b"first\n")


def test_a_reader_that_stopped_reading_costs_lines_but_no_time(reader: Reader, output: LogOutput) -> None:
    for _ in range(2000):
        output.handle(record("x" * 200))
    assert 0 < output.dropped < 2000
    dropped = output.dropped
    reader.start()
    output.flush(10)
    output.handle(record("read again"))
    output.stop()
    lines = reader.lines()
    assert sum(line.endswith("xxx") for line in lines) == 2000 - dropped
    notices = [line for line in lines if "log lines dropped" in line]
    assert sum(int(line.split()[2]) for line in notices) == dropped
    assert " WARNING " in notices[0]
    assert lines[-1].endswith("read again")


def test_lines_lost_last_are_reported_at_the_end(
    reader: Reader, output: LogOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        output.handle(record("lost"))
        output.flush(10)
    output.stop()
    (line,) = reader.lines()
    assert "1 log line dropped" in line


def test_stop_gives_up_on_a_reader_that_never_reads(reader: Reader, output: LogOutput) -> None:
    for _ in range(2000):
        output.handle(record("x" * 200))
    output.stop(timeout=0.01)
    output.flush(timeout=3600.0)
    os.close(reader.fd)


def test_a_reader_that_has_gone_raises_nothing(reader: Reader, output: LogOutput) -> None:
    os.close(reader.fd)
    for _ in range(10):
        output.handle(record("to nobody"))
    output.flush(10)
    assert output.dropped == 10


def test_a_full_disk_raises_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    output = LogOutput(full)
    output.handle(record("nowhere to go"))
    output.stop()
    os.close(full)
    assert output.dropped == 1


def test_a_line_torn_by_an_error_is_ended_before_the_next(
    reader: Reader, output: LogOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = os.write, [7, OSError("disk full")]

    def write(fd: int, data: Any) -> int:
        answer = answers.pop(0) if answers else len(data)
        if isinstance(answer, OSError):
            raise answer
        return real(fd, bytes(data)[:answer])

    monkeypatch.setattr(os, "write", write)
    output.handle(record("torn"))
    output.handle(record("whole"))
    output.stop()
    lines = reader.lines()
    assert lines[0] == "2001-09"
    assert "1 log line dropped" in lines[1]
    assert lines[2].endswith("INFO whole")


def test_a_non_blocking_standard_error_loses_nothing(
    reader: Reader, output: LogOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.set_blocking(reader.write_fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader.write_fd, b"x" * 100)
    real, full = os.write, threading.Event()

    def write(fd: int, data: Any) -> int:
        try:
            return real(fd, data)
        except BlockingIOError:
            full.set()
            raise

    monkeypatch.setattr(os, "write", write)
    output.handle(record("waited" * 500))
    assert full.wait(10)
    reader.start()
    output.stop(10)
    assert reader.lines()[-1].endswith("waited" * 500)


def test_the_limit_is_on_queued_lines_not_on_all_lines_ever_logged(reader: Reader, output: LogOutput) -> None:
    reader.start()
    for _ in range(50):
        for _ in range(20):
            output.handle(record("x" * 200))
        output.flush(10)
    output.stop()
    assert len(reader.lines()) == 1000


def test_a_signal_handler_may_log_while_a_line_is_being_logged(reader: Reader, output: LogOutput) -> None:
    class Interrupted(TextFormat):
        def format(self, record: logging.LogRecord) -> str:
            if record.msg == "outer":
                signal.raise_signal(signal.SIGUSR1)
            return super().format(record)

    output.setFormatter(Interrupted())
    before = signal.signal(signal.SIGUSR1, lambda *_: output.handle(record("inner")))
    try:
        output.handle(record("outer"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    output.stop()
    assert [line.split()[-1] for line in reader.lines()] == ["inner", "outer"]


def test_a_record_that_can_not_be_formatted_is_reported_not_raised(reader: Reader, output: LogOutput) -> None:
    output.handle(record("%d jobs", "many", pathname="thumbs.py", lineno=7))
    output.stop()
    assert reader.lines()[0].startswith("INFO unreadable log record of thumbs.py:7: TypeError(")


def test_configure_again_changes_level_and_format_of_the_same_output(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(root, "handlers", [])
    logger = logging.getLogger("supervisor.test")
    output = logs.configure("info", "text", reader.write_fd)
    logger.debug("not logged")
    logger.info("as text")
    assert logs.configure("debug", "json") is output
    logger.debug("as json")
    output.flush()
    logs.stop()
    logs.stop()
    output.flush()
    assert root.handlers == []
    text, json = reader.lines()
    assert text.endswith(" INFO as text")
    assert orjson.loads(json)["message"] == "as json"


def test_the_name_of_a_level_forges_no_line() -> None:
    odd = record("x")
    odd.levelname = "INFO\n2026 ERROR forged"
    assert all(line.startswith("    ") for line in TextFormat().format(odd).splitlines()[1:])


def test_text_is_one_record_whatever_is_in_it() -> None:
    line = TextFormat().format(record("a\nb\r\x1b[31mc\x00\x85\u2028\ud800\td\u202e"))
    assert line == "2001-09-09T01:46:40.000Z INFO a\n    b\\r\\x1b[31mc\\x00\\x85\\u2028\\ud800\td\\u202e"
    assert len(line.splitlines()) == 2


def test_text_shows_tracebacks_indented_and_other_loggers_by_name() -> None:
    line = TextFormat().format(record("odd", name="asyncio", fields={"traceback": "Traceback\n  boom\n"}))
    assert line == "2001-09-09T01:46:40.000Z INFO asyncio: odd\n    Traceback\n      boom"
    try:
        raise ValueError("boom")
    except ValueError as error:
        failed = record("failed", exc_info=(type(error), error, error.__traceback__))
    assert TextFormat().format(failed).endswith("\n    ValueError: boom")
    assert orjson.loads(JsonFormat().format(failed))["traceback"].endswith("ValueError: boom")


def test_json_is_one_line_with_the_fields_of_the_event() -> None:
    line = JsonFormat().format(
        record("job=%d\nlogged", 42, level=logging.WARNING, fields={"job": 42, "handler": "thumb"})
    )
    assert "\n" not in line
    assert orjson.loads(line) == {
        "at": "2001-09-09T01:46:40.000Z",
        "level": "warning",
        "logger": "supervisor",
        "message": "job=42\nlogged",
        "job": 42,
        "handler": "thumb",
    }


def test_json_steers_no_terminal_and_keeps_its_value() -> None:
    line = JsonFormat().format(record("a\x9b31mb\x7f\u202ec\u2028"))
    assert line.isascii()
    assert orjson.loads(line)["message"] == "a\x9b31mb\x7f\u202ec\u2028"


def test_json_takes_lone_surrogates_and_odd_values() -> None:
    odd = orjson.loads(JsonFormat().format(record("a\ud800", fields={"path": Path("x"), "name": "\udcff"})))
    assert (odd["message"], odd["name"]) == ("a\\ud800", "\\udcff")
    assert orjson.loads(JsonFormat().format(record("fine", fields={"path": Path("x")})))["path"] == "x"


@pytest.mark.parametrize("name", ["supervisor.plugins.importer.2f746d70.mail", "mail"])
def test_the_logger_of_a_plugin_is_named_by_its_module(name: str) -> None:
    assert " INFO mail: hello" in TextFormat().format(record("hello", name=name))
    assert '"logger":"mail"' in JsonFormat().format(record("hello", name=name))
