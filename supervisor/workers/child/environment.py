"""Restore the environment variables and the time zone of a worker after a job that changed them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

_NOTHING = b""


class Environment:
    """The variables as Python and as C see them: os.putenv and C libraries change the latter behind os.environ."""

    def __init__(self) -> None:
        self._environ = os.environ
        self._variables: dict[Any, Any] = dict(self._environ._data)  # type: ignore[attr-defined]
        self._of_c = _VariablesOfC()
        self._zone = _zone()

    def restore(self) -> None:
        """Restore the variables and the time zone. It is cheap if nothing has changed."""
        changed: frozenset[bytes] = frozenset()
        if os.environ is not self._environ or self._environ._data != self._variables:  # type: ignore[attr-defined]
            os.environ = self._environ  # noqa: B003 (the very object that other modules hold)
            _make_equal(self._environ._data, self._variables)  # type: ignore[attr-defined]
        if self._of_c.has_changed():
            changed = self._of_c.restore()
        # To restore the variable TZ does not change the zone; and a job may have restored only the variable itself.
        if b"TZ" in changed or _zone() != self._zone:
            time.tzset()


def _make_equal(current: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    for key in [key for key in current if key not in wanted]:
        del current[key]
    current.update(wanted)


def _zone() -> tuple[Any, ...]:
    return time.tzname, time.timezone, time.altzone, time.daylight


class _VariablesOfC:
    """The array `environ` of C. A change replaces a pointer in it, or the whole array."""

    def __init__(self) -> None:
        self._environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
        self._variables = self._read()
        self._remember()

    def has_changed(self) -> bool:
        """Return whether the array has changed. The memory of a replaced array is not read, since it may be free."""
        return self._environ.value != self._address or bytes(self._pointers) != self._remembered

    def restore(self) -> frozenset[bytes]:
        """Restore the variables, and return the names of those that differed."""
        current, wanted = self._read(), self._variables
        differing = frozenset(name for name in current.keys() | wanted.keys() if current.get(name) != wanted.get(name))
        for name in differing:
            if name in wanted:
                os.putenv(name, wanted[name])
            else:
                os.unsetenv(name)
        self._remember()
        return differing

    def _remember(self) -> None:
        self._address = self._environ.value
        # The null pointer at the end is included: an added variable replaces it.
        self._pointers: Any = _NOTHING
        if self._address is not None:
            self._pointers = (ctypes.c_void_p * (self._count() + 1)).from_address(self._address)
        self._remembered = bytes(self._pointers)

    def _count(self) -> int:
        return len(self._entries())

    def _read(self) -> dict[bytes, bytes]:
        split = [entry.partition(b"=") for entry in self._entries()]
        return {name: value for name, equals, value in split if name and equals}

    def _entries(self) -> list[bytes]:
        entries: list[bytes] = []
        if self._environ.value is not None:
            pointers = ctypes.cast(self._environ.value, ctypes.POINTER(ctypes.c_char_p))
            while (entry := pointers[len(entries)]) is not None:
                entries.append(entry)
        return entries
