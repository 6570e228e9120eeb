"""Requests that are refused: each is answered with a status, and an object with `error`."""

from __future__ import annotations


class BadRequest(Exception):
    """A request that no answer exists for; the text names the parameter and what was expected."""


class NotFound(Exception):
    """Something that was asked for does not exist."""


class Conflict(Exception):
    """A command that the state of the job, or of the supervisor, does not allow."""
