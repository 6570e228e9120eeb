"""The traceback of a failed job has the frames of the plugins alone."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor.handlers import Handler, JobTimeout, Reject, Retry, Snooze
from supervisor.workers.child.error_report import report
from supervisor.workers.child.middleware import Middleware


@dataclass(frozen=True)
class Frozen(Exception):
    why: str


def translating(job: Any) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except KeyError as error:
        raise Frozen("translated") from error


def fails(job: Any) -> None:
    raise KeyError("deep")


def caught(run: Any) -> BaseException:
    try:
        run()
    except BaseException as error:
        return error
    raise AssertionError


def shown(error: BaseException) -> list[str]:
    """The functions in the reported traceback, in order."""
    _, described = report(error, Handler("fails", fails), {})
    assert "middleware.py" not in described["traceback"]
    return [line.split(" in ")[1] for line in described["traceback"].splitlines() if line.startswith("  File ")]


def test_frames_of_the_middleware_are_in_no_part_of_the_traceback() -> None:
    error = caught(lambda: Middleware([translating, translating]).run(None, fails))  # type: ignore[arg-type]
    assert "middleware.py" in "".join(traceback.format_exception(error))
    here = ["caught", "<lambda>"]
    assert [name for name in shown(error) if name not in here] == ["translating", "fails", "translating", "translating"]


def test_a_wrapper_that_does_not_yield_is_named_without_a_traceback() -> None:
    def silent(job: Any) -> Generator[None, Any, Any]:
        return None
        yield

    error = caught(lambda: Middleware([silent]).run(None, fails))  # type: ignore[arg-type]
    _, described = report(error, Handler("fails", fails), globals())
    line = silent.__code__.co_firstlineno
    message = f"{__file__}:{line}: hook supervisor_run: a wrapper must yield once; this one did not yield"
    assert (described["type"], described["message"]) == ("RuntimeError", message)
    assert described["traceback"] == f"RuntimeError: {message}\n"


@pytest.mark.parametrize(
    ("errors", "kind", "facts"),
    [
        ([ValueError("a"), Retry("b", after="3s")], "retry", {"after": 3.0}),
        ([Retry("a"), Retry("b", after="3s"), Retry("c", after="2s")], "retry", {"after": 3.0}),
        ([Retry("a"), ExceptionGroup("", [Reject("b")]), KeyError("c")], "rejected", {}),
        ([Retry("a", after="3s"), KeyError("b")], "failed", {"retryable": False}),
        ([ValueError("a")], "failed", {}),
    ],
)
def test_a_group_counts_as_the_strongest_in_it(errors: list[Exception], kind: str, facts: dict[str, Any]) -> None:
    handler = Handler("fails", fails, never_retry=(KeyError,))
    reported, described = report(ExceptionGroup("of a task group", errors), handler, {})
    assert reported == kind
    assert {key: described[key] for key in ("after", "retryable") if key in described} == facts


def test_the_message_of_a_group_has_those_of_its_parts() -> None:
    group = ExceptionGroup(
        "it failed", [ValueError("a"), ExceptionGroup("", [OSError("b"), KeyError(), IndexError("d")])]
    )
    _, described = report(group, Handler("fails", fails), {})
    assert described["message"] == "it failed (2 sub-exceptions): ValueError: a; OSError: b; KeyError; …"
    endless = ExceptionGroup("x", [ValueError("deep")])
    for _ in range(3000):
        endless = ExceptionGroup("x", [endless])
    assert report(endless, Handler("fails", fails), {})[0] == "failed"


def kind_and_error(error: BaseException, **options: Any) -> tuple[str, dict[str, Any]]:
    return report(error, Handler("fails", fails, **options), {})


def test_a_snooze_is_reported_with_its_delay_and_its_limit() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    kind, error = kind_and_error(Snooze("5m", max_snoozes=7, until=until))
    assert (kind, error["after"], error["most"], error["until"]) == ("snoozed", 300.0, 7, 1_893_456_000_000_000)
    assert (error["type"], error["message"], error["traceback"]) == ("Snooze", "for 5m", "")
    assert kind_and_error(Snooze(1))[1]["most"] == 1000
    assert kind_and_error(Snooze(1, until=until))[1]["most"] is None


def test_of_several_snoozes_the_longest_counts() -> None:
    group = ExceptionGroup("tasks", [Snooze(10, max_snoozes=3), ExceptionGroup("inner", [Snooze(20, max_snoozes=5)])])
    kind, error = kind_and_error(group)
    assert (kind, error["after"], error["most"]) == ("snoozed", 20.0, 5)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [(ValueError("no"), "failed"), (Reject("no"), "rejected"), (Retry("no"), "retry"), (KeyError("no"), "failed")],
)
def test_a_snooze_hides_no_error_beside_it(beside: Exception, expected: str) -> None:
    kind, error = kind_and_error(ExceptionGroup("tasks", [Snooze(10), beside]), never_retry=(KeyError,))
    assert kind == expected
    assert "most" not in error


def test_a_snooze_from_another_exception_is_a_snooze() -> None:
    def run() -> None:
        try:
            raise JobTimeout
        except JobTimeout as error:
            raise Snooze("1s") from error

    assert kind_and_error(caught(run))[0] == "snoozed"


def test_a_snooze_that_was_tampered_with_is_a_failure() -> None:
    class Odd(Snooze):
        @property
        def until(self) -> Any:
            return "tomorrow"

        @until.setter
        def until(self, value: Any) -> None: ...

    assert kind_and_error(Odd("1s"))[0] == "failed"
