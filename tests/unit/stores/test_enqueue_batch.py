"""A batch of many jobs has the rows that each would have alone, and the first wrong job is named."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import pytest

from supervisor.client.new_jobs import BatchBuilder, batch_of, enqueue_row
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.jobs import NewJob
from supervisor.stores.records import EnqueueBatch

SETTINGS = Settings(limits={"payload": 100}, handlers={name: {"queue": f"of {name}"} for name in ("a", "b")})


MIXED: list[Any] = [
    ("a", 1),
    ("a", {"n": [1.5]}),
    ("b", None),
    NewJob("a", queue="x", priority=3),
    {"handler": "b"},
    {"handler": "a", "payload": [2]},
    {"handler": "a", "priority": 1},
    ("b", ""),
]


def test_rows_of_a_batch_are_as_each_would_be_alone() -> None:
    alone = [enqueue_row(SETTINGS, job) for job in MIXED]
    assert list(batch_of(SETTINGS, MIXED)) == alone


WRONG: list[Any] = [
    ("a", float("nan")), ("a", "x" * 99), ("", 1), (" c", 1), ("a", 1, 2), ([], 1), {"handler": "a", "payload": b""},
    {"handler": 1, "payload": 1}, {"handler": "a", "paylod": 1}, {"payload": 1, "queue": "b"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_job_is_refused_behind_others_of_its_handler(wrong: Any) -> None:
    with pytest.raises(InvalidJob) as alone:
        enqueue_row(SETTINGS, wrong)
    with pytest.raises(InvalidJob, match=re.escape(f"jobs[2]: {alone.value}")):
        batch_of(SETTINGS, [("a", 1), ("a", 2), wrong])


def test_rows_are_as_they_were_if_a_job_is_refused() -> None:
    builder = BatchBuilder(SETTINGS)
    for wrong in WRONG:
        builder.add(("a", 1))
        with pytest.raises(InvalidJob):
            builder.add(wrong)
    assert list(builder.batch) == [enqueue_row(SETTINGS, ("a", 1))] * len(WRONG)
    assert len(builder.batch.places) == len(WRONG)


def job(number: int) -> Any:
    kinds: list[Any] = [
        ("a", number),
        ("b", number),
        NewJob("c", number, priority=3),
        {"handler": "d", "payload": number, "headers": {"trace": "x"}},
    ]
    return kinds[number // 10 % 4]


def test_jobs_that_are_alike_are_kept_once_but_for_their_payloads() -> None:
    rows = batch_of(SETTINGS, map(job, range(80)))
    assert (len(rows.kinds), rows.payloads) == (6, [str(number) for number in range(80)])
    again = EnqueueBatch.of(list(rows))
    assert list(again) == list(rows) == [enqueue_row(SETTINGS, job(number)) for number in range(80)]
    assert len(again.kinds) == 8


def test_a_slice_of_a_batch_is_as_that_slice_of_a_list() -> None:
    rows = batch_of(SETTINGS, map(job, range(80)))
    assert list(rows[15:42]) == list(rows)[15:42]
    assert (rows[-1], len(rows[70:90])) == (list(rows)[-1], 10)
    assert EnqueueBatch.of(rows) is rows


class Handlers(str, Enum):  # noqa: UP042 (a StrEnum's text is its value anyway)
    MAIL = "mail"


class Ranks(int, Enum):
    HIGH = 7


def test_members_of_an_enum_are_written_as_their_values() -> None:
    """A store that writes a number as text would write the member's name."""
    job = NewJob(Handlers.MAIL, queue=Handlers.MAIL, priority=Ranks.HIGH, max_retries=Ranks.HIGH)
    row = enqueue_row(SETTINGS, job)
    assert row == enqueue_row(SETTINGS, NewJob("mail", queue="mail", priority=7, max_retries=7))
    assert {type(value) for value in row[:1] + row[2:4]} == {str, int} and type(row.max_retries) is int
