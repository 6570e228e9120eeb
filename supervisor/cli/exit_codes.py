"""The exit codes of every command; `run` has more of its own."""

from __future__ import annotations

from os import EX_TEMPFAIL

DONE = 0
"""A change was made. A command that only prints returns no code, since it has failed if its output was lost."""
FATAL = 1
MISTAKE = 2
UNAVAILABLE = EX_TEMPFAIL
"""The store is locked, unreachable, out of space or damaged: the same command may succeed later."""
INTERRUPTED = 130
