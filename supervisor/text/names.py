"""The one rule for names of handlers and queues."""

from __future__ import annotations

from functools import lru_cache

MAX_NAME = 255
NAME = f"a name of 1 to {MAX_NAME} printable characters"


def is_name(value: object) -> bool:
    """Return whether `value` is text of 1 to 255 printable characters without spaces around it."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and _is_clean(value)


@lru_cache(1024)
def _is_clean(text: str) -> bool:
    return text.isprintable() and text == text.strip()
