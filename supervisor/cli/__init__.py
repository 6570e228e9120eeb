"""The command line. `main` is the entry point of the `supervisor` command."""

from __future__ import annotations

import sys


def main() -> None:
    from supervisor.logs import open_missing_streams

    open_missing_streams()
    from supervisor.cli.app import run_command_line

    sys.exit(run_command_line())
