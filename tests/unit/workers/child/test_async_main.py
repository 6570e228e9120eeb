"""The jobs and permits of an async worker, with the test in the supervisor's place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import close_all, open_channels
from supervisor.workers.child.async_main import AsyncJobRunner
from tests.unit.fakes import make_lease


class Runner:
    """A runner of two jobs at once, whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.ours, self.ends = open_channels()
        hello: Any = SimpleNamespace(interruptions={}, result_limit=1000)
        plugins: Any = SimpleNamespace(handlers={}, wrappers=lambda name: ())
        self.later: list[Any] = []
        loop = SimpleNamespace(
            create_task=self.start, call_soon=lambda call, *args: self.later.append(partial(call, *args))
        )
        self.runner: Any = AsyncJobRunner(hello, self.ends, 2, SimpleNamespace(), plugins, lambda job: None)  # type: ignore[arg-type]
        self.runner._loop, self.runner._fresh_context = loop, lambda: None
        self.started: list[int] = []
        self.task = SimpleNamespace()

    def start(self, run: Any, context: Any) -> Any:
        self.started.append(run.cr_frame.f_locals["frame"])
        run.close()
        return self.task

    def permit(self, *frames: int) -> None:
        os.write(self.ours.permits_put, wire.encode_permits(frames))

    def send(self, first: int, *ids: int) -> None:
        os.write(self.ours.jobs, wire.encode_frame(first, [make_lease(id) for id in ids]))
        self.runner._read_jobs()

    def end(self, frame: int, outcome: bytes) -> None:
        del self.runner._running[frame]
        self.runner._send(outcome)

    def turn(self) -> None:
        later, self.later[:] = [*self.later], []
        for call in later:
            call()


@pytest.fixture
def here() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    close_all((*runner.ours, *runner.ends))


def test_the_jobs_of_one_line_start_as_far_as_there_is_room_and_the_next_when_one_has_ended(here: Runner) -> None:
    here.permit(1, 2, 3, 4)
    here.send(1, 11, 12, 13, 14)
    assert here.started == [1, 2]
    here.end(1, b"one\n")
    assert here.started == [1, 2]
    here.turn()
    assert here.started == [1, 2, 3]
    assert len(os.read(here.ours.permits, 100)) == wire.PERMIT_BYTES, "the last one can be reclaimed"


def test_the_outcomes_of_one_turn_are_written_together(here: Runner) -> None:
    here.permit(1, 2)
    here.send(1, 11, 12)
    here.end(1, b"one\n")
    here.end(2, b"two\n")
    here.turn()
    assert os.read(here.ours.outcomes, 100) == b"one\ntwo\n"


def test_jobs_whose_permits_were_taken_before_they_came_start_when_they_come(here: Runner) -> None:
    here.permit(1, 2)
    here.send(9, 19)  # its permit was reclaimed
    assert here.started == []
    here.send(1, 11, 12)
    assert here.started == [1, 2]


def test_a_line_without_jobs_makes_it_look_for_permits_that_were_written_again(here: Runner) -> None:
    here.send(1, 11)
    here.permit(1)
    assert here.started == []
    here.send(0)
    assert here.started == [1]


def test_a_job_that_is_cancelled_as_it_comes_has_an_outcome_if_its_permit_was_taken(here: Runner) -> None:
    here.permit(1, 2)
    here.send(9, 19)  # its permit was reclaimed
    cancelled: list[str] = []
    here.runner._watch = SimpleNamespace(note_cancel=lambda: cancelled.append("read"))
    here.task = SimpleNamespace(cancel=lambda: cancelled.append("cancelled"))
    jobs = wire.encode_frame(1, [make_lease(id) for id in (11, 12)])
    os.write(here.ours.jobs, jobs + wire.encode_cancel(1))
    here.runner._read_jobs()
    assert (here.started, cancelled) == ([1, 2], ["read"]), (
        "a task that is cancelled before its first step has no outcome"
    )
    here.turn()
    assert cancelled == ["read", "cancelled"]
