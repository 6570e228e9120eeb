"""What the supervisor's side of a child knows of its jobs, with the test in the worker's place."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import close_ends, open_channels
from supervisor.workers.parent.worker_process import ForkedWorker
from tests.unit.fakes import make_lease
from tests.unit.virtual import VirtualLoop


class Played:
    """A child that has come up."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int | None, list[str]]] = []
        self.replied: list[int] = []
        listener = SimpleNamespace(
            ready=lambda process: None,
            replied=lambda process, replies: self.replied.extend(reply.job_id for reply in replies),
            output=lambda process, stream, job_id, lines: self.said.append((stream, job_id, list(lines))),
        )
        owner: Any = SimpleNamespace(loop=VirtualLoop(), listener=listener, is_ready=lambda process: None)
        ours, self.ends = open_channels()
        self.ours = ours
        self.process = ForkedWorker(owner, 1, 1, ours, 1000)
        self.process.pid = 4711
        self.write(wire.READY + b"\n")

    def write(self, text: bytes) -> None:
        os.write(self.ends.outcomes, text)
        self.process.drain()

    def take_permit(self) -> None:
        os.read(self.ends.permits, 1)

    def close(self) -> None:
        self.ours.close()
        close_ends(self.ends)


@pytest.fixture
def played():
    here = Played()
    yield here
    here.close()


def test_output_after_the_rest_of_a_frame_was_taken_back_belongs_to_no_job_of_it(played: Played) -> None:
    played.process.send(1, [make_lease(1), make_lease(2)])
    played.take_permit()
    played.write(b"[1,5,null]\n")
    assert played.replied == [1]
    assert played.process.reclaim() == {1: 1}
    os.write(played.ends.stdout, b"late\n")
    while played.process._stdout.read_now():
        pass
    played.process._stdout.finish(played.process._first_unsettled())
    assert played.said == [("stdout", None, ["late"])]


def test_the_next_frame_begins_with_its_first_job(played: Played) -> None:
    played.process.send(1, [make_lease(1), make_lease(2)])
    played.take_permit()
    played.write(b"[1,5,null]\n")
    played.process.reclaim()
    played.process.send(2, [make_lease(3), make_lease(4)])
    assert played.process._first_unsettled() == 3


def test_what_the_worker_has_not_taken_yet_is_counted_and_left_to_it(played: Played) -> None:
    assert played.process.untaken() == 0
    played.process.send(1, [make_lease(1), make_lease(2), make_lease(3)])
    assert played.process.untaken() == 3
    played.take_permit()
    assert played.process.untaken() == 2
    assert played.process.reclaim() == {1: 2}
    assert played.process.untaken() == 0
