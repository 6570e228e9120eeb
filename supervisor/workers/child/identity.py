"""Check the user, the groups and the root directory of a worker: once changed by a job, they can't reliably be restored."""

from __future__ import annotations

import os
import re
from pathlib import Path


class IdentityChanged(Exception):
    """A job changed the user, a group or the root directory of its worker, which must run no other job."""


class Identity:
    """The state before the first job. Only a privileged process can change it, so for others nothing is compared."""

    def __init__(self) -> None:
        self._user, self._place = _user(), _place()
        self._privileged = 0 in os.getresuid() or _has_capabilities()

    def check(self, *, thorough: bool) -> None:
        """Raise IdentityChanged if the user has changed. `thorough` also checks groups and root directory, which takes longer."""
        if self._privileged and (_user() != self._user or (thorough and _place() != self._place)):
            raise IdentityChanged(
                "a job changed the user, a group or the root directory of its worker: the worker exits and is replaced"
            )


def _user() -> tuple[object, ...]:
    return os.getresuid(), os.getresgid()


def _place() -> tuple[object, ...]:
    root = os.stat("/")  # noqa: PTH116 (a path object costs as much as the call)
    return os.getgroups(), root.st_ino, root.st_dev


def _has_capabilities() -> bool:
    try:
        found = re.search(r"^CapPrm:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return True
    return found is None or int(found[1], 16) != 0
