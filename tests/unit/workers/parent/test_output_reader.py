"""The bytes of a stream are split into lines by job."""

from __future__ import annotations

from logging import WARNING
from select import PIPE_BUF
from typing import Any

import orjson
import pytest

from supervisor.workers.interface import OutputLines, WorkerProgress, WorkerRecord
from supervisor.workers.log_records import MAX_BYTES, MAX_UNFINISHED_BYTES, NoRecord, RecordJoiner, lines_of
from supervisor.workers.parent.output_reader import (
    JOB_MINIMUM,
    JOB_RATE,
    LINE_COST,
    MAX_LINE_BYTES,
    MAX_STREAM_RATE,
    MAX_TAIL,
    MAX_TAILS,
    STREAM_RATE,
    OutputSplitter,
)

TOKEN = b"0123456789abcdef"
RECORD = WorkerRecord(40, "ERROR", "app.mail", "no\nanswer", "Traceback …", 7, "mail", 2)


class Splitter(OutputSplitter):
    """One of standard error. Lines are returned without the name of the stream."""

    def __init__(self) -> None:
        super().__init__(TOKEN, "stderr")

    def feed(self, data: bytes) -> list[Any]:
        return [*map(plain, super().feed(data))]

    def flush(self, *, ended: bool = False) -> list[Any]:
        return [*map(plain, super().flush(ended=ended))]


def plain(written: OutputLines | WorkerRecord) -> Any:
    return (written.job_id, written.lines) if isinstance(written, OutputLines) else written


def lines(record: WorkerRecord, key: str = "1") -> list[bytes]:
    return [*lines_of(record, TOKEN, key)]


def mark(job_id: int) -> bytes:
    return TOKEN + b" %d\n" % job_id


def test_lines_before_a_mark_belong_to_its_job() -> None:
    splitter = Splitter()
    assert splitter.feed(b"a\nb\n" + mark(1) + b"no newline" + mark(2) + mark(3) + b"rest\n") == [
        (1, ["a", "b"]),
        (2, ["no newline"]),
    ]
    assert splitter.holds
    assert splitter.feed(mark(4)) == [(4, ["rest"])]


def test_marks_and_lines_may_be_cut_anywhere() -> None:
    stream = b"one\ntwo" + mark(12) + b"three\n" + mark(34)
    splitter = Splitter()
    fed = [lines for byte in stream for lines in splitter.feed(bytes((byte,)))]
    assert fed == [(12, ["one", "two"]), (34, ["three"])]


def test_lines_read_while_a_job_ran_belong_to_it_whatever_mark_follows() -> None:
    splitter = Splitter()
    assert splitter.feed(b"early\n") == []
    splitter.attribute(1, sure=True)
    assert splitter.feed(b"late\n" + mark(2)) == [(1, ["early"]), (2, ["late"])]


def test_a_guess_stands_only_if_no_mark_comes() -> None:
    splitter = Splitter()
    splitter.feed(b"x\n")
    splitter.attribute(1, sure=False)
    assert splitter.feed(mark(2)) == [(2, ["x"])]
    splitter.feed(b"y\n")
    splitter.attribute(3, sure=False)
    assert splitter.flush() == [(3, ["y"])]


def test_lines_before_the_first_job_belong_to_none() -> None:
    splitter = Splitter()
    assert splitter.feed(b"hook\n" + mark(0)) == [(None, ["hook"])]


def test_an_unfinished_line_is_emitted_at_the_end_only() -> None:
    splitter = Splitter()
    splitter.feed(b"half")
    assert splitter.flush() == []
    assert splitter.flush(ended=True) == [(None, ["half"])]


def test_a_tail_holds_lines_of_its_job_and_is_no_longer_than_allowed() -> None:
    splitter = Splitter()
    splitter.feed(b"old\n" + mark(1) + b"x" * (3 * MAX_TAIL) + b"\nlast\n" + mark(2) + b"running\nnow")
    assert splitter.tails[1] == "old\n"
    tail = splitter.tails[2]
    assert len(tail) == MAX_TAIL and tail.endswith("x\nlast\n")
    assert splitter.tail(3) == "running\nnow"


def test_the_oldest_tails_are_dropped() -> None:
    splitter = Splitter()
    for job_id in range(1, MAX_TAILS + 3):
        splitter.feed(b"text\n" + mark(job_id))
    assert list(splitter.tails) == list(range(3, MAX_TAILS + 3))


def test_a_tail_leaves_out_lines_of_another_job() -> None:
    splitter = Splitter()
    splitter.feed(b"of the first\n")
    splitter.attribute(1, sure=True)
    splitter.flush()
    splitter.feed(b"of the second\n")
    assert splitter.tail(2) == "of the second\n"


def test_a_line_without_end_is_emitted_in_pieces() -> None:
    splitter = Splitter()
    assert splitter.feed(b"z" * (2 * MAX_LINE_BYTES + 5)) == []
    assert [len(line) for _job, lines in splitter.flush() for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES]


