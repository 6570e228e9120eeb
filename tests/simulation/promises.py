"""The error for a broken promise."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise of the system does not hold."""


def holds(fact: object, message: str, *about: object) -> None:
    if not fact:
        raise Broken(" ".join([message, *map(str, about)]))
