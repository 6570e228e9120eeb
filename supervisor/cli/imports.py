"""Import many modules at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: imports make none, and each collection looks at all that has been imported."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
