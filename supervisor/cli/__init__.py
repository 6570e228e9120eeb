"""The command line. `main` is the entry point of the `supervisor` command."""

from __future__ import annotations

import signal

EXIT_TIMEOUT = 3.0  # seconds for what plugins left running


def main() -> None:
    # A KeyboardInterrupt while a C extension is imported can crash the interpreter. Nothing here needs one: what is
    # durable is so at once, and `run` has its own handler.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from supervisor.cli.standard_streams import install_streams

    install_streams()
    from supervisor.cli.app import run_command_line
    from supervisor.workers.system.interpreter import end_within

    end_within(EXIT_TIMEOUT, run_command_line())
