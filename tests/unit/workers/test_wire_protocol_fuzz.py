"""Whatever comes through a channel is a message or Broken: never another error, and never more memory than its bytes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.text.units import MAX_SECONDS
from supervisor.workers import wire_protocol as wire
from supervisor.workers.interface import OutputLines, Reply
from supervisor.workers.parent import stack_text as stacks
from supervisor.workers.parent.output_reader import OutputSplitter
from tests.unit.workers.test_wire_protocol import MESSAGES

quick = settings(deadline=None, derandomize=True, max_examples=200)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["failed", "rejected", "retry", "unknown", "type", "after", *wire._MESSAGES])
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=25,
)
deep = st.integers(1, 3000).map(lambda depth: b"[" * depth + b"]" * depth)
messages = st.sampled_from(MESSAGES).map(lambda message: wire.encode(message)[:-1])
outcomes = st.sampled_from(
    [
        b"[1,20,null]",
        b'[1,20,"{}"]',
        b'[7,0,"failed",{"type":"ValueError","message":"no","traceback":"","peak_memory":5,"retryable":false}]',
        b'[8,3,"retry",{"type":"Retry","after":2.5}]',
    ]
)
shuffled = st.lists(scalars, max_size=9) | st.tuples(st.sampled_from(list(wire._MESSAGES)), trees, trees).map(list)


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """A valid line, or two of them, with bytes replaced, taken out, put in or doubled."""
    data = bytearray(draw(valid) + draw(st.sampled_from([b"", b"\n"]) | valid.map(lambda line: b"\n" + line)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        data[start:end] = draw(
            st.binary(max_size=6) | st.sampled_from([b"9" * 30, b"\\ud800", b"\xff", b"null", b"{}", b"[["])
        )
    return bytes(data)


lines = (
    st.binary(max_size=60)
    | mutated(messages)
    | mutated(outcomes)
    | trees.map(lambda tree: orjson.dumps(tree) if _fits(tree) else b"{}")
    | shuffled.map(lambda row: orjson.dumps(row) if _fits(row) else b"[]")
    | deep
)


def _fits(tree: Any) -> bool:
    try:
        orjson.dumps(tree)
    except TypeError:
        return False
    return True


@quick
@given(lines)
def test_a_line_is_a_message_or_broken(line: bytes) -> None:
    try:
        message = wire.decode(line)
    except wire.Broken as broken:
        assert len(str(broken)) < 500
    else:
        assert wire.decode(wire.encode(message)[:-1]) == message


@quick
@given(lines)
def test_a_block_is_outcomes_up_to_the_first_line_that_is_none(block: bytes) -> None:
    found: list[Reply] = []
    try:
        found.extend(wire.decode_outcomes(block, 100, 60.0))
    except wire.Broken as broken:
        assert len(str(broken)) < 500
    else:
        assert found
    for reply in found:
        assert type(reply.job_id) is int
        assert (reply.kind == "ok") == (reply.error is None)
        assert reply.kind in {"ok", *wire.KINDS}
        assert 0 <= reply.took <= 60.0
        assert len(reply.result or "") <= 100
        assert 0 <= ((reply.error or {}).get("peak_memory") or 0) <= wire.MAX_MEMORY
        assert 0 <= ((reply.error or {}).get("after") or 0) <= MAX_SECONDS


@quick
@given(st.lists(st.binary(max_size=200) | st.just(b"\n") | st.just(b"x" * 5000), max_size=20))
def test_no_more_bytes_are_held_than_came(chunks: list[bytes]) -> None:
    buffer, held = wire.Lines(), b""
    for chunk in chunks:
        held += chunk
        whole, newline, rest = held.rpartition(b"\n")
        assert buffer.block(chunk) == (whole if newline else None)
        held = rest
        assert buffer.pending == len(held)


TOKEN = b"0123456789abcdef"
output = st.lists(
    st.binary(max_size=100)
    | st.sampled_from(
        [
            TOKEN,
            TOKEN + b"@1 ",
            TOKEN + b"+1 ",
            TOKEN + b'@1 23 [20,"","","","",1,"",1]\n',
            TOKEN + b" 7\n",
            TOKEN + b" 0\n",
            TOKEN + b" x\n",
            b"\n",
            TOKEN + b" " + b"9" * 5000 + b"\n",
        ]
    )
    | st.sampled_from([b"x" * 20_000, b"y\n" * 500, b"z" * 1_100_000]),
    max_size=6,
)


@settings(quick, max_examples=60)
@given(output, st.booleans())
def test_output_of_any_kind_is_lines_in_bounded_memory(chunks: list[bytes], sure: bool) -> None:
    splitter = OutputSplitter(TOKEN, "stderr")
    emitted: list[Any] = []
    for chunk in chunks:
        emitted += splitter.feed(chunk)
        splitter.attribute(3, sure=sure)
        assert len(splitter._partial) <= 16_384 + 5000 + len(TOKEN)
        assert len(splitter.tail(3)) <= 16_384
    emitted += splitter.flush(ended=True)
    lines = [line for each in emitted if isinstance(each, OutputLines) for line in each.lines]
    assert all("\n" not in line and "\x00" not in line for line in lines)
    assert sum(map(len, lines)) <= 4 * 1_100_000


@quick
@given(
    st.lists(
        st.text(max_size=40)
        | st.sampled_from(
            [
                "Thread 0x7f01 (most recent call first):",
                "Current thread 0x7f02 [name] (most recent call first):",
                f'  File "{stacks.OWN_CODE}/child/main.py", line 7 in _run_job',
                '  File "/x/jobs.py", line 7 in work',
            ]
        ),
        max_size=12,
    ).map("\n".join)
)
def test_a_stack_pipe_may_hold_anything(dump: str) -> None:
    shown = stacks.readable(dump)
    assert shown is None or 0 < len(shown) <= stacks.MAX_CHARACTERS


@pytest.mark.parametrize("after", [-1, 1e308, 2**63, "1", True, [1]])
def test_a_delay_that_no_worker_would_ask_for_is_broken(after: object) -> None:
    line = wire.encode_failure(1, 5, "retry", {"after": after}).rstrip(b"\n")
    with pytest.raises(wire.Broken):
        list(wire.decode_outcomes(line, 100, 60.0))
