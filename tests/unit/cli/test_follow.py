"""`supervisor jobs show --follow` prints what changes of a job, once, until it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from supervisor.cli import follow as module
from supervisor.cli.context import UserMistake
from supervisor.cli.follow import follow

JOB = {
    "id": 7, "handler": "mail", "state": "in_flight", "attempt": 1, "waiting_because": None, "progress": None, "log": None,
    "result": None, "errors": [], "lease": {"until": "1"},
}  # fmt: skip


def job(**changes: Any) -> dict[str, Any]:
    return {**JOB, **changes}


def progress(done: int) -> dict[str, Any]:
    return {"done": done, "total": 4, "message": "so far", "attempt": 1, "at": str(done)}


def log(*lines: str, skipped: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "skipped": skipped, "lines": [*lines]}


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*looks: dict[str, Any] | None, as_json: bool = False) -> tuple[int | None, list[str]]:
        answers: Iterator[Any] = iter(looks)
        monkeypatch.setattr(module, "_look", lambda *_: next(answers))
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(module, "echo", print)
        store: Any = None
        code = follow(store, 7, as_json)
        return code, capsys.readouterr().out.splitlines()

    return run


def test_each_change_is_printed_once_and_the_log_before_the_end(followed: Any) -> None:
    assert followed(
        job(state="ready", waiting_because="its queue is paused"),
        job(),
        job(progress=progress(1), log=log("a")),
        job(progress=progress(1), log=log("a"), lease={"until": "2"}),
        job(progress=progress(3), log=log("a", "b\x1b")),
        job(state="succeeded", progress=progress(4), log=log("b\x1b", "c", skipped=1)),
    ) == (None, [
        "job 7 (mail) is ready: its queue is paused", "job 7 (mail) is in_flight, attempt 1",
        "a", "progress: 1/4 (25%) so far", "b\\x1b", "progress: 3/4 (75%) so far",
        "c", "progress: 4/4 (100%) so far", "job 7 (mail) succeeded",
    ])  # fmt: skip


def test_lines_that_are_kept_no_more_are_counted_and_a_new_attempt_begins_anew(followed: Any) -> None:
    code, lines = followed(
        job(log=log("a")),
        job(log=log("y", "z", skipped=9)),
        job(attempt=2, log=log("z", attempt=2)),
        job(state="failed", attempt=2, log=log("z", attempt=2), errors=[{"cause": "exception", "attempt": 2}]),
    )
    assert code == 1
    assert lines[:-1] == [
        "job 7 (mail) is in_flight, attempt 1", "a", "... 8 lines left out ...", "y", "z",
        "job 7 (mail) is in_flight, attempt 2", "z",
    ]  # fmt: skip
    assert "job 7" in lines[-1]


def test_programs_get_one_object_for_each_change_but_none_for_its_lease(followed: Any) -> None:
    ended = job(state="cancelled")
    code, lines = followed(job(), job(lease={"until": "2"}), job(progress=progress(1)), ended, as_json=True)
    assert code == 1
    assert [orjson.loads(line) for line in lines] == [job(), job(progress=progress(1)), ended]


def test_a_reason_to_wait_is_printed_again_only_if_more_than_its_numbers_change(followed: Any) -> None:
    looks = (
        job(state="scheduled", waiting_because="it is scheduled: due in 1h, at 2030-01-31T08:00:00.5Z; wait"),
        job(state="scheduled", waiting_because="it is scheduled: due in 59m 59s, at 2030-01-31T08:00:00.5Z; wait"),
        job(state="scheduled", waiting_because="its queue is paused"),
        job(state="succeeded"),
    )
    assert followed(*looks)[1] == [
        "job 7 (mail) is scheduled: due in 1h, at 2030-01-31T08:00:00.5Z; wait",
        "job 7 (mail) is scheduled: its queue is paused",
        "job 7 (mail) succeeded",
    ]
    assert [orjson.loads(line) for line in followed(*looks, as_json=True)[1]] == [looks[0], looks[2], looks[3]]


def test_the_progress_of_an_earlier_attempt_is_named_by_it(followed: Any) -> None:
    looks = (
        job(attempt=2, progress=progress(3)),
        job(state="succeeded", attempt=2, progress={**progress(1), "attempt": 2}),
    )
    assert followed(*looks)[1] == [
        "job 7 (mail) is in_flight, attempt 2", "progress of attempt 1: 3/4 (75%) so far", "progress: 1/4 (25%) so far",
        "job 7 (mail) succeeded",
    ]  # fmt: skip


def test_a_job_that_has_ended_before_is_shown_and_one_that_is_deleted_is_a_mistake(followed: Any) -> None:
    assert followed(job(state="succeeded", log=log("a"))) == (None, ["a", "job 7 (mail) succeeded"])
    with pytest.raises(UserMistake, match="no job 7"):
        followed(None)
    with pytest.raises(UserMistake, match="job 7 was deleted"):
        followed(job(), None)
