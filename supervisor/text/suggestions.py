"""The nearest known word to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the nearest of the known words, or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]!r}?" if near else ""
