"""How a promise that was broken is told."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise was broken."""


def holds(fact: object, message: str, *about: object) -> None:
    if not fact:
        raise Broken(" ".join([message, *map(str, about)]))
