"""The supervisor's side of a worker's jobs, with the test in the worker's place."""

from __future__ import annotations

import os
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import close_all, open_channels
from supervisor.workers.interface import OutputLines, Reply, WorkerRecord
from supervisor.workers.log_records import lines_of
from supervisor.workers.parent.job_channel import FORGED_PERMITS, JobChannel
from tests.unit.fakes import make_lease
from tests.unit.virtual import VirtualLoop

TOKEN = b"0123456789abcdef"


class ScriptedWorker:
    """A worker that is ready; its test writes what it would write."""

    def __init__(self) -> None:
        self.output: list[Any] = []
        self.replies: list[Reply] = []
        self.broken: list[str] = []
        listener: Any = SimpleNamespace(
            replied=self.replies.extend,
            output=self.output.append,
        )
        self.owner: Any = SimpleNamespace(became_ready=lambda: None, channel_broken=self.broken.append, doing="")
        loop: Any = VirtualLoop()
        self.ours, self.ends = open_channels()
        self.channel = JobChannel(loop, self.ours, TOKEN, self.owner, listener, 1000)
        self.channel.listen()
        self.write(wire.encode_doing("import of a") + wire.encode_doing("import of b"))
        assert self.owner.doing == "import of b"
        self.write(wire.encode_doing("hook a") + wire.READY + b"\n")

    def write(self, text: bytes) -> None:
        os.write(self.ends.outcomes, text)
        self.channel.drain()

    def write_to_stderr(self, text: bytes, job_id: int) -> None:
        os.write(self.ends.stderr, text + TOKEN + b" %d\n" % job_id)

    def take_permit(self) -> None:
        os.read(self.ends.permits, 1)

    def close(self) -> None:
        close_all((*self.ours, *self.ends))


@pytest.fixture
def worker():
    here = ScriptedWorker()
    yield here
    here.close()


def test_output_after_the_rest_of_a_frame_was_reclaimed_belongs_to_no_job_of_it(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    worker.take_permit()
    worker.write(b"[1,5,null]\n")
    assert [reply.job_id for reply in worker.replies] == [1]
    assert worker.channel.reclaim() == {1: 1}
    os.write(worker.ends.stdout, b"late\n")
    worker.channel.finish_output()
    assert worker.output == [("stdout", None, ["late"])]


def test_the_hooks_after_the_last_job_are_noted_and_its_outcome_is_read(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1)])
    worker.take_permit()
    worker.write(
        b"[1,5,null]\n" + wire.encode_doing("stop hook a") + wire.encode_doing("stop hook \ud800\n" + "b" * 9999)
    )
    assert [reply.job_id for reply in worker.replies] == [1]
    assert worker.owner.doing.startswith("stop hook \\ud800\nbbb") and len(worker.owner.doing) < 600
    assert worker.broken == []


def test_a_hook_that_is_named_amid_other_text_breaks_the_channel(worker: ScriptedWorker) -> None:
    worker.write(wire.encode_doing("stop hook") + b"nonsense\n")
    assert (worker.owner.doing, len(worker.broken)) == ("hook a", 1)


