"""Small disks that can be filled to the last byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def fill(filler: Path) -> tuple[None, Callable[[], object]] | None:
    """Until nothing more goes onto its disk; not if it is full already. Gives whom it hits (all), and how it is undone."""
    if filler.exists():
        return None
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
    return None, filler.unlink
