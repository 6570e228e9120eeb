"""End a copy of this process that code of a plugin has forked, once the copy returns from that code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn


def end_copy(error: BaseException | None) -> NoReturn:
    """Exit as a Python program that ends with `error` does: with the status of SystemExit, with 1 and the traceback of any
    other exception, or with 0. No exit function runs, since they belong to the process that was copied."""
    status = 0
    try:
        if error is not None:
            status = 1
            status = _status(error)
    except BaseException:  # from sys.excepthook, or from code of the exception
        pass
    finally:
        _flush((sys.stdout, sys.stderr))
        os._exit(status)


def _status(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _flush(streams: Iterable[object]) -> None:
    for stream in streams:
        with suppress(BaseException):
            stream.flush()  # type: ignore[attr-defined]