def test_the_next_frame_begins_with_its_first_job(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    worker.take_permit()
    worker.write(b"[1,5,null]\n")
    worker.channel.reclaim()
    worker.channel.send(2, [make_lease(3), make_lease(4)])
    assert worker.channel.running() == 3


def test_permits_that_the_worker_has_not_taken_are_counted_and_left_to_it(worker: ScriptedWorker) -> None:
    channel = worker.channel
    assert channel.untaken() == 0
    channel.send(1, [make_lease(1), make_lease(2), make_lease(3)])
    assert channel.untaken() == 3
    worker.take_permit()
    assert channel.untaken() == 2
    assert channel.reclaim() == {1: 2}
    assert channel.untaken() == 0


def test_an_outcome_that_comes_once_outcomes_are_ignored_counts_for_nothing(worker: ScriptedWorker) -> None:
    """A job that has timed out must not succeed, though the signal that asks for its stack may end its wait."""
    worker.channel.send(1, [make_lease(1)])
    worker.take_permit()
    worker.channel.ignore_outcomes()
    worker.write(b"[1,5,null]\n")
    assert worker.replies == []
    assert worker.channel.running() == 1


def test_outcomes_that_wait_to_be_read_are_seen(worker: ScriptedWorker) -> None:
    assert not worker.channel.has_outcomes()
    os.write(worker.ends.outcomes, b"[1,5,null]\n")
    assert worker.channel.has_outcomes()


def test_no_frame_is_sent_to_a_worker_that_takes_no_more_and_its_permits_are_reclaimed(worker: ScriptedWorker) -> None:
    worker.channel.stop_sending()
    worker.channel.send(1, [make_lease(1)])
    os.set_blocking(worker.ends.jobs, False)
    with pytest.raises(BlockingIOError):
        os.read(worker.ends.jobs, 1)
    assert worker.channel.reclaim() == {1: 1}


def test_a_failure_has_what_its_job_wrote_to_stderr(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    worker.write_to_stderr(b"one\n", 1)
    worker.write_to_stderr(b"two\n", 2)
    worker.write(b"[1,5,null]\n" + wire.encode_failure(2, 5, "failed", {"type": "Oops"}))
    assert [reply.error for reply in worker.replies] == [None, {"type": "Oops", "stderr": "two\n"}]


def test_what_a_job_has_written_and_logged_comes_before_its_outcome_which_notes_it(worker: ScriptedWorker) -> None:
    record, order = WorkerRecord(20, "INFO", "job", "hello", "", 1, "mail", 1), worker.output
    listener: Any = worker.channel._listener
    listener.replied = order.extend
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    for number, reply in ((1, wire.with_output(b"[1,5,null]\n")), (2, b"[2,5,null]\n")):
        os.write(worker.ends.stderr, b"".join(lines_of(record._replace(job_id=number), TOKEN, "1")))
        os.write(worker.ends.stdout, b"out\n" + TOKEN + b" %d\n" % number)
        worker.write(reply)
    assert [type(it) for it in order] == [WorkerRecord, OutputLines, Reply, Reply], "the others are read in their turn"
    assert [reply.error for reply in order[2:]] == [None, None]


def test_no_output_of_jobs_that_succeeded_is_kept(worker: ScriptedWorker) -> None:
    for job_id in range(1, 10):
        worker.channel.send(job_id, [make_lease(job_id)])
        worker.write_to_stderr(b"text\n", job_id)
        worker.channel._stderr.read_all()
        assert list(worker.channel._stderr.tails) == [job_id]
        worker.write(b"[%d,5,null]\n" % job_id)
        assert not worker.channel._stderr.tails


@pytest.mark.parametrize("forged", [b"\1", b"\1\1\1", b"\2"])
def test_permits_that_a_job_has_forged_break_its_channel_and_reclaim_nothing(
    worker: ScriptedWorker, forged: bytes
) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    os.write(worker.ours.permits_put, forged)
    assert worker.channel.reclaim() == {}
    assert worker.broken == [FORGED_PERMITS]
    assert worker.channel.running() == 1


def test_permits_that_a_job_took_out_of_turn_and_put_back_break_its_channel(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    worker.channel.send(2, [make_lease(3)])
    os.write(worker.ours.permits_put, os.read(worker.ends.permits, 3)[:1])
    assert worker.channel.reclaim() == {}
    assert worker.broken == [FORGED_PERMITS]


def test_a_permit_that_is_forged_for_a_job_with_an_outcome_breaks_the_channel(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1), make_lease(2)])
    worker.take_permit()
    worker.write(b"[1,5,null]\n")
    os.write(worker.ours.permits_put, b"\1")
    assert worker.channel.reclaim() == {}
    assert worker.broken == [FORGED_PERMITS]


def test_a_job_that_fills_its_channel_of_permits_without_end_does_not_hold_up_a_reclaim(
    worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.channel.send(1, [make_lease(1)])
    reads: list[int] = []

    def always_full(fd: int, count: int) -> bytes:
        reads.append(fd)
        assert len(reads) < 10
        return b"\1" * count

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", always_full)
        assert worker.channel.reclaim() == {}
    assert worker.broken == [FORGED_PERMITS]


def test_no_job_has_taken_longer_than_its_worker_has_been_ready(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1)])
    worker.write(b"[1,7000000,null]\n")
    assert [reply.took for reply in worker.replies] == [0.0]


def test_replies_that_were_for_no_job_sent_are_not_counted(worker: ScriptedWorker) -> None:
    worker.channel.send(1, [make_lease(1)])
    worker.take_permit()
    worker.write(b"[1,5,null]\n")
    worker.channel.send(2, [make_lease(2), make_lease(3)])
    worker.write(b"[1,5,null]\n[2,5,null]\n")
    worker.channel.correct(1)
    assert worker.channel.running() == 3
    worker.write(b"[1,5,null]\n[99,5,null]\n")
    worker.channel.correct(0)
    assert worker.channel.running() == 3
    assert worker.broken == []
    worker.take_permit()
    assert worker.channel.reclaim() == {2: 1}
    assert worker.broken == []


def test_a_channel_of_permits_that_a_job_has_filled_is_broken(worker: ScriptedWorker) -> None:
    with suppress(BlockingIOError):
        while True:
            os.write(worker.ours.permits_put, b"\1" * 4096)
    worker.channel.send(2, [make_lease(1)])
    assert worker.broken == [FORGED_PERMITS]
