"""What is committed, and when: only what is done, and all of it."""

from __future__ import annotations

import signal

import pytest

from tests.kafka.supervised import Supervised


def test_no_offset_is_committed_past_a_record_that_runs_and_what_is_done_beyond_is_not_run_again(
    mocked: Supervised,
) -> None:
    mocked.produce({"files": "go"}, *[None] * 9)
    first = mocked.run()
    mocked.until_ended(*range(1, 10))
    mocked.until_done_beyond(0, (1, 10))
    first.kill()
    assert mocked.committed()[0] == 0
    mocked.release("go")
    mocked.run()
    mocked.until_committed(10)
    assert mocked.starts() == {0: 2, **dict.fromkeys(range(1, 10), 1)}


def test_what_a_terminated_supervisor_had_read_and_not_done_is_run_by_the_next(supervised: Supervised) -> None:
    supervised.write(shutdown={"grace": "200ms"}, workers={"count": 2})
    supervised.produce(None, *[{"files": "go"}] * 20)
    first = supervised.run()
    supervised.until_committed(1)
    supervised.until_started(1, 2)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert supervised.committed()[0] == 1
    supervised.release("go")
    supervised.run()
    supervised.until_committed(21)
    assert supervised.ends() == dict.fromkeys(range(21), 1)


def test_what_is_done_is_committed_before_a_partition_is_given_up(supervised: Supervised) -> None:
    supervised.write(store={"commit_interval": "1h", "topics": {f"{supervised.topic}-2": "work"}})
    supervised.topic += "-2"
    supervised.broker.create_topic(supervised.topic, 2)
    for partition in (0, 1):
        supervised.produce(*[None] * 100, partition=partition)
    first = supervised.run()
    supervised.until_ended(*range(100), partition=0)
    supervised.until_ended(*range(100), partition=1)
    second = supervised.run()
    first.logged("partitions given up", 30.0)
    assert list(supervised.committed().values()) == [100]
    for partition in (0, 1):
        supervised.produce(None, partition=partition)
        supervised.until_ended(100, partition=partition)
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert set(supervised.starts(0).values()) == set(supervised.starts(1).values()) == {1}


@pytest.mark.parametrize("interval", ["50ms", "1h"])
def test_jobs_that_end_while_a_supervisor_ends_are_committed(supervised: Supervised, interval: str) -> None:
    supervised.write(store={"commit_interval": interval}, workers={"count": 10})
    supervised.produce(*[{"files": "go"}] * 10)
    first = supervised.run()
    supervised.until_started(*range(10))
    first.signal(signal.SIGTERM)
    first.logged("SIGTERM received")
    supervised.release("go")
    assert first.wait() == 0
    assert supervised.committed()[0] == 10
    assert supervised.starts() == supervised.ends() == dict.fromkeys(range(10), 1)
