"""The watch of an event loop, without its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers.child import loop_watch
from supervisor.workers.child.job_context import CURRENT
from supervisor.workers.child.loop_watch import FIRST_REPORT, LoopWatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0, used=1.0)
    monkeypatch.setattr(loop_watch, "monotonic", lambda: clock.now)
    monkeypatch.setattr(loop_watch, "process_time", lambda: clock.used)
    return clock


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    lines: list[bytes] = []
    monkeypatch.setattr(loop_watch, "write", lambda fd, line: lines.append(line))
    return lines


@pytest.fixture
def watch(clock: Any, written: list[bytes]) -> Iterator[LoopWatch]:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, SimpleNamespace(), lambda task: None, -1)  # type: ignore[arg-type]
    watch._looked = clock.now, clock.used
    before = CURRENT.set(None)
    yield watch
    CURRENT.reset(before)
    loop.close()


def test_a_process_that_was_stopped_reports_no_block_though_the_supervisor_asks_before_its_thread_looks(
    watch: LoopWatch, clock: Any, written: list[bytes]
) -> None:
    clock.now += 3.0
    watch._interrupted(0, None)
    assert written == []


def test_a_process_that_was_busy_all_the_time_reports_the_block(
    watch: LoopWatch, clock: Any, written: list[bytes]
) -> None:
    clock.now += 3.0
    clock.used += 2.9
    watch._interrupted(0, None)
    assert written == [b'["blocks",null,103000]\n']


def test_a_block_is_reported_while_the_thread_looks_in_time(watch: LoopWatch, clock: Any, written: list[bytes]) -> None:
    clock.now += FIRST_REPORT
    watch._looked = clock.now - 0.05, clock.used
    watch._interrupted(0, None)
    assert len(written) == 1
