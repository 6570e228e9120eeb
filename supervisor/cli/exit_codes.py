"""The exit codes of every command; `run` has more of its own."""

from __future__ import annotations

FATAL = 1
MISTAKE = 2
INTERRUPTED = 130
