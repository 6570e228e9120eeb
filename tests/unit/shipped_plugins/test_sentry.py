import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor import InvalidPayload, Job, Reject, Retry
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "sentry.py"
MAX_RETRIES = 2
TRACE = """Traceback (most recent call last):
  File "/jobs/a.py", line 1, in first
    second()
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/plugins/sentry.py", line 9, in supervisor_run
    return (yield)
  File "/jobs/mail.py", line 4, in mail
    send(job)
    ^^^^^^^^^
  File "/env/site-packages/smtp/send.py", line 7, in send
OSError: no route
"""


@pytest.fixture(params=["last", "all"])
def plugin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("SENTRY_DSN", "http://key@127.0.0.1:9/1")
    monkeypatch.setenv("SENTRY_ATTEMPTS", request.param)
    forget(PLUGIN.parent)
    yield import_file(PLUGIN)
    forget(PLUGIN.parent)


def outcome(attempt: int, failure: Failure, *, final: bool, **more: Any) -> Outcome:
    policy = Policy(max_retries=MAX_RETRIES)
    lease = Lease(7, 1, "mail", "post", '{"card":"4111"}', None, attempt - 1, 0, 0, 0, 0, policy)
    state = JobState.FAILED if final else JobState.SCHEDULED
    return Outcome(lease, Kind.FAILED, took=0.5, failure=failure, state=state, **more)


def raised(error: BaseException, cause: Cause = Cause.EXCEPTION, trace: str = TRACE) -> tuple[BaseException, Failure]:
    return error, Failure(cause, type(error).__name__, str(error), trace)


REPORTS = [
    # what the handler has raised (None: its worker did not get so far), the failure, whether no retry can change it
    (*raised(KeyError("a")), False),
    (*raised(KeyError("never_retry")), True),
    (*raised(Reject("no"), Cause.REJECTED), True),
    (*raised(ExceptionGroup("", [Reject("no")]), Cause.REJECTED), True),
    (*raised(InvalidPayload("no", []), Cause.REJECTED, ""), True),
    (asyncio.CancelledError(), Failure(Cause.TIMEOUT, "Timeout", "cancelled", TRACE), False),
    (None, Failure(Cause.TIMEOUT, "Timeout", "killed"), False),
    (None, Failure(Cause.CRASH, "WorkerCrashed", "killed by SIGSEGV"), False),
    (None, Failure(Cause.REJECTED, "BadPayload", "not JSON"), True),
    (None, Failure(Cause.EXCEPTION, "BadResult", "not JSON"), True),
    (None, Failure(Cause.UNKNOWN_HANDLER, "UnknownHandler", "no plugin"), True),
]


@pytest.mark.parametrize("attempt", [1, MAX_RETRIES + 1])
@pytest.mark.parametrize(("error", "failure", "never"), REPORTS, ids=lambda it: getattr(it, "type", None))
def test_a_failed_attempt_is_reported_by_one_process_or_by_none(
    plugin: ModuleType, error: BaseException | None, failure: Failure, never: bool, attempt: int
) -> None:
    final = never or attempt > MAX_RETRIES
    job = Job(7, "mail", None, attempt, max_retries=MAX_RETRIES)
    by_worker = error is not None and plugin._is_reported(job, error)
    by_supervisor = plugin._is_left(outcome(attempt, failure, final=final))
    assert by_worker + by_supervisor == (final or plugin.EVERY_ATTEMPT)


def test_a_retry_that_a_handler_wants_is_no_event_unless_it_was_the_last(plugin: ModuleType) -> None:
    for attempt, expected in ((1, False), (MAX_RETRIES + 1, True)):
        job = Job(7, "mail", None, attempt, max_retries=MAX_RETRIES)
        assert plugin._is_reported(job, Retry("busy")) is expected
        failed = outcome(attempt, Failure(Cause.EXCEPTION, "Retry", "busy", TRACE), final=expected, retry_after=1.0)
        assert not plugin._is_left(failed)


def test_the_last_traceback_of_a_text_becomes_frames(plugin: ModuleType) -> None:
    frames = plugin._frames(TRACE)
    assert [(frame["abs_path"], frame["lineno"], frame["function"], frame["context_line"], frame["in_app"]) for frame in frames] == [
        ("/jobs/mail.py", 4, "mail", "send(job)", True),
        ("/env/site-packages/smtp/send.py", 7, "send", None, False),
    ]  # fmt: skip
    assert plugin._frames("") == []


def test_the_payload_is_in_an_event_if_it_is_wanted(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = outcome(1, Failure(Cause.CRASH, "WorkerCrashed", "killed", signal="SIGSEGV"), final=True)
    event = plugin._event(crashed)
    assert event["tags"] == {"job": "7", "handler": "mail", "queue": "post", "attempt": "1", "cause": "crash"}
    assert event["contexts"]["job"] == {"id": 7, "cause": "crash", "took": 0.5, "signal": "SIGSEGV"}
    assert "4111" not in str(event)
    monkeypatch.setattr(plugin, "SEND_PAYLOAD", True)
    assert plugin._event(crashed)["contexts"]["job"]["payload"] == '{"card":"4111"}'


def test_another_value_of_attempts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTRY_ATTEMPTS", "first")
    with pytest.raises(ValueError, match="SENTRY_ATTEMPTS: expected last or all"):
        import_file(PLUGIN)
    forget(PLUGIN.parent)
