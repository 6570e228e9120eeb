"""The names that plugin authors write handlers with: @handler, Retry, Reject, Snooze."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, overload

from supervisor.text.names import did_you_mean_or_all
from supervisor.text.units import format_duration, parse_duration

Function = TypeVar("Function", bound=Callable[..., Any])

MARK = "__supervisor_handler__"
MAX_SNOOZES = 1000
"""So often may a job snooze that has no other limit."""


class Retry(Exception):
    """Raised by a handler to fail this attempt and, if retries are left, to run again after `after`.

    `after` is seconds or a duration such as "30s"; None is the backoff of the job's policy.
    """

    def __init__(self, reason: str = "", *, after: float | str | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Reject(Exception):
    """Raised by a handler if no attempt can succeed: the job becomes a dead letter at once, whatever retries are left."""


class Snooze(Exception):
    """Raised by a handler to run again after `delay`, without a failure: no retry is counted.

    `delay` is seconds or a duration such as "30s". A job may snooze `max_snoozes` times, and never past `until`, an aware datetime.
    Without either of them it may 1000 times. A snooze past its limit is a failed attempt, as if the handler had raised any other
    exception. Raises ValueError or TypeError if an argument is wrong.
    """

    def __init__(self, delay: float | str, *, max_snoozes: int | None = None, until: datetime | None = None) -> None:
        self.delay = parse_duration(delay)
        if max_snoozes is not None and (type(max_snoozes) is not int or not 0 <= max_snoozes < 1 << 31):
            raise ValueError(f"max_snoozes: expected a whole number from 0 to 2**31 - 1, got {max_snoozes!r}")
        if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
            raise TypeError(f"until: expected a datetime with a time zone, got {until!r}")
        self.max_snoozes = MAX_SNOOZES if max_snoozes is None and until is None else max_snoozes
        self.until = until
        super().__init__(f"for {format_duration(self.delay)}")


class JobTimeout(BaseException):
    """Raised in a handler that still runs after its `soft_timeout`, so that it can tidy up. `except Exception` does not catch it."""


class JobCancelled(BaseException):
    """Raised in a handler when its job is cancelled, if it has a `cancel_grace`. `except Exception` does not catch it."""


class InvalidPayload(Reject):
    """The payload does not fit the parameters of the handler. The message names each field and what was expected."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that runs jobs, and its options as written; None leaves an option to the configuration.

    Durations are seconds or text such as "30s"; those that may be no limit may be "none". `backoff` is a mapping with
    the keys of `retry.backoff`, and `rlimits` one with those of `handlers.<name>.rlimits`. `schedule` is a cron
    expression, or a mapping with the keys of `schedules.<name>`. A job that raises one of the exceptions in `never_retry` becomes a dead letter at once. `queue`
    and `priority` are those of jobs that are enqueued by the function.
    """

    name: str
    function: Callable[..., Any]
    timeout: float | str | None = None
    max_retries: int | None = None
    backoff: dict[str, Any] | None = None
    heartbeat: float | str | None = None
    heartbeat_timeout: float | str | None = None
    soft_timeout: float | str | None = None
    cancel_grace: float | str | None = None
    never_retry: tuple[type[BaseException], ...] = ()
    queue: str | None = None
    priority: int | None = None
    nice: int | None = None
    rlimits: dict[str, Any] | None = None
    schedule: str | dict[str, Any] | None = None


OPTIONS = tuple(name for name in Handler.__slots__ if name not in ("name", "function"))
"""The options of @handler."""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler as found in a plugin: its name, its options as written, the place of its function, the JSON schema of its payload
    (None if it takes any), and whether it is a coroutine function."""

    name: str
    options: dict[str, Any]
    file: str
    line: int
    schema: dict[str, Any] | None = None
    is_async: bool = False


@overload
def handler(function: Function, /) -> Function: ...
@overload
def handler(
    name: str | None = None,
    /,
    *,
    timeout: float | str | None = None,
    max_retries: int | None = None,
    backoff: dict[str, Any] | None = None,
    heartbeat: float | str | None = None,
    heartbeat_timeout: float | str | None = None,
    soft_timeout: float | str | None = None,
    cancel_grace: float | str | None = None,
    never_retry: tuple[type[BaseException], ...] | type[BaseException] = (),
    queue: str | None = None,
    priority: int | None = None,
    nice: int | None = None,
    rlimits: dict[str, Any] | None = None,
    schedule: str | dict[str, Any] | None = None,
) -> Callable[[Function], Function]: ...
def handler(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as the handler of the jobs with its name, or with `name` if one is given.

    The function is not wrapped, and may be called directly; the plugin loader finds the mark on it.
    """
    if function is not None and not isinstance(function, str):
        return _marked(function, None, {})
    for option in options:
        if option not in OPTIONS:
            raise TypeError(f"@handler has no option {option!r}{did_you_mean_or_all(option, OPTIONS)}")
    never_retry = options.get("never_retry", ())
    if isinstance(never_retry, type):
        options["never_retry"] = (never_retry,)

    def decorate(decorated: Function) -> Function:
        return _marked(decorated, function, options)

    return decorate


def _marked(function: Function, name: str | None, options: dict[str, Any]) -> Function:
    if isinstance(function, type) or not hasattr(function, "__name__") or not hasattr(function, "__dict__"):
        text = "a function of its own around it: def name(job): ..." if callable(function) else "a function or a name"
        raise TypeError(f"handler(): expected {text}, got {function!r}")
    marked = Handler(name or function.__name__, function, **options)
    # A list, since one function may serve several names.
    vars(function).setdefault(MARK, []).append(marked)
    if _collected is not None:
        _collected.append(marked)
    return function


_collected: list[Handler] | None = None


@contextmanager
def collected_marks() -> Iterator[list[Handler]]:
    """Yield a list of the handlers that are marked meanwhile."""
    global _collected
    before, _collected = _collected, []
    try:
        yield _collected
    finally:
        _collected = before


def handler_of(function: Callable[..., Any]) -> Handler:
    """Return the handler that @handler has made of the function. Raises ValueError if there is none, or more than one."""
    marks: list[Handler] = getattr(function, "__dict__", {}).get(MARK, [])
    shown = getattr(function, "__qualname__", repr(function))
    if not marks:
        raise ValueError(f"{shown} is no handler: put @handler above it")
    if len(marks) > 1:
        raise ValueError(f"{shown} serves {', '.join(it.name for it in marks)}: enqueue by one of these names")
    return marks[0]
