"""The exit codes of every command; `run` has more of its own."""

from __future__ import annotations

from os import EX_TEMPFAIL

FATAL = 1
MISTAKE = 2
UNAVAILABLE = EX_TEMPFAIL
"""The store is locked, unreachable, out of space or damaged: the same command may succeed later."""
INTERRUPTED = 130
