"""Messages are encoded and decoded, however they are cut, and whatever else comes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.jobs import Lease, Policy
from supervisor.workers import wire_protocol as wire


def lease(job_id: int, **fields: object) -> Lease:
    return Lease(job_id, 7, "mail", "default", '{"a": 1}', None, 2, 5, 0, 0, 0, Policy())._replace(**fields)  # type: ignore[arg-type]


MESSAGES = [
    wire.Hello(
        ["plugins"],
        "/base",
        [],
        "fork",
        1.0,
        {"slow": 0.5},
        1000,
        "owner",
        "info",
        "aa",
        [["mail", "1"]],
        {"mail": {"cancel_grace": 5.0}},
        {"mail": {"nice": 5}},
        {"daily": ["mail", "1"]},
    ),
    wire.Fork(1, 2, "token", 100),
    wire.Reap(3),
    wire.Stop(),
    wire.Importing("a.py"),
    wire.Ready([{"source": "a.py"}], [[0, "payload: missing"]], [["daily", "mail", "payload: missing"]]),
    wire.Forked(1, 4242),
    wire.NotForked(1, "no more processes"),
    wire.Reaped(1, 9, 1024),
    wire.Reaped(1, None, None),
]
"""Every kind, with and without what may be missing."""


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_comes_back_as_it_went(message: wire.Message) -> None:
    line = wire.encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert wire.decode(line[:-1]) == message


def test_every_field_of_every_message_has_its_types() -> None:
    assert {tag: len(types) for tag, (_, types) in wire._MESSAGES.items()} == {
        tag: len(kind._fields) for tag, (kind, _) in wire._MESSAGES.items()
    }


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'["quit"]', b'["reap"]', b'["reap",1,2]', b'"stop"', b"3", b"[3]", b"[[]]"]
)
def test_a_line_that_is_no_message_is_broken(line: bytes) -> None:
    with pytest.raises(wire.Broken, match="expected a message"):
        wire.decode(line)


def test_a_frame_holds_each_job_without_decoding_it() -> None:
    line = wire.encode_frame(3, [lease(1), lease(2, payload="not json", headers='{"h":1}', queue="q", retries=0)])
    assert orjson.loads(line) == [
        3,
        [[1, "mail", '{"a": 1}', 3, "default", None, 5, 3], [2, "mail", "not json", 1, "q", '{"h":1}', 5, 3]],
    ]
    assert line.count(b"\n") == 1


def test_text_that_is_no_unicode_harms_only_its_own_job() -> None:
    rows = orjson.loads(wire.encode_frame(1, [lease(1, payload='"\udcff"'), lease(2)]))[1]
    assert [row[2] for row in rows] == ['"\\udcff"', '{"a": 1}']


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=20), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    buffer = wire.Lines()
    found = b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        block = buffer.block(stream[start:end])
        found += b"" if block is None else block + b"\n"
    assert found == stream
    assert buffer.pending == 0


def test_an_unfinished_line_is_counted() -> None:
    buffer = wire.Lines()
    assert buffer.block(b"abc") is None
    assert buffer.split(b"def\nxy") == [b"abcdef"]
    assert buffer.pending == 2


MAX_RESULT, LONGEST = 20, 60.0


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"[1,2000000,null]\n", (1, "ok", 2.0, None, {"wrote": True})),
        (b'[1,0,"\\"x\\",{}]"]\n', (1, "ok", 0.0, '"x",{}]', {"wrote": True})),
        (wire.encode_failure(1, 0, "failed", {"type": "x"}), (1, "failed", 0.0, None, {"type": "x"})),
    ],
)
def test_an_outcome_notes_that_its_job_has_written(line: bytes, reply: tuple[object, ...]) -> None:
    assert outcomes(wire.with_output(line)[:-1]) == ([reply], None)


def test_a_result_of_a_job_that_has_written_may_be_no_longer_than_any_other() -> None:
    found, fault = outcomes(wire.with_output(b'[1,5,"%b"]\n' % (b"7" * (MAX_RESULT + 1)))[:-1])
    assert found == [] and fault is not None


def outcomes(block: bytes) -> tuple[list[tuple[object, ...]], str | None]:
    found: list[tuple[object, ...]] = []
    try:
        found.extend(map(tuple, wire.decode_outcomes(block, MAX_RESULT, LONGEST)))
    except wire.Broken as error:
        return found, str(error)
    return found, None


def test_outcomes_of_many_lines_are_decoded_at_once() -> None:
    failed = wire.encode_failure(3, 1_500_000, "failed", {"type": "ValueError"}).rstrip(b"\n")
    found, broken = outcomes(b'[1,2000000,null]\n[2,0,"{\\"a\\":1}"]\n' + failed)
    assert broken is None
    assert found == [
        (1, "ok", 2.0, None, None),
        (2, "ok", 0.0, '{"a":1}', None),
        (3, "failed", 1.5, None, {"type": "ValueError"}),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b"rubbish", b"{}", b"[]", b"[1]", b"[1,2]", b'["1",2,null]', b"[1,2.5,null]", b"[1,2,{}]", b"[1,2,3]", b"[true,2,null]",
        b'[1,2,"ok",{}]', b'[1,2,"ok",{"result":5}]', b'[1,2,"ok",{"result":"x","more":1}]', b'[1,2,"ok",[]]', b'["1",2,"ok",{"result":null}]',
        b'[1,2,"failed",null]', b'[1,2,"failed",{},5]', b"null", b"7", b'["ready"]', b"[1,2,null],[3,4,null", b"",
    ],
)  # fmt: skip
def test_a_broken_line_ends_the_stream_after_the_outcomes_before_it(broken: bytes) -> None:
    found, fault = outcomes(b"[1,0,null]\n" + broken + b"\n[2,0,null]")
    assert found == [(1, "ok", 0.0, None, None)]
    assert fault is not None


@pytest.mark.parametrize(
    "error",
    [
        {"after": "x"},
        {"after": True},
        {"type": 1},
        {"message": None},
        {"stderr": 5},
        {"peak_memory": "1"},
        {"peak_memory": -1},
        {"peak_memory": 2**62},
        {"retryable": 0},
        {"after": 1.0, "most": 1.5},
        {"after": 1.0, "until": "tomorrow"},
        {"after": 1.0, "most": True},
    ],
)
def test_an_error_that_a_job_forged_is_broken(error: dict[str, Any]) -> None:
    line = wire.encode_failure(1, 5, "failed", error).rstrip(b"\n")
    with pytest.raises(wire.Broken):
        list(wire.decode_outcomes(line, MAX_RESULT, LONGEST))


@pytest.mark.parametrize("others", [b"", b'\n[2,5,"failed",{}]'])
def test_a_result_that_is_too_long_is_broken(others: bytes) -> None:
    found, fault = outcomes(b'[1,5,"%b"]\n[3,5,"%b"]' % (b"7" * MAX_RESULT, b"7" * (MAX_RESULT + 1)) + others)
    assert [reply[0] for reply in found] == [1]
    assert fault is not None


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(-1, 0.0), (-(2**63), 0.0), (60_000_001, 60.0), (2**63, 60.0), (60_000_000, 60.0)]
)
def test_a_time_that_no_job_can_have_taken_becomes_the_nearest_that_it_can(microseconds: int, seconds: float) -> None:
    line = b'[1,%d,null]\n[2,%d,"failed",{}]\n[3,5,null]' % (microseconds, microseconds)
    found, broken = outcomes(line)
    assert broken is None
    assert [reply[2] for reply in found] == pytest.approx([seconds, seconds, 5e-6])
    assert [reply[2] for reply in outcomes(b"[1,%d,null]" % microseconds)[0]] == pytest.approx([seconds])
