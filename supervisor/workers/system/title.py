"""The title of this process in `ps` and `top`, so that everybody sees which process is which."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

_ARG_START, _ARG_END = 45, 46  # of the fields of /proc/PID/stat after the name, see proc(5)


def set_title(role: str) -> None:
    """Write `supervisor: ROLE` over the arguments that this process was started with; it is cut off at their length.

    Python has copied them at its start. The environment behind them stays as it is. If the system does not show where they are,
    they stay too.
    """
    start, size = _arguments()
    if size > 1:
        title = f"supervisor: {role}".encode("utf-8", "surrogateescape")
        # A last byte that is not NUL makes the kernel show the text up to the first NUL, as after setproctitle(3).
        ctypes.memmove(start, title[: size - 2].ljust(size - 1, b"\0") + b".", size)


@cache
def _arguments() -> tuple[int, int]:
    """Return where in the memory of this process, and of its forks, the arguments begin, and their size; 0 if that is not known."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        first, last = _stack()
        if first <= start < end <= last:
            return start, end - start
    return 0, 0


def _stack() -> tuple[int, int]:
    with open("/proc/self/maps", "rb") as file:
        line = next((line for line in file if line.endswith(b"[stack]\n")), b"0-0 ")
    first, _, last = line.partition(b" ")[0].partition(b"-")
    return int(first, 16), int(last, 16)
