"""The lines of the log about the consumer group of a Kafka store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.kafka.events import (
    CommitFailed,
    GroupProblem,
    OffsetReset,
    OffsetsCommitted,
    PartitionsAssigned,
    PartitionsRevoked,
)
from tests.unit.telemetry.conftest import Clock

Log = Callable[..., list[str]]


REFUSED = CommitFailed(["orders/0"], "box:9092: REBALANCE_IN_PROGRESS")
ASSIGNED = PartitionsAssigned(["orders/0", "orders/1"])
COMMITTED = OffsetsCommitted({"orders/0": 5, "orders/1": 70})


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PartitionsAssigned(["orders/0", "orders/1"]), "INFO partitions assigned: orders/0, orders/1"),
        (PartitionsRevoked(["orders/0"], False, 0), "INFO partitions given up: orders/0"),
        (PartitionsRevoked(["orders/0"], False, 1), "INFO partitions given up: orders/0; 1 record not done here"),
        (
            PartitionsRevoked(["orders/0", "orders/1"], True, 2),
            "WARNING partitions lost: orders/0, orders/1; 2 records not done here; records that are done and were not "
            "committed are run again by their next owner",
        ),
        (COMMITTED, "DEBUG offsets committed: orders/0=5, orders/1=70"),
        (
            OffsetReset("orders/0", 5, 105),
            "ERROR records skipped: orders/0 has no record 5 any more, reading goes on at offset 105, and up to 100 records "
            "were not run; if their retention has ended, raise retention.ms or retention.bytes of the topic",
        ),
        (
            OffsetReset("orders/0", 5, 0),
            "WARNING offset reset: orders/0 has no offset 5, since its topic was made anew or truncated; reading goes on at "
            "offset 0",
        ),
        (
            GroupProblem("box:9092: no such group"),
            "WARNING the Kafka client has an error, and tries again: box:9092: no such group",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else "",
)
def test_each_event_has_its_line(log: Log, event: Any, line: str) -> None:
    assert log(event) == [line]


def test_a_rebalance_that_gives_nothing_is_logged_only_by_a_supervisor_that_has_nothing(log: Log) -> None:
    nothing = PartitionsAssigned([])
    assert log(nothing, nothing) == [
        "INFO the group has given this supervisor no partition: the other members have them"
    ]
    assert len(log(PartitionsAssigned(["orders/0"]), nothing, nothing)) == 1


def test_many_partitions_are_a_line_of_limited_length(log: Log) -> None:
    (line,) = log(PartitionsAssigned([f"orders/{number}" for number in range(4000)]))
    assert line.endswith("orders/19 and 3980 more")


def test_commits_that_fail_are_logged_once_a_minute(log: Log, clock: Clock) -> None:
    log(ASSIGNED)
    assert log(REFUSED, REFUSED, REFUSED._replace(partitions=["orders/1"])) == [
        "WARNING offsets not committed of orders/0, and committed again with the next ones: box:9092: REBALANCE_IN_PROGRESS"
    ]
    clock.now = 61.0
    assert log(REFUSED)[0].endswith("(2 more times since the last such line)")


def test_the_end_of_failing_commits_is_logged_once_all_partitions_are_committed_again(log: Log, clock: Clock) -> None:
    log(ASSIGNED, REFUSED)
    clock.now = 10.0
    assert len(log(CommitFailed(["orders/1"], "too late"), OffsetsCommitted({"orders/0": 5}))) == 2
    clock.now = 12.0
    assert log(COMMITTED)[1:] == ["INFO offsets are committed again, after 12.00s"]
    assert log(COMMITTED)[1:] == []
    assert len(log(REFUSED)) == 1  # a new failure, which is not held back


def test_a_partition_that_is_given_up_fails_no_more_also_if_the_last_answer_is_late(log: Log) -> None:
    revoked, again = (
        PartitionsRevoked(["orders/0"], False, 0),
        "some records that are done are run again by their next owner",
    )
    log(ASSIGNED, REFUSED)
    assert log(revoked, REFUSED) == [
        f"WARNING partitions given up: orders/0; the last commit of orders/0 failed, so {again}",
        f"WARNING offsets not committed of orders/0, which were given up meanwhile, so {again}: {REFUSED.error}",
    ]
    assert log(OffsetsCommitted({"orders/1": 5}))[1:] == []
    log(ASSIGNED, REFUSED)
    assert len(log(OffsetsCommitted({"orders/0": 5}))) == 2


def test_errors_of_the_client_that_differ_in_their_numbers_are_one_line_a_minute(log: Log) -> None:
    errors = [f"box:9092: AUTH: no login (after {ms}ms in state AUTH_REQ)" for ms in (3, 5006, 12)]
    assert len(log(*map(GroupProblem, errors), GroupProblem("another one"))) == 2
