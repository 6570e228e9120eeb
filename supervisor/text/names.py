"""The one rule for names of handlers and queues, and the hints for names that are misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

MAX_NAME = 255
NAME = f"a name of 1 to {MAX_NAME} printable characters without spaces around it"


def is_name(value: object) -> bool:
    """Return whether `value` is text of 1 to 255 printable characters without spaces around it."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and _is_clean(value)


@lru_cache(1024)
def _is_clean(text: str) -> bool:
    return text.isprintable() and text == text.strip()


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return `, did you mean 'x'?` with the known name nearest to `name`, or an empty text if none is near.

    A `prefix` that all known names share is left out of the comparison.
    """
    from difflib import get_close_matches  # slow to import, and needed only where something is wrong

    tails = {each.removeprefix(prefix): each for each in known}
    near = get_close_matches(name.removeprefix(prefix), tails, n=1, cutoff=0.6)
    return f", did you mean {tails[near[0]]!r}?" if near else ""


def did_you_mean_or_all(name: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?`, or `; expected one of x, y, z` if no known name is near."""
    known = list(known)
    return did_you_mean(name, known) or (f"; expected one of {', '.join(known)}" if known else "")
