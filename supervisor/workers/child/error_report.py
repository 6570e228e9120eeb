"""Make the report of a failed attempt: the exception as text, never as an object. This never raises."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from supervisor import binding
from supervisor.handlers import Handler, InvalidPayload, JobTimeout, Reject, Retry, Snooze
from supervisor.plugins.failures import formatted, parts_of, type_name
from supervisor.plugins.importer import readable
from supervisor.text.printable import printable, shortened
from supervisor.text.strict_json import NotJSON
from supervisor.text.units import format_duration, parse_duration
from supervisor.workers.child import interruption, job_resources, middleware

MAX_MESSAGE = 64 * 1024
MAX_TRACEBACK = 64 * 1024
MAX_SHOWN_PARTS = 3  # of a group of exceptions

HIDDEN = [vars(middleware), vars(binding), vars(interruption), vars(job_resources)]
"""The globals of further modules with the worker's own frames."""

Error = dict[str, Any]  # as in Reply


def report(error: BaseException, handler: Handler, hidden: Mapping[str, Any]) -> tuple[str, Error]:
    """Return the kind and the error of an attempt that raised, as in Reply. `hidden` are the globals of the module that caught the
    exception: its frames are left out of the traceback."""
    try:
        return _report(error, handler, hidden)
    except BaseException as second:  # code of the job's exception raised it
        name = printable(type.__dict__["__name__"].__get__(type(error)))
        return "failed", plain(name, f"<no message: its attributes raised {type(second).__name__}>")


def _report(error: BaseException, handler: Handler, hidden: Mapping[str, Any]) -> tuple[str, Error]:
    if isinstance(error, InvalidPayload):
        return "rejected", plain(InvalidPayload.__name__, str(error))
    parts = parts_of(error)
    if snoozes := _snoozes(parts):
        return "snoozed", max(map(_snoozed, snoozes), key=_delay)
    described = _describe(error, hidden)
    if any(isinstance(each, Reject) for each in parts):
        return "rejected", described
    if handler.never_retry and any(isinstance(each, handler.never_retry) for each in parts):
        described["retryable"] = False
    elif retries := [each for each in parts if isinstance(each, Retry)]:
        longest: Error = max([_after(each) for each in retries], key=_delay)
        return "retry", {**described, **longest}
    return "timeout" if isinstance(error, JobTimeout) else "failed", described


def _snoozes(parts: list[BaseException]) -> list[Snooze]:
    """Return the snoozes, if nothing else was raised: beside an error, a snooze would hide it."""
    raised = [each for each in parts if not isinstance(each, BaseExceptionGroup)]
    snoozes = [each for each in raised if isinstance(each, Snooze)]
    return snoozes if len(snoozes) == len(raised) else []


def _snoozed(error: Snooze) -> Error:
    until = None if error.until is None else round(error.until.timestamp() * 1e6)
    described = plain(Snooze.__name__, f"for {format_duration(error.delay)}")
    return {**described, "after": error.delay, "most": error.max_snoozes, "until": until}


def without_worker_frames(error: BaseException, hidden: Mapping[str, Any]) -> BaseException:
    """Take the worker's own frames out of the tracebacks of the exception and of those that it comes from; return it."""
    linked, seen = [error], {id(error)}
    while linked:
        each = linked.pop()
        BaseException.with_traceback(each, _from_plugin(each.__traceback__, hidden))  # whatever its class allows
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                linked.append(cause)
    return error


def plain(type_: str, message: str) -> Error:
    """Return an error that does not come from an exception."""
    return {"type": type_, "message": shortened(printable(message), MAX_MESSAGE), "traceback": ""}


def bad_payload(error: NotJSON) -> Error:
    return plain("BadPayload", str(error))


def bad_result(error: NotJSON) -> Error:
    message = f"the handler succeeded, but its result can't be stored: {error}"
    return {**plain("BadResult", message), "retryable": False}


def unknown_handler(name: str) -> Error:
    return plain("UnknownHandler", f"no plugin loaded in this worker has a handler named {name!r}")


def _describe(error: BaseException, hidden: Mapping[str, Any]) -> Error:
    return {
        "type": readable(type_name(type(error))),
        "message": shortened(printable(_message_with_parts(error)), MAX_MESSAGE),
        "traceback": shortened(printable(traceback(error, hidden)), MAX_TRACEBACK),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _message_with_parts(error: BaseException) -> str:
    inner = [each for each in parts_of(error)[1:] if not isinstance(each, BaseExceptionGroup)]
    texts = [f"{type_name(type(each))}: {_message(each)}".removesuffix(": ") for each in inner[:MAX_SHOWN_PARTS]]
    more = ["…"] if len(inner) > MAX_SHOWN_PARTS else []
    return ": ".join([_message(error), *filter(None, ["; ".join([*texts, *more])])])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # from the exception's own __str__
        return f"<no message: str() raised {type(second).__name__}>"


def traceback(error: BaseException, hidden: Mapping[str, Any]) -> str:
    """Return the traceback with its causes, and without the worker's own frames."""
    try:
        return formatted(without_worker_frames(error, hidden))
    except BaseException as second:
        return f"<no traceback: formatting it raised {type(second).__name__}>"


def _from_plugin(trace: TracebackType | None, hidden: Mapping[str, Any]) -> TracebackType | None:
    """Return the trace without the frames of the module with these globals, of the middleware and of the binding. If none is left, it
    is as it is, but None if the middleware has raised the exception: its message names the wrapper."""
    kept, entry, by = [], trace, None
    while entry is not None:
        by = entry.tb_frame.f_globals
        if all(entry.tb_frame.f_globals is not each for each in (hidden, *HIDDEN)):
            kept.append(entry)
        entry = entry.tb_next
    if not kept:
        return None if by is vars(middleware) else trace
    rest: TracebackType | None = None
    for entry in reversed(kept):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _delay(after: Error) -> float:
    return float(after.get("after", 0.0))


def _after(error: Retry) -> Error:
    if error.after is None:
        return {}
    try:
        return {"after": parse_duration(error.after, zero=True)}
    except (ValueError, TypeError) as mistake:
        return {"message": f"{error} (Retry(after={error.after!r}) is ignored: {mistake})"}
