"""The supervisor's side of the jobs of an async worker, with the test in the worker's place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import close_all, open_channels
from supervisor.workers.parent.async_job_channel import AsyncJobChannel, _encoded
from supervisor.workers.run_times import FRAME_BYTES
from tests.unit.fakes import make_lease
from tests.unit.virtual import VirtualLoop


class Here:
    def __init__(self) -> None:
        self.ours, self.ends = open_channels()
        self.broken: list[str] = []
        owner: Any = SimpleNamespace(channel_broken=self.broken.append, doing="")
        loop: Any = VirtualLoop()
        listener: Any = SimpleNamespace(output=None)
        self.channel = AsyncJobChannel(loop, self.ours, b"token", owner, listener, 1000)

    def send(self, *leases: Any) -> list[int]:
        frames = [self.channel.send_job(lease) for lease in leases]
        self.channel._send_gathered()
        return frames

    def lines(self) -> list[Any]:
        """Return what the worker reads: of each line, its first number and the ids of its jobs."""
        read = os.read(self.ends.jobs, 1 << 20).splitlines()
        return [(first, [row[0] for row in rows]) for first, rows in map(orjson.loads, read)]

    def permits(self, count: int = 100) -> list[int]:
        return wire.decode_permits(os.read(self.ends.permits, count * wire.PERMIT_BYTES))


@pytest.fixture
def here() -> Iterator[Here]:
    it = Here()
    yield it
    close_all((*it.ours, *it.ends))


def test_jobs_sent_at_one_moment_are_one_line_and_have_numbers_that_follow_each_other(here: Here) -> None:
    assert here.send(make_lease(7), make_lease(8)) == [1, 2]
    assert here.send(make_lease(9)) == [3]
    assert here.lines() == [(1, [7, 8]), (3, [9])]
    assert here.permits() == [1, 2, 3]


def test_large_jobs_have_a_line_each_so_that_the_first_need_not_wait_for_the_last() -> None:
    large = '"' + "x" * (FRAME_BYTES // 2) + '"'
    small, both = [make_lease(1), make_lease(2)], [make_lease(id)._replace(payload=large) for id in (1, 2)]
    assert [orjson.loads(line)[0] for line in _encoded(7, small).splitlines()] == [7]
    assert [orjson.loads(line)[0] for line in _encoded(7, both).splitlines()] == [7, 8]


def test_after_a_look_at_the_permits_the_worker_is_reminded_of_those_it_may_have_missed(here: Here) -> None:
    here.send(make_lease(7), make_lease(8))
    assert here.permits(1) == [1]
    assert here.channel.untaken_frames([1, 2]) == {2}
    assert here.lines() == [(1, [7, 8]), (0, [])]
    assert here.permits() == [2]
    assert here.channel.untaken_frames([1, 2]) == set()