@pytest.mark.parametrize("token", [TOKEN + b" ", TOKEN + b" 1", TOKEN + b" 1" * 40])
def test_a_line_with_a_mark_that_never_ends_is_emitted_in_pieces_too(token: bytes) -> None:
    splitter = Splitter()
    for _ in range(40):
        splitter.feed(token + b"x" * MAX_LINE_BYTES)
        splitter.renew_allowance()
    emitted = sum(len(line) for _, lines in splitter.flush() for line in lines)
    assert emitted > 38 * MAX_LINE_BYTES


def test_a_mark_behind_a_long_line_may_be_cut_anywhere() -> None:
    splitter = Splitter()
    stream = b"x" * MAX_LINE_BYTES + mark(12)
    for cut in range(MAX_LINE_BYTES + len(TOKEN) + 1, len(stream)):
        assert splitter.feed(stream[:cut]) == []
        assert splitter.feed(stream[cut:]) == [(12, ["x" * MAX_LINE_BYTES])]
        splitter.renew_allowance()


def flood(splitter: Splitter) -> None:
    for _ in range(100):
        assert splitter.feed((b"w" * 99 + b"\n") * 600) == []


def test_lines_past_the_rate_are_dropped_and_counted_but_marks_are_found() -> None:
    splitter = Splitter()
    flood(splitter)
    ((job, kept),) = splitter.feed(mark(5))
    assert job == 5
    assert 0 < sum(map(len, kept)) <= JOB_RATE
    (notice,) = splitter.notice(None)
    left_out = 100 * 600 * 100 - sum(len(line) + 1 for line in kept)
    assert notice.job_id == 5 and notice.level == WARNING
    assert f"{left_out} bytes of its stderr were left out" in notice.message
    assert not splitter.has_dropped and splitter.notice(None) == []


def test_a_job_loses_no_line_because_of_the_job_before() -> None:
    splitter = Splitter()
    flood(splitter)
    splitter.feed(mark(5))
    assert splitter.feed(b"next\n" + mark(6)) == [(6, ["next"])]


def test_a_job_loses_no_line_that_is_read_together_with_the_end_of_a_flood() -> None:
    splitter = Splitter()
    flood(splitter)
    assert splitter.feed(b"w" * 50_000 + b"\n" + mark(5) + b"next\n" + mark(6))[-1] == (6, ["next"])


def test_the_rest_of_a_line_that_was_dropped_is_dropped_too() -> None:
    splitter = Splitter()
    flood(splitter)
    splitter.feed(b"beginning of a line " * 10)
    splitter.flush()
    splitter.renew_allowance()
    assert splitter.feed(b"and its end\nwhole\n" + mark(5)) == [(5, ["whole"])]


def test_a_running_job_is_named_if_it_has_lost_lines() -> None:
    splitter = Splitter()
    flood(splitter)
    assert [notice.job_id for notice in splitter.notice(9)] == [9]


def test_several_jobs_that_lost_lines_share_one_notice() -> None:
    splitter = Splitter()
    for job_id in (5, 6):
        flood(splitter)
        splitter.feed(mark(job_id))
    (notice,) = splitter.notice(None)
    assert notice.job_id is None and "of 2 jobs" in notice.message


def test_after_very_much_output_of_many_jobs_each_may_still_write_a_little() -> None:
    splitter = Splitter()
    kept = 0
    for id in range(1, 20):
        for data in [(b"w" * 935 + b"\n") * 70] * 14 + [mark(id)]:
            kept += sum(len(line) + 1 for _, lines in splitter.feed(data) for line in lines)
    assert kept <= STREAM_RATE + 20 * JOB_MINIMUM
    assert splitter.feed(b"a little\n" + mark(101)) == [(101, ["a little"])]


def test_a_log_record_is_joined_from_its_lines_and_stays_in_its_place() -> None:
    splitter = Splitter()
    long = RECORD._replace(message="é\x00" * 5000)
    first, *rest = lines(long, "2")
    assert len(rest) > 1 and all(len(line) <= PIPE_BUF for line in (first, *rest))
    stream = [b"before\n", first, *lines(RECORD), *rest, b"after\n", mark(7)]
    shown = long._replace(message="é\\x00" * 5000)
    assert splitter.feed(b"".join(stream)) == [(7, ["before"]), RECORD, shown, (7, ["after"])]


def test_a_log_record_is_one_wherever_it_is_cut() -> None:
    splitter = Splitter()
    stream = b"".join([*lines(RECORD), *lines(RECORD, "2"), mark(7)])
    fed = [written for byte in stream for written in splitter.feed(bytes((byte,)))]
    assert fed == [RECORD, RECORD]


def test_a_log_record_keeps_its_job_whatever_runs_when_it_is_read() -> None:
    splitter = Splitter()
    splitter.feed(b"".join(lines(RECORD)))
    splitter.attribute(9, sure=True)
    assert splitter.flush() == [RECORD]


def test_a_log_record_is_in_the_tail_of_its_job_as_text() -> None:
    splitter = Splitter()
    splitter.feed(b"".join(lines(RECORD)) + mark(7))
    assert splitter.tails[7] == "ERROR app.mail: no\nanswer\nTraceback …\n"


