"""The bytes of a stream are split into lines by job."""

from __future__ import annotations

import pytest

from supervisor.workers.parent.output_reader import MAX_LINE_BYTES, MAX_TAIL, MAX_TAILS, RATE, OutputSplitter

TOKEN = b"0123456789abcdef"


def mark(job_id: int) -> bytes:
    return TOKEN + b" %d\n" % job_id


def test_lines_before_a_mark_belong_to_its_job() -> None:
    splitter = OutputSplitter(TOKEN)
    assert splitter.feed(b"a\nb\n" + mark(1) + b"no newline" + mark(2) + mark(3) + b"rest\n") == [
        (1, ["a", "b"]),
        (2, ["no newline"]),
    ]
    assert splitter.holds
    assert splitter.feed(mark(4)) == [(4, ["rest"])]


def test_marks_and_lines_may_be_cut_anywhere() -> None:
    stream = b"one\ntwo" + mark(12) + b"three\n" + mark(34)
    splitter = OutputSplitter(TOKEN)
    fed = [lines for byte in stream for lines in splitter.feed(bytes((byte,)))]
    assert fed == [(12, ["one", "two"]), (34, ["three"])]


def test_lines_read_while_a_job_ran_belong_to_it_whatever_mark_follows() -> None:
    splitter = OutputSplitter(TOKEN)
    assert splitter.feed(b"early\n") == []
    splitter.attribute(1, sure=True)
    assert splitter.feed(b"late\n" + mark(2)) == [(1, ["early"]), (2, ["late"])]


def test_a_guess_stands_only_if_no_mark_comes() -> None:
    splitter = OutputSplitter(TOKEN)
    splitter.feed(b"x\n")
    splitter.attribute(1, sure=False)
    assert splitter.feed(mark(2)) == [(2, ["x"])]
    splitter.feed(b"y\n")
    splitter.attribute(3, sure=False)
    assert splitter.flush() == [(3, ["y"])]


def test_lines_before_the_first_job_belong_to_none() -> None:
    splitter = OutputSplitter(TOKEN)
    assert splitter.feed(b"hook\n" + mark(0)) == [(None, ["hook"])]


def test_an_unfinished_line_is_emitted_at_the_end_only() -> None:
    splitter = OutputSplitter(TOKEN)
    splitter.feed(b"half")
    assert splitter.flush() == []
    assert splitter.flush(ended=True) == [(None, ["half"])]


def test_a_tail_holds_lines_of_its_job_and_is_no_longer_than_allowed() -> None:
    splitter = OutputSplitter(TOKEN)
    splitter.feed(b"old\n" + mark(1) + b"x" * (3 * MAX_TAIL) + b"\nlast\n" + mark(2) + b"running\nnow")
    assert splitter.tails[1] == "old\n"
    tail = splitter.tails[2]
    assert len(tail) == MAX_TAIL and tail.endswith("x\nlast\n")
    assert splitter.tail(3) == "running\nnow"


def test_the_oldest_tails_are_dropped() -> None:
    splitter = OutputSplitter(TOKEN)
    for job_id in range(1, MAX_TAILS + 3):
        splitter.feed(b"text\n" + mark(job_id))
    assert list(splitter.tails) == list(range(3, MAX_TAILS + 3))


def test_a_tail_leaves_out_lines_of_another_job() -> None:
    splitter = OutputSplitter(TOKEN)
    splitter.feed(b"of the first\n")
    splitter.attribute(1, sure=True)
    splitter.flush()
    splitter.feed(b"of the second\n")
    assert splitter.tail(2) == "of the second\n"


def test_a_line_without_end_is_emitted_in_pieces() -> None:
    splitter = OutputSplitter(TOKEN)
    assert splitter.feed(b"z" * (2 * MAX_LINE_BYTES + 5)) == []
    assert [len(line) for _job, lines in splitter.flush() for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES]


@pytest.mark.parametrize("token", [TOKEN + b" ", TOKEN + b" 1", TOKEN + b" 1" * 40])
def test_a_line_with_a_mark_that_never_ends_is_emitted_in_pieces_too(token: bytes) -> None:
    splitter = OutputSplitter(TOKEN)
    for _ in range(40):
        splitter.feed(token + b"x" * MAX_LINE_BYTES)
        splitter.renew_allowance()
    emitted = sum(len(line) for _, lines in splitter.flush() for line in lines)
    assert emitted > 38 * MAX_LINE_BYTES


def test_a_mark_behind_a_long_line_may_be_cut_anywhere() -> None:
    splitter = OutputSplitter(TOKEN)
    stream = b"x" * MAX_LINE_BYTES + mark(12)
    for cut in range(MAX_LINE_BYTES + len(TOKEN) + 1, len(stream)):
        assert splitter.feed(stream[:cut]) == []
        assert splitter.feed(stream[cut:]) == [(12, ["x" * MAX_LINE_BYTES])]
        splitter.renew_allowance()


def test_lines_past_the_rate_are_dropped_and_counted_but_marks_are_found() -> None:
    splitter = OutputSplitter(TOKEN)
    chunk = (b"w" * 99 + b"\n") * 600
    for _ in range(100):
        assert splitter.feed(chunk) == []
    ((job, lines), (last_job, (notice,))) = splitter.feed(mark(5))
    assert job == last_job == 5
    assert 0 < sum(map(len, lines)) <= RATE
    assert "bytes left out" in notice
    assert splitter.feed(b"still too much\n" + mark(6))[-1][0] == 6
    splitter.renew_allowance()
    assert splitter.feed(b"again\n" + mark(7)) == [(7, ["again"])]


def test_bytes_that_are_no_text_are_escaped() -> None:
    splitter = OutputSplitter(TOKEN)
    assert splitter.feed(b"\xff\x00\n" + mark(1)) == [(1, ["\\xff\\x00"])]
