"""Runs in each traced process: notes the files whose functions are called with the job, or return it."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType
from typing import Any

from tests.house.job_path import JOB_ID, PAYLOAD

_ID, _DEPTH, _LOOKED_AT = str(JOB_ID), 3, 50


def start() -> None:
    """Trace every thread of this process from now on."""
    told = json.loads(os.environ["JOB_TRACE"])
    tracer = _Tracer(told["on"], told["out"], told["root"] + "/")
    sys.setprofile(tracer)
    threading.setprofile(tracer)


class _Tracer:
    """A file is written once for each function; only while the file `on` exists."""

    def __init__(self, on: str, out: str, root: str) -> None:
        self._on, self._out, self._root = on, out, root
        self._seen: set[object] = set()

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code in self._seen or not code.co_filename.startswith(self._root):
            return
        if not os.access(self._on, os.F_OK):
            return
        if _holds(value, _DEPTH) if event == "return" else _is_called_with_it(frame):
            self._seen.add(code)
            fd = os.open(self._out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, code.co_filename.removeprefix(self._root).encode() + b"\n")
            os.close(fd)


def _is_called_with_it(frame: FrameType) -> bool:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    return any(_holds(frame.f_locals.get(name), _DEPTH) for name in names)


def _holds(value: Any, depth: int) -> bool:
    """Whether the job's id or payload is in it, at most so deep."""
    if type(value) is int:
        return value == JOB_ID
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return PAYLOAD in value or _ID in value
    if depth == 0:
        return False
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
        return any(_holds(item, depth - 1) for item in [*value][:_LOOKED_AT])
    if type(value).__module__.startswith("supervisor."):
        return _holds(getattr(value, "id", None), 0) or _holds(getattr(value, "payload", None), 0)
    return False