def test_of_a_log_record_that_was_dropped_in_part_nothing_is_left() -> None:
    parts = lines(RECORD._replace(message="x" * 20_000))
    for lost in range(len(parts)):
        splitter = Splitter()
        for number, part in enumerate(parts):
            splitter._spent = JOB_RATE if number == lost else 0
            splitter.feed(part)
        assert splitter.feed(mark(7)) == []
        assert splitter.has_dropped


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"[]",
        b"1 {",
        b"1 1 {",
        b"1 9 []",
        b"1 25 [40, 0, 0, 0, 0, 0, 0, 0]",
        b'1 30 [-1, "", "", "", "", 1, "", 1]',
    ],
)
@pytest.mark.parametrize("kind", [b"@", b"+"])
def test_a_line_that_only_looks_like_a_log_record_is_harmless(kind: bytes, forged: bytes) -> None:
    splitter = Splitter()
    fed = splitter.feed(TOKEN + kind + forged + b"\n" + mark(1))
    assert fed == []
    assert splitter.feed(b"".join(lines(RECORD, "2")) + mark(7)) == [RECORD]


def test_marks_that_a_job_writes_do_not_let_it_write_without_end() -> None:
    splitter = Splitter()
    chunk = (b"w" * 1000 + b"\n") * 10 + mark(1)
    kept = sum(len(line) + LINE_COST for _ in range(2000) for _, lines in splitter.feed(chunk) for line in lines)
    assert STREAM_RATE < kept <= MAX_STREAM_RATE + len(chunk)
    assert splitter.has_dropped
    splitter.renew_allowance()
    assert splitter.feed(b"later\n" + mark(2)) == [(2, ["later"])]


def test_parts_of_records_that_never_end_are_held_up_to_a_limit_and_are_never_small() -> None:
    joiner = RecordJoiner()
    first, *_ = lines(RECORD._replace(message="x" * 20_000))
    part = first.rpartition(b" ")[2][:-1]
    for key in range(100):
        for _ in range(MAX_BYTES // len(part)):
            assert joiner.add(b"+%d 1 %b" % (key, part)) is None
        held = [each for parts in joiner._unfinished.values() for each in parts]
        assert sum(map(len, held)) <= MAX_UNFINISHED_BYTES
        assert max(map(len, held)) == len(part)
    with pytest.raises(NoRecord):
        joiner.add(b"+small 1 y")


@pytest.mark.parametrize(
    ("level", "name", "shown"),
    [
        (30, "INFO 2026\nERROR", "WARNING"), (25, "NOTICE", "NOTICE"), (25, "a b", "Level 25"), (25, "a\nb", "Level 25"),
        (25, "x" * 21, "Level 25"),
    ],
)  # fmt: skip
def test_a_log_record_forges_no_line_by_the_names_of_its_level_and_logger(level: int, name: str, shown: str) -> None:
    splitter = Splitter()
    forged = RECORD._replace(level=level, level_name=name, logger="a\nb" * 100)
    (record,) = splitter.feed(b"".join(lines(forged)) + mark(7))
    assert record.level_name == shown
    assert "\n" not in record.logger and len(record.logger) < 300


def test_bytes_that_are_no_text_are_escaped() -> None:
    splitter = Splitter()
    assert splitter.feed(b"\xff\x00\n" + mark(1)) == [(1, ["\\xff\\x00"])]


PROGRESS = WorkerProgress(7, 2, 5, 3, 10.5, "half")


def test_progress_comes_whole_and_in_order_and_is_no_text_of_the_job() -> None:
    splitter = Splitter()
    (line,) = lines_of(PROGRESS, TOKEN, "1")
    assert splitter.feed(b"a\n" + line + b"b\n" + mark(7)) == [(7, ["a"]), PROGRESS, (7, ["b"])]
    assert splitter.tails == {7: "a\nb\n"}


@pytest.mark.parametrize(
    "fields",
    [
        [7, 2, 5, -1, None, None], [7, 2, 5, 1, -1, None], [7, 2, 5, 1 << 63, None, None], [7, 2, 5, 1e300, None, None],
        [7, 2, 5, True, None, None], ["7", 2, 5, 1, None, None], [7, 2, 5, None, None, None], [7, 2, 5, 1, None, 3], [7, 2, 5, 1],
    ],
)  # fmt: skip
def test_progress_that_no_worker_reports_is_dropped_and_counted(fields: list[Any]) -> None:
    splitter = Splitter()
    data = orjson.dumps(fields)
    assert splitter.feed(TOKEN + b"@1 %d %b\n" % (len(data), data) + mark(7)) == []
    assert splitter.has_dropped


def test_the_message_of_made_up_progress_is_cut_and_escaped() -> None:
    data = orjson.dumps([7, 2, 5, 1, None, "\x00" + "x" * 10_000])
    found = RecordJoiner().add(b"@1 %d %b" % (len(data), data))
    assert found is not None and (found.message or "").startswith("\\x00x") and len(found.message or "") == 200
