"""Hints for a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return `, did you mean 'x'?` with the known name nearest to `name`, or nothing.

    A `prefix` that all of them share is left out of the comparison.
    """
    from difflib import get_close_matches  # slow to import, and needed only where something is wrong

    tails = {each.removeprefix(prefix): each for each in known}
    near = get_close_matches(name.removeprefix(prefix), tails, n=1, cutoff=0.6)
    return f", did you mean {tails[near[0]]!r}?" if near else ""


def did_you_mean_or_all(name: str, known: Iterable[str]) -> str:
    """Return `did_you_mean`, or else `; expected one of x, y, z`."""
    known = list(known)
    return did_you_mean(name, known) or (f"; expected one of {', '.join(known)}" if known else "")
