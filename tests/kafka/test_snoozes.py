"""A record whose handler snoozes is not done: its offset waits, and so do the records behind it in its line."""

from __future__ import annotations

import signal

from tests.kafka.supervised import PLUGIN, Supervised
from tests.system.command import wait_for

SNOOZES = (
    (
        PLUGIN
        + r"""

@handler("work", max_retries=0)
def snoozing(job):
    note("start", job)
    wanted = job.payload or {}
    if "until" in wanted and not os.path.exists(wanted["until"]):
        raise Snooze("50ms", max_snoozes=wanted.get("most", 1000))
    note("end", job)
"""
    )
    .replace("@handler\ndef work", "def work")
    .replace("import handler", "import Snooze, handler")
)


def started_often(supervised: Supervised, offset: int, times: int) -> None:
    def reached() -> None:
        assert supervised.starts()[offset] >= times

    wait_for(reached, 30.0)


def test_the_offset_of_a_record_that_snoozes_is_committed_once_it_is_done(mocked: Supervised) -> None:
    mocked.write(plugin=SNOOZES, store={"ordering": "unordered"})
    mocked.produce({"until": "go"}, None, None)
    run = mocked.run()
    mocked.until_ended(1, 2)
    started_often(mocked, 0, 4)
    mocked.until_done_beyond(0, (1, 3))
    often = mocked.starts()[0]
    started_often(mocked, 0, often + 4)
    assert mocked.committed()[0] == 0
    mocked.release("go")
    mocked.until_committed(3)
    assert mocked.ends() == {0: 1, 1: 1, 2: 1}
    assert {it.attempt for it in mocked.journal} == {1}
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_records_of_its_key_wait_for_it(mocked: Supervised) -> None:
    mocked.write(plugin=SNOOZES, store={"ordering": "key"})
    mocked.produce({"until": "go"}, None, key=b"a")
    mocked.run()
    started_often(mocked, 0, 3)
    assert mocked.starts()[1] == 0
    mocked.release("go")
    mocked.until_committed(2)
    assert [it.offset for it in mocked.journal if it.what == "end"] == [0, 1]


def test_past_its_limit_it_is_a_dead_letter(supervised: Supervised) -> None:
    supervised.write(plugin=SNOOZES)
    supervised.broker.create_topic(f"{supervised.topic}.dlq")
    supervised.produce({"until": "never", "most": 2}, None)
    supervised.run()
    supervised.until_committed(2)
    assert supervised.starts() == {0: 3, 1: 1}
    (record,) = supervised.broker.read(f"{supervised.topic}.dlq")
    reason = dict(record.headers())["x-error-reason"]
    assert b"it has snoozed 2 times, the most that max_snoozes=2 allows" in reason
