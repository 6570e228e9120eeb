"""The standard streams of a worker stay the same objects, since log handlers made at import hold them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

import pytest

from supervisor.workers.child import stdio
from supervisor.workers.child.stdio import Output, install_streams


@pytest.fixture(autouse=True)
def _streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(stdio, "_streams", {})


@pytest.fixture
def output() -> Iterator[Output]:
    """Standard output, on a descriptor of its own."""
    read_end, write_end = os.pipe()
    fd = os.dup(write_end)
    yield Output("stdout", fd, write_end)
    for each in (read_end, write_end, fd):
        os.close(each)


def test_streams_that_an_import_has_replaced_are_the_same_objects_again() -> None:
    install_streams()
    kept = sys.stdout, sys.stderr
    sys.stdout = io.StringIO()
    install_streams()
    assert (sys.stdout, sys.stderr) == kept


def test_a_job_that_writes_to_a_stream_kept_since_the_import_is_marked(output: Output) -> None:
    kept = output.stream
    sys.stdout = io.StringIO()
    assert output.restore()
    output.marked()
    assert sys.stdout is output.stream is kept
    assert not output.restore()
    kept.write("of the next job\n")
    assert output.restore()


@pytest.mark.parametrize("wrap", [False, True])
def test_a_stream_that_a_job_has_closed_is_replaced(output: Output, wrap: bool) -> None:
    kept = output.stream
    if wrap:
        sys.stdout = io.TextIOWrapper(kept.buffer)  # closes the buffer when it is deleted
    else:
        kept.close()
    assert output.restore()
    assert sys.stdout is output.stream is not kept
    sys.stdout.write("whole")
