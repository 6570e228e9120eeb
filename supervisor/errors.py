"""The errors that callers may catch. Each message is for the user and names what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CAUSES_OF_A_CANCEL = ("parent_failed", "expired")
"""The causes of jobs that nobody has cancelled."""
MAX_SHOWN = 300
"""The characters of a failure in the message of JobFailed."""


class StoreError(Exception):
    """The store refused the request; the same request can't succeed later."""


class StoreUnavailable(StoreError):
    """The store can't be reached or is locked: nothing was done, and the same call may succeed later."""


class StoreContended(StoreUnavailable):
    """Another session held a lock for too long, or two sessions waited for each other. The same call, made again at once, skips
    locked rows; if it still waits, another session has locked a whole table."""


class Unsupported(StoreError):
    """The store can't do this at all; `instead` is what to do in place of it."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"this store can't {what}: {instead}")
        self.what, self.instead = what, instead


class StoreBroken(StoreUnavailable):
    """The store answers but accepts nothing until it is repaired: for example, a right is missing. A supervisor goes on as if the
    store were unavailable; a program gets the error at once."""


class StoreDamaged(StoreBroken):
    """The data of the store are damaged: they must be restored from a backup, or repaired."""


class StoreReplaced(StoreUnavailable):
    """The database file was deleted, moved, replaced, truncated or overwritten since it was opened: nothing that this connection does is seen by others. A
    supervisor ends; a program opens the store anew."""


class StoreMissing(StoreError):
    """There is no store yet where it should be; a caller that may create it does so, unless there is an `obstacle`."""

    def __init__(self, message: str, obstacle: str | None = None) -> None:
        super().__init__(message)
        self.obstacle = obstacle


class StoreUnsure(StoreError):
    """The answer to a commit was lost: everything was done, or nothing. The call is not tried again."""


class RowRefused(StoreError):
    """A row of the batch can never be stored; nothing of the batch was done."""


class RowsLocked(StoreError):
    """Other sessions hold the rows of these `ids`: nothing of this call was done, and its transaction goes on. The same call without
    these ids may be made at once."""

    def __init__(self, message: str, ids: frozenset[int]) -> None:
        super().__init__(message)
        self.ids = ids


class JobExists(StoreError):
    """Nothing was enqueued: another job has the unique key, and `on_conflict` is "reject". `id` is that job; it is None if an earlier
    row of the same batch has the key."""

    def __init__(self, key: str, id: int | None) -> None:
        super().__init__(key, id)
        self.key, self.id = key, id

    def __str__(self) -> str:
        who = "an earlier job of this batch" if self.id is None else f"job {self.id}"
        return f"{who} has the unique key {self.key!r}: nothing was enqueued"


class InvalidJob(ValueError):
    """A job that can't be enqueued; the message names the key and what was expected."""


class NoSuchParent(RowRefused, InvalidJob):
    """A job that waits for a job that does not exist; nothing of the batch was enqueued."""


class ParentsInCircle(RowRefused, InvalidJob):
    """A job that is replaced by one that waits for a job that waits for it; nothing of the batch was enqueued."""


class PluginMistake(Exception):
    """A mistake in a plugin file, at `line` if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class NoForkserver(Exception):
    """The process that imports the plugins could not be started, or did not answer in time."""


class SystemRefused(Exception):
    """The operating system refuses a call, a process or a thread that is needed; the message names it and the remedy."""


class ConfigError(Exception):
    """The config has mistakes: `errors` has one line for each, with the file, the line and the key.

    If the file could be read, `settings` has defaults in place of the mistakes: use it to find more of them, not to run. `wrong`
    are the keys of the mistakes, level by level.
    """

    def __init__(self, errors: list[str], settings: Any = None, wrong: tuple[tuple[str | int, ...], ...] = ()) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.settings = settings
        self.wrong = wrong


class NotAccepted(Exception):
    """Raised by `Sink.publish` if it has accepted some dead letters only, or none. `refused` has an error for each that it has refused, by
    id; `accepted` are the ids that are safely stored. The others were not tried, which is no failure. For the next `retry_after`
    seconds the sink is offered nothing."""

    def __init__(self, refused: Mapping[int, str], accepted: Iterable[int] = (), retry_after: float = 0.0) -> None:
        super().__init__(next(reversed(list(refused.values())), "nothing was accepted"))
        self.refused, self.accepted, self.retry_after = dict(refused), frozenset(accepted), retry_after


class JobFailed(Exception):
    """A job has failed for good, or was cancelled: `state` is "failed" or "cancelled". `errors` are its failed attempts as its
    JSON has them, the newest last. `cause` is that of the last one; it is None if somebody has cancelled the job, "expired" if it has not
    started in time, and "parent_failed" if it was cancelled since a job that it waited for has ended without success."""

    def __init__(self, id: int, handler: str, state: str, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(id, handler, state, errors)
        self.id, self.handler, self.state, self.errors = id, handler, state, errors

    @property
    def cause(self) -> str | None:
        cause: str | None = self.errors[-1]["cause"] if self.errors else None
        return cause if self.state == "failed" or cause in CAUSES_OF_A_CANCEL else None

    def __str__(self) -> str:
        """Return one line, with the beginning of the last message."""
        if self.cause is None:
            was = "was cancelled" if self.state == "cancelled" else "failed"
            return f"job {self.id} ({self.handler}) {was}"
        last = self.errors[-1]
        if self.cause == "expired":
            return f"job {self.id} ({self.handler}) expired: {last.get('message')}"
        if self.state == "cancelled":
            return f"job {self.id} ({self.handler}) was cancelled: {last['message']}"
        parts = filter(None, (self.cause, last.get("type"), last.get("message")))
        line = " ".join(": ".join(map(str, parts)).split())
        shown = line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 1]}…"
        return f"job {self.id} ({self.handler}) failed at attempt {last['attempt']}: {shown}"


class JobNotFound(LookupError):
    """There is no job `id`: it never was, or was deleted."""

    def __init__(self, id: int, existed: bool = False) -> None:
        super().__init__(id, existed)
        self.id, self.existed = id, existed

    def __str__(self) -> str:
        if self.existed:
            return f"job {self.id} was deleted while its end was waited for"
        return (
            f"no job {self.id}: it was deleted (by a person, or after its retention), or never enqueued in this store "
            "(a job of a transaction exists once that commits)"
        )
