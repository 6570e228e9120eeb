"""The errors that callers may catch. Each message is for the user and names what was expected."""

from __future__ import annotations

from typing import Any


class StoreError(Exception):
    """The store refused: the request can't succeed as it stands. The message is for the user."""


class StoreUnavailable(StoreError):
    """The store can't be reached or is locked: the same call may succeed later, and nothing of it was done."""


class StoreContended(StoreUnavailable):
    """A lock of somebody else's was in the way for too long, or two waited for each other. The same calls made again at once
    pass by rows that are locked, and wait for none; what waits all the same waits for a lock on more than rows."""


class StoreBroken(StoreUnavailable):
    """The store answers and takes nothing, until somebody mends it: a right is missing, say. A supervisor goes on as if it
    were away; a program is told at once."""


class StoreMissing(StoreError):
    """There is no store yet where it should be; whoever may create it makes one."""


class StoreUnsure(StoreError):
    """The answer was lost on the way: it was done, all of it, or it was not. It is not tried again."""


class RowRefused(StoreError):
    """A row of the batch can't be stored, whatever is tried; nothing of the batch was done."""


class RowsLocked(StoreError):
    """Others hold the rows of these ids: nothing of this call was done, and its transaction goes on. Without them it may be
    made at once."""

    def __init__(self, message: str, ids: frozenset[int]) -> None:
        super().__init__(message)
        self.ids = ids


class InvalidJob(ValueError):
    """A job that can't be enqueued; the message names the key and what was expected."""


class PluginMistake(Exception):
    """Something in a plugin file that can't be served. `line` is in that file."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class NoForkserver(Exception):
    """No process could be started that imports the plugins, or none answered in time."""


class ConfigError(Exception):
    """`errors` has one line for each mistake, with the file, the line and the key.

    `settings` has defaults in place of what is wrong, if the file could be read: to look for more mistakes, not to run.
    """

    def __init__(self, errors: list[str], settings: Any = None) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.settings = settings
