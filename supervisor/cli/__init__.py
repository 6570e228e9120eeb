"""The command line. `main` is the entry point of the `supervisor` command."""

from __future__ import annotations

EXIT_PATIENCE = 3.0  # seconds for what plugins left running


def main() -> None:
    from supervisor.logs import open_missing_streams

    open_missing_streams()
    from supervisor.cli.app import run_command_line
    from supervisor.processes.interpreter import end_within

    end_within(EXIT_PATIENCE, run_command_line())
