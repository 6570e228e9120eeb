"""The exit codes of every command; `run` has more of its own."""

from __future__ import annotations

from os import EX_TEMPFAIL

DONE = 0
"""A change was made. A command that only prints returns no code, since it has failed if its output was lost."""
FATAL = 1
MISTAKE = 2
NOT_SUCCEEDED, NOT_ENDED = 1, 4
"""Some of the jobs that `jobs wait` has waited for failed or were cancelled; some had not ended in time."""
UNAVAILABLE = EX_TEMPFAIL
"""The store is locked, unreachable, out of space or damaged: the same command may succeed later."""
INTERRUPTED = 130
