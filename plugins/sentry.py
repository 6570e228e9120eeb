"""Report failed jobs to Sentry, if SENTRY_DSN is set: one event for each job that has failed for good.

With SENTRY_ATTEMPTS=all, each failed attempt has an event, except those that a handler ends with Retry. SENTRY_SEND_PAYLOAD=1 adds the payload
and the local variables of the traceback. Other settings are the variables of the SDK, such as SENTRY_RELEASE. Exceptions are reported by
the worker. The supervisor reports what a worker can't: jobs that were killed, have crashed, or could not be run.
Needs: pip install 'job-supervisor[sentry]'.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
from collections.abc import Generator, Sequence
from typing import Any

from supervisor import Job, Reject, Retry, Snooze, hookimpl
from supervisor import events as happened
from supervisor.plugins.failures import from_handler, parts_of, type_name
from supervisor.plugins.importer import readable

ACTIVE = bool(os.environ.get("SENTRY_DSN"))
EVERY_ATTEMPT = os.environ.get("SENTRY_ATTEMPTS", "last") == "all"
SEND_PAYLOAD = os.environ.get("SENTRY_SEND_PAYLOAD", "") == "1"
FLUSH_SECONDS = 2.0
KILLED = frozenset({"Timeout", "HeartbeatLost", "MemoryLimit", "WorkerCrashed", "LeaseExpired"})
MECHANISM = {"type": "supervisor", "handled": False}
BLOCK = "Traceback (most recent call last)"
FRAME = re.compile(
    r'^ *(?:\| )?  File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)$(?:\n(?P<source>    .*))?', re.M
)

if os.environ.get("SENTRY_ATTEMPTS", "last") not in ("last", "all"):
    raise ValueError("SENTRY_ATTEMPTS: expected last or all")
if ACTIVE:
    try:
        import sentry_sdk
        from sentry_sdk.integrations.modules import ModulesIntegration
        from sentry_sdk.utils import event_from_exception, get_default_release
    except ImportError as error:
        raise ImportError(f"{error}: the plugin sentry.py needs: pip install 'job-supervisor[sentry]'") from None
    # What takes long is done once, and not in each worker: to ask git for the release, and to import what a client needs.
    RELEASE = get_default_release() or ""
    sentry_sdk.Client(dsn="", release=RELEASE, default_integrations=False, auto_enabling_integrations=False)


def _tags(id: int, handler: str, queue: str, attempt: int) -> dict[str, str]:
    return {"job": str(id), "handler": handler, "queue": queue, "attempt": str(attempt)}


def _fingerprint(handler: str, error: str) -> list[str]:
    """Return the group of an event: all errors of one type in one handler, wherever and in whichever process they are noticed."""
    return ["supervisor", handler, error]


# --- in workers


def _is_reported(job: Job, error: BaseException) -> bool:
    """Whether the worker reports an attempt that has raised this error. The supervisor decides by the same rule: see `_is_left`."""
    if isinstance(error, asyncio.CancelledError | Snooze):  # the supervisor knows why, or nothing has failed
        return False
    parts = parts_of(error)
    is_last = (
        job.max_retries is None or job.attempt > job.max_retries or any(isinstance(each, Reject) for each in parts)
    )
    return is_last or (EVERY_ATTEMPT and not any(isinstance(each, Retry) for each in parts))


def _capture(job: Job, error: BaseException) -> None:
    found = type(error), error, from_handler(error.__traceback__, globals())
    event, hint = event_from_exception(found, client_options=sentry_sdk.get_client().options, mechanism=MECHANISM)
    event["fingerprint"] = _fingerprint(job.handler, readable(type_name(type(error))))
    sentry_sdk.capture_event(event, hint=hint)


# --- in the supervisor


def _is_left(outcome: Any) -> bool:
    """Whether the supervisor has to report an attempt: it has failed, counts, and its worker has not reported it."""
    failure, lease = outcome.failure, outcome.lease
    is_final = outcome.state is not None and outcome.state.value == "failed"
    if failure is None or not (is_final or (EVERY_ATTEMPT and outcome.retry_after is None)):
        return False
    by_worker = (failure.traceback and failure.type not in KILLED) or failure.type == "InvalidPayload"
    worker_knew = EVERY_ATTEMPT or lease.attempt > lease.policy.max_retries or failure.cause.value == "rejected"
    return not (by_worker and worker_knew)


def _event(outcome: Any) -> dict[str, Any]:
    lease, failure = outcome.lease, outcome.failure
    kind = failure.type or failure.cause.value
    job = {"id": lease.id, "cause": failure.cause.value, "took": outcome.took, "host": failure.host, "pid": failure.pid}
    more = {
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "peak_memory": failure.peak_memory,
        "stack": failure.stack,
    }
    if SEND_PAYLOAD:
        more["payload"] = lease.payload
    raised: dict[str, Any] = {"type": kind, "value": failure.message, "mechanism": MECHANISM}
    if frames := _frames(failure.traceback):
        raised["stacktrace"] = {"frames": frames}
    return {
        "level": "error",
        "platform": "python",
        "transaction": lease.handler,
        "exception": {"values": [raised]},
        "tags": {**_tags(lease.id, lease.handler, lease.queue, lease.attempt), "cause": failure.cause.value},
        "contexts": {"job": {name: value for name, value in {**job, **more}.items() if value is not None}},
        "fingerprint": _fingerprint(lease.handler, kind),
    }


def _frames(text: str) -> list[dict[str, Any]]:
    """Return the frames of the last traceback in the text, the innermost last."""
    return [
        {
            "abs_path": found["file"],
            "filename": os.path.basename(found["file"]),  # noqa: PTH119
            "lineno": int(found["line"]),
            "function": found["function"],
            "context_line": (found["source"] or "").strip() or None,
            "in_app": "site-packages" not in found["file"],
        }
        for found in FRAME.finditer(text.rpartition(BLOCK)[2])
        if found["function"] != "supervisor_run"  # of a plugin around the handler
    ]


class Reporter:
    """Sends the events of the supervisor, with a client of its own: errors in the log of the supervisor are no events."""

    def __init__(self) -> None:
        self._client: Any = None

    def note(self, events: Sequence[Any]) -> None:
        for event in events:
            match event:
                case happened.JobsSettled(outcomes) | happened.LeasesRecovered(outcomes):
                    for outcome in outcomes:
                        if outcome.failure is not None and _is_left(outcome):
                            self._send(_event(outcome))

    def _send(self, event: dict[str, Any]) -> None:
        if self._client is None:
            self._client = sentry_sdk.Client(
                release=RELEASE, default_integrations=False, auto_enabling_integrations=False
            )
            atexit.register(self._client.close, timeout=FLUSH_SECONDS)
        self._client.capture_event(event)


if ACTIVE:
    _REPORTER = Reporter()

    @hookimpl
    def supervisor_worker_started() -> None:
        if not sentry_sdk.is_initialized():
            sentry_sdk.init(
                release=RELEASE, include_local_variables=SEND_PAYLOAD, auto_enabling_integrations=False, shutdown_timeout=FLUSH_SECONDS,
                disabled_integrations=[ModulesIntegration],  # it reads the files of all packages, in the first job that fails
            )  # fmt: skip

    @hookimpl
    def supervisor_worker_stopping() -> None:
        sentry_sdk.flush(timeout=FLUSH_SECONDS)

    @hookimpl(wrapper=True)
    def supervisor_run(job: Job) -> Generator[None, Any, Any]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(job.handler, source="task")
            scope.set_tags(_tags(job.id, job.handler, job.queue, job.attempt))
            if SEND_PAYLOAD:
                scope.set_context("job", {"id": job.id, "payload": job.payload})
            try:
                return (yield)
            except BaseException as error:
                if _is_reported(job, error):
                    _capture(job, error)
                raise

    @hookimpl
    def supervisor_events(events: Sequence[Any]) -> None:
        _REPORTER.note(events)
